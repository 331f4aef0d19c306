"""A model reads a text, and all its memories are followed.

T time, C channels, H heads
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..hf import MirasForCausalLM
from ..nn import MirasLayer
from ..types import require
from .absent import absent, absent_from_attention
from .text import Tokens
from .walk import LayerTrace, walk

# tokens whose logits exist at once
LOGITS = 512


class Layer(NamedTuple):
    """One block: what its mixer is, how many tokens a chunk has, what its memory did (None for attention), what it lacks."""

    title: str
    heads: int
    chunk: int
    trace: LayerTrace | None
    absent: dict[str, str]


class Reading(NamedTuple):
    """A text read by a model: its tokens, ``loss`` ``[T]`` of each (in nats; NaN for the first), and every block."""

    model: str
    tokens: Tokens
    loss: Tensor
    layers: list[Layer]


def steps_of(model: MirasForCausalLM, tokens: int) -> int:
    """How many tokens ``advance`` will hear of."""
    memories = sum(isinstance(block.mixer, MirasLayer) for block in model.model.layers)
    return tokens * (memories + 1)


@torch.no_grad()
def read(
    model: MirasForCausalLM, tokens: Tokens, *, name: str = "", advance: Callable[[int], None] = lambda tokens: None
) -> Reading:
    """Run the tokens through the model and follow every memory at the input that it gets there."""
    vocabulary = model.config.vocab_size
    largest = max(tokens.ids)
    apart = f"the tokenizer gives token {largest}, but the model knows {vocabulary}: they do not belong together"
    require(largest < vocabulary, apart)
    traces: dict[int, LayerTrace] = {}

    def follow(number: int) -> Any:
        def hook(mixer: nn.Module, arguments: tuple[Any, ...]) -> None:
            assert isinstance(mixer, MirasLayer)
            # what it read is needed no longer: the layer is about to read it again
            traces[number] = walk(mixer, arguments[0], advance)._replace(y=torch.empty(0))

        return hook

    mixers = [block.mixer for block in model.model.layers]
    hooks = [m.register_forward_pre_hook(follow(n)) for n, m in enumerate(mixers) if isinstance(m, MirasLayer)]
    ids = torch.tensor([tokens.ids], device=model.device)
    try:
        hidden = model.model(ids, use_cache=False).last_hidden_state[0]
    finally:
        for hook in hooks:
            hook.remove()
    loss = _loss(model, hidden, ids[0], advance)
    return Reading(name or model.config.label, tokens, loss, [_layer(m, traces.get(n)) for n, m in enumerate(mixers)])


def _layer(mixer: Any, trace: LayerTrace | None) -> Layer:
    if isinstance(mixer, MirasLayer):
        return Layer(mixer.spec.title, mixer.heads, mixer.chunk_size or mixer.spec.chunk_size, trace, absent(mixer.spec))
    return Layer(f"attention over {mixer.window} tokens", mixer.heads, 0, None, absent_from_attention(mixer))


def _loss(model: MirasForCausalLM, hidden: Tensor, ids: Tensor, advance: Callable[[int], None]) -> Tensor:
    """-log p of each token given those before it, ``[T]``; there is none for the first."""
    found = [hidden.new_full((1,), torch.nan)]
    for left in range(0, len(ids), LOGITS):
        wanted = ids[left + 1 : left + LOGITS + 1]
        logits = model.lm_head(hidden[left : left + len(wanted)])
        found.append(F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), wanted, reduction="none"))
        advance(len(ids[left : left + LOGITS]))
    return torch.cat(found)
