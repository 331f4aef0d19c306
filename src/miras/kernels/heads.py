"""Projections side by side as the heads that a memory takes, in one pass each way: factor * x, or factor * x / sqrt(mean x^2 + eps).

Each part of a token is read where it lies and written as one tensor, and backwards the gradients are written side by side: nothing
is copied to be put together or taken apart. What is scaled to a length is scaled back from the result, so the input is not kept.

N rows, one for each token and head, H heads, D channels of a head (DP: a power of two), P parts, C channels of all parts
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import around, norm


@triton.jit
def forward_kernel(
    x_ptr, y_ptr, inverse_ptr, N, H, D, stride, factor, eps, UNIT: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr
):
    """y = factor * x, divided by sqrt(mean x^2 + eps) where that is asked for."""
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    inside = (row < N)[:, None] & (d < D)[None, :]
    at = (row // H)[:, None] * stride + (row % H)[:, None] * D + d[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if UNIT:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
        tl.store(inverse_ptr + row, inverse, mask=row < N)
        x *= inverse[:, None]
    tl.store(y_ptr + row[:, None] * D + d[None, :], factor * x, mask=inside)


@triton.jit
def backward_kernel(
    y_ptr, inverse_ptr, dy_ptr, dx_ptr, N, H, D, stride, factor, UNIT: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr
):
    """dx = factor * dy, or with u = y / factor: factor * (dy - u mean(dy u)) / sqrt(mean x^2 + eps)."""
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    inside = (row < N)[:, None] & (d < D)[None, :]
    at = row[:, None] * D + d[None, :]
    dx = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if UNIT:
        unit = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32) / factor
        inverse = tl.load(inverse_ptr + row, mask=row < N, other=0.0)
        dx = inverse[:, None] * (dx - unit * (tl.sum(dx * unit, 1) / D)[:, None])
    place = (row // H)[:, None] * stride + (row % H)[:, None] * D + d[None, :]
    tl.store(dx_ptr + place, factor * dx, mask=inside)


# heads, channels of each, their factor, and eps of their RMS norm, or None
Part = tuple[int, int, float, float | None]


class Heads(torch.autograd.Function):
    """The parts as heads, and their gradients side by side."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, parts: tuple[Part, ...]) -> tuple[Tensor, ...]:
        made: list[Tensor] = []
        kept: list[Tensor] = []
        tokens, start = around.tokens(joined), 0
        for count, width, factor, eps in parts:
            x, y = tokens[:, start : start + count * width], joined.new_empty(*joined.shape[:-1], count, width)
            rows, _, told = norm.layout(y)
            inverse = None if eps is None else joined.new_empty(rows, dtype=torch.float32)
            with torch.cuda.device(joined.get_device()):
                forward_kernel[(around.blocks(rows, told["ROWS"]),)](
                    x, y, inverse, rows, count, width, x.stride(0), factor, eps or 0.0, UNIT=eps is not None, **told
                )
            made.append(y)
            kept += [] if inverse is None else [y, inverse]
            start += count * width
        ctx.save_for_backward(*kept)
        ctx.set_materialize_grads(False)
        ctx.parts, ctx.given = parts, (joined.shape, joined.dtype, joined.device)
        return tuple(made)

    @staticmethod
    @around.once
    def backward(ctx: Any, saved: tuple[Tensor, ...], *outer: Tensor | None) -> tuple[Tensor | None, ...]:
        shape, dtype, device = ctx.given
        djoined, kept, start = torch.empty(shape, dtype=dtype, device=device), iter(saved), 0
        tokens = djoined.flatten(0, -2)
        for (count, width, factor, eps), dy in zip(ctx.parts, outer, strict=True):
            dx = tokens[:, start : start + count * width]
            y, inverse = (dy, None) if eps is None else (next(kept), next(kept))
            start += count * width
            if dy is None:
                dx.zero_()
                continue
            rows, _, told = norm.layout(dy)
            with torch.cuda.device(djoined.get_device()):
                backward_kernel[(around.blocks(rows, told["ROWS"]),)](
                    y, inverse, dy.contiguous(), dx, rows, count, width, dx.stride(0), factor, UNIT=eps is not None, **told
                )
        return djoined, None


def as_heads(joined: Tensor, parts: tuple[Part, ...]) -> tuple[Tensor, ...]:
    """The parts ``[...,H,D]`` of joined ``[...,C]``, each times its factor and, where it has an eps, of unit RMS."""
    made: tuple[Tensor, ...] = Heads.apply(joined, parts)  # type: ignore[no-untyped-call]
    return made


def takes(joined: Tensor, parts: tuple[Part, ...]) -> bool:
    """Whether the kernels read such projections on a GPU."""
    return around.readable(joined) and max(width for _, width, *_ in parts) <= norm.WIDEST
