"""A call in stretches: the state at each one's start is all that is kept for the backward pass, which runs it again.

What a backward pass needs of a stretch is there for no longer than that stretch's own, so that memory grows with a stretch
and not with the sequence. Stretches end where chunks do, so that what is computed stays the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from .call import Call
from .forms.common import each_row, stacked
from .rows import places
from .torch_modes import again
from .types import AnyState

# runs a call, given the bounds of the sequences that it packs, or None
Run: TypeAlias = Callable[[Call, Tensor | None], tuple[Tensor, AnyState]]


def in_stretches(run: Run, call: Call, bounds: list[int] | None, size: int, most: int) -> tuple[Tensor, AnyState]:
    """The call as ``run`` computes it, in stretches of at most ``most`` tokens that end where chunks of ``size`` do."""
    time, pairs = call.q.shape[1], call.k.shape[1] // call.q.shape[1]
    ends = _ends([0, time] if bounds is None else bounds, places(call.state), size, most, pairs)
    parts = call.cut([right - left for left, right in itertools.pairwise([0, *ends])])
    if bounds is not None:
        return _packed(run, parts, bounds, ends)
    outputs, state = [], call.state
    for part in parts:
        y, state = again(run, part._replace(state=state), None)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def _ends(bounds: list[int], begun: list[int], size: int, most: int, pairs: int) -> list[int]:
    """Where stretches end: with a chunk of the sequence there, or before it; rows of a batch are cut as the first is."""
    ends, left = [], 0
    while left + most < bounds[-1]:
        right = left + most
        row = next(row for row, end in enumerate(bounds[1:]) if end > right)
        start = bounds[row]
        whole = (at for at in range(right, max(start, right - size), -1) if ((at - start) * pairs + begun[row]) % size == 0)
        left = next(whole, start if start > left else right)
        ends.append(left)
    return [*ends, bounds[-1]]


def _packed(run: Run, parts: list[Call], bounds: list[int], ends: list[int]) -> tuple[Tensor, AnyState]:
    """Packed sequences: a stretch has those that it meets, the first of them from where the stretch before it ended."""
    starts, outputs = each_row(parts[0].state), []
    done: list[AnyState] = []
    carried: AnyState | None = None
    for part, (left, right) in zip(parts, itertools.pairwise([0, *ends]), strict=True):
        first = len(done)
        last = len(bounds) - 1 if right == bounds[-1] else sum(bound < right for bound in bounds)
        own = starts[first:last]
        if carried is not None:
            own[0] = carried
        inside = [min(max(bound, left), right) - left for bound in bounds[first : last + 1]]
        y, end = again(run, part._replace(state=stacked(own)), torch.tensor(inside, device="cpu"))
        outputs.append(y)
        reached = each_row(end)
        carried = reached.pop() if bounds[last] > right else None
        done += reached
    return torch.cat(outputs, 1), stacked(done)
