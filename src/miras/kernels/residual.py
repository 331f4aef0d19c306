"""A residual stream and its RMSNorm in one pass each way: s = x + b for a branch b, and y = gain * s / sqrt(mean s^2 + eps).

The stream goes on past the norm, so two gradients come back, and both are added where the norm's own is made.

N rows, D channels (DP: a power of two)
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import norm
from .launch import DOTS


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


@triton.jit
def backward_kernel(
    sum_ptr, gain_ptr, dsum_ptr, dy_ptr, dx_ptr, dbranch_ptr, dgain_ptr, N, D, eps, steps,
    CAST: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """dx = ds + (g - u mean(g u)) / sqrt(...) with u = s / sqrt(mean s^2 + eps), g = gain dy; once more for a branch of its own dtype."""
    block, d = tl.program_id(0).to(tl.int64), tl.arange(0, DP)
    gain = tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    share = tl.zeros([ROWS, DP], dtype=tl.float32)
    for step in range(steps):
        row = (block * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < N)[:, None] & (d < D)[None, :]
        at = row[:, None] * D + d[None, :]
        s = tl.load(sum_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(s * s, 1) / D + eps)[:, None]
        unit, g = s * inverse, gain[None, :] * dy
        share += dy * unit
        dx = tl.load(dsum_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dx += inverse * (g - unit * (tl.sum(g * unit, 1) / D)[:, None])
        tl.store(dx_ptr + at, dx, mask=inside)
        if CAST:
            tl.store(dbranch_ptr + at, dx, mask=inside)
    tl.store(dgain_ptr + block * D + d, tl.sum(share, 0), mask=d < D)


@torch.library.custom_op("miras::add_norm", mutates_args=())
def add_norm(x: Tensor, branch: Tensor, gain: Tensor, eps: float, to: torch.dtype) -> tuple[Tensor, Tensor]:
    """x + b, and its norm in a dtype; x and b ``[...,D]``, gain ``[D]``."""
    x, branch = x.contiguous(), branch.contiguous()
    rows, channels, told = norm.layout(x)
    added = torch.empty_like(x, dtype=torch.promote_types(x.dtype, branch.dtype))
    y = torch.empty_like(x, dtype=to)
    with torch.cuda.device(x.get_device()):
        forward_kernel[(triton.cdiv(rows, told["ROWS"]),)](x, branch, gain, added, y, rows, channels, eps, **told)
    return added, y


@add_norm.register_fake
def _(x, branch, gain, eps, to):
    return x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, branch.dtype)), x.new_empty(x.shape, dtype=to)


@torch.library.custom_op("miras::residual_backward", mutates_args=())
def residual_backward(
    s: Tensor, gain: Tensor, ds: Tensor, dy: Tensor, eps: float, to: torch.dtype, branch: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of the branch, empty where it has the same dtype, and of the gain, whose shares are added in one order."""
    s, ds, dy = s.contiguous(), ds.contiguous(), dy.contiguous()
    rows, channels, told = norm.layout(s)
    steps = triton.cdiv(rows, told["ROWS"] * norm.SHARES)
    blocks = triton.cdiv(rows, told["ROWS"] * steps)
    dx, shares = torch.empty_like(s, dtype=to), s.new_empty(blocks, channels, dtype=torch.float32)
    dbranch = s.new_empty(0 if branch == to else s.shape, dtype=branch)
    with torch.cuda.device(s.get_device()):
        backward_kernel[(blocks,)](s, gain, ds, dy, dx, dbranch, shares, rows, channels, eps, steps, CAST=branch != to, **told)
    return dx, dbranch, shares.sum(0).to(gain.dtype)


@residual_backward.register_fake
def _(s, gain, ds, dy, eps, to, branch):
    dbranch = s.new_empty(0 if branch == to else s.shape, dtype=branch)
    return s.new_empty(s.shape, dtype=to), dbranch, torch.empty_like(gain)


class Residual(torch.autograd.Function):
    """s and y; without a branch s is x itself, which an operator may not return."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor | None, gain: Tensor, eps: float, to: torch.dtype) -> tuple[Tensor, Tensor]:
        s, y = (x, norm.rms_norm(x, gain, eps, to)) if branch is None else add_norm(x, branch, gain, eps, to)
        ctx.save_for_backward(s, gain)
        ctx.eps, ctx.dtypes, ctx.added = eps, (x.dtype, x.dtype if branch is None else branch.dtype), branch is not None
        return s, y

    @staticmethod
    def backward(ctx: Any, ds: Tensor, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dbranch, dgain = residual_backward(*ctx.saved_tensors, ds, dy, ctx.eps, *ctx.dtypes)
        own = dbranch if ctx.dtypes[0] != ctx.dtypes[1] else dx
        return dx, own if ctx.added else None, dgain, None, None


def takes(x: Tensor, branch: Tensor | None) -> bool:
    """Whether the kernels read such a stream on a GPU."""
    return norm.takes(x) and (branch is None or branch.dtype in DOTS)
