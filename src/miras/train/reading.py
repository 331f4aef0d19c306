"""How well a model predicts a split: in windows of one length, and by the place in a window many times as long.

R rows, T tokens of a window, V vocabulary
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.shards import Tokens
from ..hf import MirasForCausalLM
from ..types import require

# logits of so many tokens exist at once
LOGITS = 8192
# windows of so many tokens are read together
TOGETHER = 131072


def precision(device: torch.device) -> torch.dtype | None:
    """As training computes: in bf16 on an accelerator, in the model's own precision, None, on the CPU."""
    return None if device.type == "cpu" else torch.bfloat16


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The precision of training, for whatever is computed inside."""
    low = precision(device)
    return nullcontext() if low is None else torch.autocast(device.type, low)


@torch.no_grad()
def surprises(model: MirasForCausalLM, inputs: Tensor, targets: Tensor) -> Tensor:
    """-log p(target) of every token in nats, float32 ``[R,T]``; each row is read from an empty memory."""
    with autocast(inputs.device):
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        parts = [
            F.cross_entropy(model.lm_head(own).float(), wanted, reduction="none")
            for own, wanted in zip(hidden.split(LOGITS), targets.flatten().split(LOGITS), strict=True)
        ]
    return torch.cat(parts).view_as(inputs)


def batches(tokens: Tokens, length: int, stride: int, device: torch.device) -> Iterator[Tensor]:
    """Windows ``[R,T+1]`` that begin every ``stride`` tokens, all that fit into the split."""
    starts = list(range(0, tokens.count - length, stride))
    require(bool(starts), f"the {tokens.split} split has {tokens.count} tokens, fewer than a window of {length} and its end")
    rows = max(TOGETHER // length, 1)
    for first in range(0, len(starts), rows):
        own = [torch.from_numpy(tokens.read(start, start + length + 1)) for start in starts[first : first + rows]]
        yield torch.stack(own).to(device)


def figures(nats: float, count: int, tokens: Tokens) -> dict[str, float]:
    """The mean over some tokens, in the units people use."""
    mean = nats / count
    bits = mean / (math.log(2) * tokens.bytes_per_token)
    return {"nats": mean, "bits_per_byte": bits, "perplexity": math.exp(min(mean, 700.0)), "tokens": count}


def sliding(model: MirasForCausalLM, tokens: Tokens, length: int) -> dict[str, Any]:
    """Windows that overlap by half: every token is predicted once, all but the first half from at least length/2 before it."""
    device, half = model.device, length // 2
    total, count = 0.0, 0
    for number, rows in enumerate(batches(tokens, length, half, device)):
        found = surprises(model, rows[:, :-1], rows[:, 1:]).double()
        kept = found[:, half:]
        total += float(kept.sum()) + (float(found[0, :half].sum()) if number == 0 else 0.0)
        count += kept.numel() + (half if number == 0 else 0)
    return {"kind": "sliding", "length": length, "stride": half, **figures(total, count, tokens)}


def by_place(model: MirasForCausalLM, tokens: Tokens, length: int, unit: int) -> dict[str, Any]:
    """Windows of ``length`` tokens, one behind the other, and the mean by place: up to 1/4, 1/2, 1, 2, 4 ... times ``unit``."""
    edges = [edge for edge in (0, unit // 4, unit // 2) if edge < length] + [unit]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    edges = sorted({min(edge, length) for edge in edges})
    sums, windows = torch.zeros(length, dtype=torch.float64), 0
    for rows in batches(tokens, length, length, model.device):
        found = surprises(model, rows[:, :-1], rows[:, 1:])
        sums += found.double().sum(0).cpu()
        windows += len(found)
    places = [
        {"from": left, "to": right, **figures(float(sums[left:right].sum()), windows * (right - left), tokens)}
        for left, right in itertools.pairwise(edges)
    ]
    whole = figures(float(sums.sum()), windows * length, tokens)
    return {"kind": "long", "length": length, "unit": unit, "windows": windows, **whole, "places": places}
