"""The models of the recall laboratory: every memory in the same small stack, with the same number of parameters."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch

from ..hf import MirasConfig
from ..types import require

# the memory whose size sets the number of parameters: the largest there is
REFERENCE = "yaad"


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a model is given for recall, apart from its recipe; None leaves it to the recipe.

    Attributes:
        conv_kernel: taps of the convolution, 0 for none.
        output_gate: "silu", "sigmoid" or "none".
        value_norm: whether values are scaled to unit RMS.
        step_sum: what the steps of keys alike add up to at most, 0 for no limit.
        step_start, step_limit: the relative step it starts with, and the largest.
        chunk_size: tokens of a chunk.
    """

    conv_kernel: int | None = None
    output_gate: str | None = None
    value_norm: bool | None = None
    step_sum: float | None = None
    step_start: float | None = None
    step_limit: float | None = None
    chunk_size: int | None = None


# what differs shall be the memory: those whose recipe has no short convolution get one here
CONVOLVED = Start(conv_kernel=4)
DEEP = Start(value_norm=True, step_start=0.5, step_limit=2.0)
STARTS: dict[str, Start] = {
    "transformer": CONVOLVED,
    "gla": CONVOLVED,
    # behind a sigmoid recall is learnt in half the steps that it takes behind a SiLU
    "ttt_linear": dataclasses.replace(DEEP, output_gate="sigmoid"),
    "ttt_mlp": dataclasses.replace(DEEP, output_gate="sigmoid"),
    "titans_lmm": DEEP,
    # the gradient of its l3 bias is about three times that of l2
    "moneta": dataclasses.replace(DEEP, step_start=0.15),
    "yaad": DEEP,
    "memora": DEEP,
}


@dataclass(frozen=True, kw_only=True)
class Contestant(Start):
    """A model by its name, PRESET or PRESET-anchored, and its size; what is None is as ``STARTS`` has it.

    ``spread`` is the standard deviation of embeddings and projections at the start.
    """

    name: str
    width: int = 128
    depth: int = 2
    heads: int = 2
    spread: float = 0.04

    def __post_init__(self) -> None:
        MirasConfig.preset(f"{self.name}-tiny")  # refuses a name it does not know

    def settled(self) -> Contestant:
        """The same with everything filled in that the laboratory gives to this model."""
        start = STARTS.get(self.name.split("-")[0], Start())
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(Start)}
        return dataclasses.replace(
            self, **{name: getattr(start, name) if value is None else value for name, value in given.items()}
        )

    @property
    def label(self) -> str:
        """The name, and what differs from how the laboratory starts this model; what is None here is left to the recipe."""
        usual = Contestant(name=self.name).settled()
        names = [*(field.name for field in dataclasses.fields(Start)), "spread"]
        changes = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name) != getattr(usual, name)]
        return ", ".join([self.name, *changes])

    def config(self, vocab: int) -> MirasConfig:
        """The configuration that has as many parameters as the reference, embeddings apart."""
        config = self._config(vocab, inner=2 * self.width)
        inner = inner_width(mixers(config), self.depth, self.width, budget(self.width, self.depth, self.heads))
        return self._config(vocab, inner=inner)

    def _config(self, vocab: int, inner: int) -> MirasConfig:
        settled = self.settled()
        changes: dict[str, Any] = {
            field.name: getattr(settled, field.name) for field in dataclasses.fields(Start) if field.name != "value_norm"
        }
        return MirasConfig.preset(
            f"{self.name}-tiny",
            vocab_size=vocab,
            hidden_size=self.width,
            num_hidden_layers=self.depth,
            num_attention_heads=self.heads,
            intermediate_size=inner,
            initializer_range=self.spread,
            value_norm=bool(settled.value_norm),
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            label=self.name,
            **changes,
        )


def mixers(config: MirasConfig) -> int:
    """Parameters of one memory with all that surrounds it."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.mixer(0).parameters())


@functools.cache
def budget(width: int, depth: int, heads: int) -> int:
    """Parameters of the reference without embeddings, its inner width twice its width."""
    memory = mixers(Contestant(name=REFERENCE, width=width, depth=depth, heads=heads)._config(2, inner=1))
    return depth * (memory + 6 * width * width + 2 * width) + width


def inner_width(mixer: int, depth: int, width: int, parameters: int) -> int:
    """The inner width, a multiple of 4, that brings a stack nearest to a number of parameters."""
    left = (parameters - width) / depth - mixer - 2 * width
    require(left >= 12 * width, f"a memory of {mixer} parameters leaves no room in a stack of {parameters}: make it wider")
    return round(left / (12 * width)) * 4
