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
    """The gradients of x, of the branch, empty where it has the same dtype, and of the gain."""
    s, ds, dy = s.contiguous(), ds.contiguous(), dy.contiguous()
    dx, dbranch = torch.empty_like(s, dtype=to), s.new_empty(0 if branch == to else s.shape, dtype=branch)
    dgain = norm.gradients(s, gain, dy, eps, dx, dstream=ds, again=None if branch == to else dbranch)
    return dx, dbranch, dgain


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
