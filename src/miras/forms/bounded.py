"""A backward pass that cannot explode: the adjoint of a memory's state, held to what its reads ask for.

Let D_n be the adjoint of the state at the start of chunk n, R_n what the chunk's own reads ask of that state, and J_n the
derivative of its end by its start:

    D_n = R_n + J_n^T D_(n+1).

Descent that does not overshoot brings two states no further apart, nor does a decay: ||J_n|| <= 1, and so
||D_n|| <= sum_(m>=n) ||R_m||. Where steps overshoot J_n multiplies, and D_n, which grows by a factor a chunk, says nothing any
more. A bound b holds it to the sum:

    D_n  becomes  D_n min(1, b sum_(m>=n) ||R_m|| / ||D_n||),

with one norm for all weights of a head, and their momentum. It changes no result and, where nothing overshoots, no gradient.

B batch, H heads
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..types import Weights


def bounded(bound: float, tally: Tensor, state: Weights) -> tuple[Tensor, Weights, Weights]:
    """A state ``[B,H,...]`` twice, for what its chunk reads and for what it leaves, and the tally for the chunks after it.

    ``tally`` ``[B,H]`` holds nothing: its gradient is the sum of the norms that the rule speaks of, on its way back.
    """
    tally, *parts = _Bounded.apply(bound, tally, *state)  # type: ignore[no-untyped-call]
    return tally, tuple(parts[: len(state)]), tuple(parts[len(state) :])


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bound: float, tally: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.bound = bound
        return (tally.view_as(tally), *(x.view_as(x) for x in state), *(x.view_as(x) for x in state))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tally: Tensor, *adjoints: Tensor) -> tuple[Tensor | None, ...]:
        half = len(adjoints) // 2
        tally = tally + _size(adjoints[:half])
        whole = [read + write for read, write in zip(adjoints[:half], adjoints[half:], strict=True)]
        size, limit = _size(whole), ctx.bound * tally
        share = torch.where(size > limit, limit / size, 1.0)
        return (None, tally, *(share.reshape(*share.shape, *[1] * (x.dim() - 2)) * x for x in whole))


def _size(parts: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """``[B,H]``, one norm for all parts."""
    return torch.stack([x.square().flatten(2).sum(2) for x in parts]).sum(0).sqrt()
