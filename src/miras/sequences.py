"""Sequences that a batch packs: in plain PyTorch as rows, and by kernels from any places of their chunks.

R sequences, T tokens of all of them
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from .call import Call, behind
from .forms.chunk import chunk
from .forms.common import each_row, picked, replaced, stacked
from .forms.ragged import buckets, positions, repacked, unpacked, unpacked_gates
from .forms.recurrent import recurrent
from .rows import places
from .types import AnyState, State


def packed(call: Call, bounds: list[int], form: str, size: int) -> tuple[Tensor, AnyState]:
    """The sequences of a packed batch, each from its own row of the state: in buckets of rows, or one by one."""
    spec, q, k, v, gates, norm, start = call
    pairs, lengths = k.shape[1] // q.shape[1], between(bounds)
    outputs: dict[int, Tensor] = {}
    ends: dict[int, AnyState] = {}
    for rows in buckets(bounds, size) if form == "chunk" else ([row] for row in range(len(lengths))):
        token, pair = positions(bounds, rows, 1, q.device), positions(bounds, rows, pairs, q.device)
        tokens = (unpacked(q, token), unpacked(k, pair), unpacked(v, pair), unpacked_gates(gates, token, pair))
        given, own = (spec, *tokens, norm, picked(start, rows)), [lengths[row] for row in rows]
        filled = own if len(set(own)) > 1 else None
        y, end = recurrent(*given) if form == "recurrent" else chunk(*given, size, filled)
        outputs |= zip(rows, repacked(y, own), strict=True)
        ends |= zip(rows, each_row(end), strict=True)
    every = range(len(lengths))
    return torch.cat([outputs[row] for row in every], 1), stacked([ends[row] for row in every])


def from_any_place(
    kernels: Callable[..., tuple[Tensor, State]], call: Call, bounds: list[int], size: int
) -> tuple[Tensor, AnyState]:
    """Sequences one behind the other by kernels, which begin where chunks do.

    Before that, what is left of the chunk that an earlier call began, less than one of each sequence, by plain PyTorch.
    """
    begun, lengths = places(call.state), between(bounds)
    left = [min(-place % size, length) for place, length in zip(begun, lengths, strict=True)]
    if not any(left):
        return kernels(*call, size, lengths)

    def plain(own: Call, counts: list[int]) -> tuple[Tensor, AnyState]:
        return packed(own.to(torch.float32), [0, *itertools.accumulate(counts)], "chunk", size)

    def fused(own: Call, counts: list[int]) -> tuple[Tensor, AnyState]:
        return kernels(*own, size, counts)

    rest = [length - own for length, own in zip(lengths, left, strict=True)]
    pieces = call.flat().cut([n for both in zip(left, rest, strict=True) for n in both])
    outputs, state = [piece.v for piece in pieces], placed(call.state, begun)
    for run, counts, place in ((plain, left, 0), (fused, rest, 1)):
        rows = [row for row, count in enumerate(counts) if count]
        if rows:
            own = [counts[row] for row in rows]
            y, end = run(behind([pieces[2 * row + place] for row in rows], picked(state, rows)), own)
            state = replaced(state, rows, end)
            for row, part in zip(rows, torch.split(y.to(call.v.dtype), own, 1), strict=True):
                outputs[2 * row + place] = part
    return torch.cat(outputs, 1).reshape(call.v.shape), state


def placed(state: AnyState, begun: list[int]) -> AnyState:
    """A state in mid-chunk whose places are on the CPU, also where somebody moved them with the rest."""
    assert isinstance(state, State) and state.chunk is not None
    return state._replace(chunk=state.chunk._replace(position=torch.tensor(begun, device="cpu")))


def between(bounds: list[int]) -> list[int]:
    """How many tokens lie between each bound and the next."""
    return [right - left for left, right in itertools.pairwise(bounds)]
