"""The configuration of a language model, and the named ones: PRESET[-anchored]-SIZE[-h]."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from .. import presets
from ..nn import MirasLayer, Recipe, SlidingWindowAttention, bounded, recipe_of
from ..spec import Spec
from ..types import require, require_count, require_kinds, whole

# what other configurations call these fields
OTHERS = {
    **dict.fromkeys(("num_layers", "n_layer", "n_layers", "layers", "depth"), "num_hidden_layers"),
    **dict.fromkeys(("num_heads", "n_head", "n_heads", "heads"), "num_attention_heads"),
    **dict.fromkeys(("d_model", "n_embd", "dim", "hidden_dim"), "hidden_size"),
    **dict.fromkeys(("window", "window_size"), "sliding_window"),
    "chunk": "chunk_size",
    "rope_theta": "rope_base",
    "rotary": "rope",
    **dict.fromkeys(("conv_size", "kernel_size"), "conv_kernel"),
    "head_size": "head_dim",
    "tie_embeddings": "tie_word_embeddings",
}


ROPE_BASE = 1e4
# fields of one plain kind, or None, which other checks do not name
PLAIN = (
    "rope", "rope_base", "silu", "output_gate", "value_norm", "step_sum", "gate_pace", "step_start", "step_limit",
    "decay_start", "decay_limit", "weight_start", "initializer_range", "rms_norm_eps", "use_cache", "tie_word_embeddings",
    "label",
)  # fmt: skip


class MirasConfig(PreTrainedConfig):
    """A Llama-style language model around any memory.

    Attributes:
        spec: the memory: a preset's name, a :class:`miras.Spec`, or its ``to_dict``, which is how it is kept.
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size: as in Llama.
        head_dim, value_head_dim: channels of a head; ``hidden_size / num_attention_heads`` and ``head_dim`` if None.
        sliding_window: makes it a hybrid: every second block is attention over that many tokens; None: none is.
        chunk_size: tokens of a chunk; the spec's own if None.
        rope: whether q and k have rotary positions, of base ``rope_base``; as the preset's recipe has it if None.
        conv_kernel: taps of the causal convolution, 0 for none; as the recipe has it if None.
        silu: whether q, k and v pass through SiLU; as the recipe has it if None.
        output_gate: "silu", "sigmoid" or "none", the gate on a head's output; as the recipe has it if None.
        value_norm: whether each head's value is scaled to unit RMS.
        step_sum: what the steps of keys alike among a chunk's tokens add up to at most, 0 for no limit; as the recipe has it
            if None.
        gate_rank: rank of the channel-wise gates' projections; as the recipe has it if None.
        gate_pace: how fast the gates learn beside the rest; as the recipe has it if None.
        step_start, step_limit: the relative step a deep memory starts with, and its largest; as the recipe has it if None.
        decay_start, decay_limit: the decay, -log alpha, that a memory starts with, and its largest; as the recipe has it if
            None, where most have none.
        weight_start: standard deviation of a deep memory's initial weights; as the recipe has it if None.
        loss_chunk: tokens whose logits exist at once when a loss is computed; with 0 all of them do.
        label: the name it is known by, for people.
    """

    model_type = "miras"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    spec: str | dict[str, Any] | Spec = "yaad"
    vocab_size: int = 32000
    hidden_size: int = 768
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 16
    head_dim: int | None = None
    value_head_dim: int | None = None
    sliding_window: int | None = None
    chunk_size: int | None = None
    rope: bool | None = None
    rope_base: float = ROPE_BASE
    conv_kernel: int | None = None
    silu: bool | None = None
    output_gate: str | None = None
    value_norm: bool = False
    step_sum: float | None = None
    gate_rank: int | None = None
    gate_pace: float | None = None
    step_start: float | None = None
    step_limit: float | None = None
    decay_start: float | None = None
    decay_limit: float | None = None
    weight_start: float | None = None
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    loss_chunk: int = 2048
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    label: str = ""

    def __post_init__(self, **kwargs: Any) -> None:
        # Hugging Face's configurations keep whatever they are given; a slip of ours would pass in silence
        for name in kwargs:
            require(name not in OTHERS, f"MirasConfig has no {name}: did you mean {OTHERS.get(name)}?")
            near = difflib.get_close_matches(name, [field.name for field in dataclasses.fields(self)], n=1, cutoff=0.85)
            require(not near, f"MirasConfig has no {name}: did you mean {', '.join(near)}?")
        self.check()
        if self.head_dim is None:
            require(
                self.hidden_size % self.num_attention_heads == 0,
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}: "
                "give head_dim",
            )
            self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        # a spec is kept spelled out, however it is given and whenever
        if name == "spec":
            spec = presets.get(value) if isinstance(value, str) else value
            value = spec.to_dict() if isinstance(spec, Spec) else Spec.from_dict(spec).to_dict()
        super().__setattr__(name, value)

    def check(self) -> None:
        """Refuse values that no model can have; models ask again, since a configuration may be changed."""
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
            require(whole(getattr(self, name), 1), f"{name} must be an integer of 1 or more, got {getattr(self, name)!r}")
        require(whole(self.loss_chunk, 0), f"loss_chunk must be an integer of 0 or more, got {self.loss_chunk!r}")
        taps = self.conv_kernel
        require(taps is None or whole(taps, 0), f"conv_kernel must be an integer of 0 or more, or None, got {taps!r}")
        require_count(
            head_dim=self.head_dim,
            value_head_dim=self.value_head_dim,
            chunk_size=self.chunk_size,
            sliding_window=self.sliding_window,
            gate_rank=self.gate_rank,
        )
        require_kinds(self, *PLAIN)
        for name in ("rope_base", "rms_norm_eps"):
            require(getattr(self, name) > 0, f"{name} must be > 0, got {getattr(self, name)!r}")
        require(self.initializer_range >= 0, f"initializer_range must be >= 0, got {self.initializer_range!r}")
        require(
            self.rope_base == ROPE_BASE or self.sliding_window is not None or self.recipe.rope is not None,
            f"rope_base={self.rope_base} is of rotary positions, and there are none: rope=True",
        )
        words = self.vocab_size
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            given = getattr(self, name)
            every = given if isinstance(given, list) and name == "eos_token_id" else [given]
            fits = all(one is None or (whole(one, 0) and one < words) for one in every)
            require(fits, f"{name} must lie below vocab_size={words} or be None, got {given!r}")

    @property
    def memory(self) -> Spec:
        """The spec that ``spec`` describes."""
        assert isinstance(self.spec, dict)
        return Spec.from_dict(self.spec)

    @property
    def recipe(self) -> Recipe:
        """What surrounds the memory: the preset's recipe with the changes that this configuration makes."""
        recipe = recipe_of(self.memory)
        self._check_gates({gate.name for gate in recipe.gates})
        changes: dict[str, Any] = {"value_norm": self.value_norm or recipe.value_norm}
        if self.rope is not None or recipe.rope is not None:
            changes["rope"] = None if self.rope is False else self.rope_base
        if self.conv_kernel is not None:
            changes["convolution"] = self.conv_kernel or None
        if self.silu is not None:
            changes["silu"] = self.silu
        if self.step_sum is not None:
            changes["step_sum"] = self.step_sum or None
        if self.output_gate is not None:
            changes["output_gate"] = None if self.output_gate == "none" else self.output_gate
        if self.weight_start is not None:
            changes["start"] = self.weight_start
        gates = []
        for gate in recipe.gates:
            if self.gate_rank is not None and gate.rank is not None:
                gate = dataclasses.replace(gate, rank=self.gate_rank)
            if self.gate_pace is not None:
                gate = dataclasses.replace(gate, pace=self.gate_pace)
            if gate.name == "eta":
                start, limit = self.step_start, self.step_limit
                gate = dataclasses.replace(
                    gate, start=gate.start if start is None else start, limit=gate.limit if limit is None else limit
                )
            if gate.name == "log_alpha" and self.decay_start is not None:
                gate = dataclasses.replace(gate, start=self.decay_start)
            if gate.name == "log_alpha" and self.decay_limit is not None:
                gate = dataclasses.replace(gate, link="bounded_decay", limit=self.decay_limit)
            gates.append(gate)
        made = dataclasses.replace(recipe, gates=tuple(gates), **changes)
        return bounded(made) if self.step_limit is None else made

    def _check_gates(self, there: set[str]) -> None:
        """Refuse a change of a gate that the memory has not."""
        needed = {
            "gate_pace": there,
            "step_start": {"eta"},
            "step_limit": {"eta"},
            "decay_start": {"log_alpha"},
            "decay_limit": {"log_alpha"},
        }
        for name, gates in needed.items():
            fits = getattr(self, name) is None or bool(there & gates)
            require(
                fits, f"{name} changes a gate that {self.memory} has not ({', '.join(sorted(there)) or 'none'}): leave it out"
            )

    def mixer(self, number: int) -> MirasLayer | SlidingWindowAttention:
        """The mixer of a block: a memory, or, in every second block of a hybrid, attention over a window."""
        if self.sliding_window is not None and number % 2:
            return SlidingWindowAttention(
                self.hidden_size,
                self.num_attention_heads,
                window=self.sliding_window,
                head_dim=self.head_dim,
                rope=self.rope_base,
            )
        return MirasLayer(
            self.hidden_size,
            self.num_attention_heads,
            self.memory,
            head_dim=self.head_dim,
            value_dim=self.value_head_dim,
            recipe=self.recipe,
            chunk_size=self.chunk_size,
            norm_eps=self.rms_norm_eps,
        )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> MirasConfig:
        """A named configuration: a preset, optionally ``-anchored``, a size, and ``-h`` for a hybrid.

        >>> MirasConfig.preset("yaad-340m").num_hidden_layers
        24
        >>> MirasConfig.preset("memora-anchored-tiny-h").sliding_window
        32
        """
        require(isinstance(name, str), f"a configuration is named by a text such as yaad-340m, got {name!r}")
        spec, size, hybrid = _parse(name)
        # transformers keeps a keyword that it does not know as an attribute, so a slip would change nothing in silence
        fields = [field.name for field in dataclasses.fields(cls)]
        for change in changes:
            close = "".join(f", did you mean {other}?" for other in difflib.get_close_matches(change, fields, n=1))
            require(change in fields, f"MirasConfig has no field {change!r}{close}")
        config = cls(
            **{
                "spec": spec,
                "vocab_size": size.vocab,
                "hidden_size": size.dim,
                "num_hidden_layers": size.depth,
                "num_attention_heads": size.heads,
                "sliding_window": size.window if hybrid else None,
                "initializer_range": size.spread,
                "intermediate_size": size.inner,
                "label": name,
                **(BYTE_TOKENS if changes.get("vocab_size", size.vocab) == BYTES else {}),
                **changes,
            }
        )
        if size.parameters and "intermediate_size" not in changes:
            config.intermediate_size = _inner(config, size.parameters, size.embedded)
        return config

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: what is saved already says where its classes are."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a size's name stands for; where it names a number of parameters, the inner width is chosen to meet it.

    ``embedded`` says whether that number counts the embeddings; a size for comparisons over several vocabularies does not.
    """

    depth: int
    dim: int
    heads: int
    window: int
    vocab: int = 32000
    parameters: int = 0
    embedded: bool = True
    inner: int = 64
    spread: float = 0.02


BYTES = 259
# of hf.byte_tokenizer; another vocabulary has its own
BYTE_TOKENS = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}
SIZES = {
    "tiny": Size(depth=2, dim=64, heads=2, window=32, vocab=BYTES, inner=128, spread=0.06),
    "small": Size(depth=4, dim=256, heads=4, window=128, vocab=BYTES, inner=704, spread=0.04),
    "600k": Size(depth=2, dim=128, heads=2, window=64, vocab=BYTES, parameters=600_000, embedded=False, spread=0.05),
    "4m": Size(depth=4, dim=256, heads=4, window=128, vocab=BYTES, parameters=4_200_000, embedded=False, spread=0.04),
    "30m": Size(depth=6, dim=640, heads=10, window=512, vocab=BYTES, parameters=30_000_000, embedded=False, spread=0.025),
    "120m": Size(depth=12, dim=768, heads=16, window=2048, parameters=120_000_000),
    "340m": Size(depth=24, dim=1024, heads=16, window=2048, parameters=340_000_000),
    "760m": Size(depth=24, dim=1536, heads=16, window=2048, parameters=760_000_000),
    "1.3b": Size(depth=24, dim=2048, heads=16, window=2048, parameters=1_300_000_000),
}


def _parse(name: str) -> tuple[Spec, Size, bool]:
    """The memory, the size and whether it is a hybrid."""
    parts = name.split("-")
    hybrid = parts[-1] == "h"
    parts = parts[:-1] if hybrid else parts
    anchored = len(parts) == 3 and parts[1] == "anchored"
    known = len(parts) == (3 if anchored else 2) and parts[0] in presets.PRESETS and parts[-1] in SIZES
    require(
        known,
        f"unknown configuration {name!r}: a name is PRESET-SIZE or PRESET-anchored-SIZE, with -h for a hybrid; "
        f"presets are {', '.join(presets.PRESETS)}; sizes are {', '.join(SIZES)}",
    )
    make = presets.PRESETS[parts[0]]
    can = [preset for preset, build in presets.PRESETS.items() if "anchor" in inspect.signature(build).parameters]
    require(not anchored or parts[0] in can, f"{parts[0]} has no anchored form: those that have are {', '.join(can)}")
    return make(anchor=True) if anchored else make(), SIZES[parts[-1]], hybrid


def _inner(config: MirasConfig, parameters: int, embedded: bool) -> int:
    """The inner width, a multiple of 64 (16 where it is narrow), that brings a model nearest to a number of parameters."""
    with torch.device("meta"):
        mixers = [sum(p.numel() for p in config.mixer(number).parameters()) for number in (0, 1)]
    depth, dim = config.num_hidden_layers, config.hidden_size
    heads = (1 if config.tie_word_embeddings else 2) if embedded else 0
    rest = heads * config.vocab_size * dim + (2 * depth + 1) * dim + sum(mixers[number % 2] for number in range(depth))
    step = 64 if dim >= 512 else 16
    return max(1, round((parameters - rest) / (3 * dim * depth * step))) * step
