"""A residual stream and its RMSNorm in one pass each way: s = x + b for a branch b, and y = gain * s / sqrt(mean s^2 + eps).

The stream goes on past the norm, so two gradients come back, and both are added where the norm's own is made.

N rows, D channels (DP: a power of two)
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import norm
from .around import added, blocks, once, readable


@triton.jit
def forward_kernel(x_ptr, branch_ptr, gain_ptr, sum_ptr, y_ptr, N, D, eps, ROWS: tl.constexpr, DP: tl.constexpr):
    """s = x + b, and y of the s that is kept."""
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    inside = (row < N)[:, None] & (d < D)[None, :]
    at = row[:, None] * D + d[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(branch_ptr + at, mask=inside, other=0.0).to(tl.float32)
    kept = x.to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + at, kept, mask=inside)
    gain, s = tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32), kept.to(tl.float32)
    tl.store(y_ptr + at, gain[None, :] * s * tl.rsqrt(tl.sum(s * s, 1) / D + eps)[:, None], mask=inside)


def _added(x: Tensor, branch: Tensor, gain: Tensor, eps: float, to: torch.dtype) -> tuple[Tensor, Tensor]:
    """x + b, and its norm in a dtype."""
    branch = branch.contiguous()
    rows, channels, told = norm.layout(x)
    s = torch.empty_like(x, dtype=torch.promote_types(x.dtype, branch.dtype))
    y = torch.empty_like(x, dtype=to)
    with torch.cuda.device(x.get_device()):
        forward_kernel[(blocks(rows, told["ROWS"]),)](x, branch, gain, s, y, rows, channels, eps, **told)
    return s, y


class Residual(torch.autograd.Function):
    """The stream with its norm, and their gradients; without a branch the stream is x itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor | None, gain: Tensor, eps: float, to: torch.dtype) -> tuple[Tensor, Tensor]:
        s, y = (x, norm.normed(x, gain, eps, to)) if branch is None else _added(x, branch, gain, eps, to)
        ctx.save_for_backward(s, gain)
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.to, ctx.dtypes = eps, to, (x.dtype, x.dtype if branch is None else branch.dtype)
        return s, y

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], ds: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        s, gain = saved
        own, other = ctx.dtypes
        dx = torch.empty_like(s, dtype=own)
        dbranch = None if own == other else torch.empty_like(s, dtype=other)
        dy = torch.zeros_like(s, dtype=ctx.to) if dy is None else dy.contiguous()
        ds = None if ds is None else ds.contiguous()
        shares = norm.gradients(s, gain, dy, ctx.eps, dx, dstream=ds, again=dbranch)
        _, branches, gains, *_ = ctx.needs_input_grad
        given = (dx if dbranch is None else dbranch) if branches else None
        return dx, given, added(shares, gain) if gains else None, None, None


def residual(x: Tensor, branch: Tensor | None, gain: Tensor, eps: float, to: torch.dtype) -> tuple[Tensor, Tensor]:
    """x + b, or x itself, and its norm in a dtype; x ``[...,D]`` contiguous, b ``[...,D]``, gain ``[D]``."""
    made: tuple[Tensor, Tensor] = Residual.apply(x, branch, gain, eps, to)  # type: ignore[no-untyped-call]
    return made


def takes(x: Tensor, branch: Tensor | None, gain: Tensor) -> bool:
    """Whether the kernels read such a stream on a GPU."""
    return norm.takes(x, gain) and (branch is None or readable(branch))
