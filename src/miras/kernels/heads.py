"""Projections side by side as the heads that a memory takes, in one pass each way: factor * x, or factor * x / sqrt(mean x^2 + eps).

Each part of a token is read where it lies and written as one tensor, and backwards the gradients are written side by side: nothing
is copied to be put together or taken apart. What is scaled to a length is scaled back from the result, so the input is not kept.

N rows, one for each token and head, H heads, D channels of a head (DP: a power of two), P parts, C channels of all parts
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


def _made(joined: Tensor, heads: list[int], channels: list[int], units: list[bool]) -> list[Tensor]:
    """Room for the parts ``[...,H,D]``, and for 1 / sqrt(mean x^2 + eps) ``[...,H]`` of each that is scaled by it."""
    lead, shapes = joined.shape[:-1], list(zip(heads, channels, units, strict=True))
    inverses = [joined.new_empty((*lead, count) if unit else 0, dtype=torch.float32) for count, _, unit in shapes]
    return [*(joined.new_empty(*lead, count, width) for count, width, _ in shapes), *inverses]


@torch.library.custom_op("miras::heads", mutates_args=())
def as_heads(
    joined: Tensor, heads: list[int], channels: list[int], factors: list[float], epsilons: list[float], units: list[bool]
) -> list[Tensor]:
    """The parts ``[...,H,D]`` of joined ``[...,C]``, each times its factor and, where ``units`` says so, of unit RMS; their inverses."""
    made = _made(joined, heads, channels, units)
    tokens = joined.flatten(0, -2)
    tokens = tokens if tokens.stride(1) == 1 else tokens.contiguous()
    start = 0
    for number, (count, width, factor, eps, unit) in enumerate(zip(heads, channels, factors, epsilons, units, strict=True)):
        x, y, inverse = tokens[:, start : start + count * width], made[number], made[len(heads) + number]
        rows, _, told = norm.layout(y)
        with torch.cuda.device(joined.get_device()):
            forward_kernel[(triton.cdiv(rows, told["ROWS"]),)](
                x, y, inverse, rows, count, width, x.stride(0), factor, eps, UNIT=unit, **told
            )
        start += count * width
    return made


@as_heads.register_fake
def _(joined, heads, channels, factors, epsilons, units):
    return _made(joined, heads, channels, units)


@torch.library.custom_op("miras::heads_backward", mutates_args=())
def heads_backward(made: list[Tensor], outer: list[Tensor], factors: list[float], units: list[bool]) -> Tensor:
    """The gradient of joined from those of the parts."""
    parts = made[: len(outer)]
    djoined = parts[0].new_empty(*parts[0].shape[:-2], sum(part.shape[-2] * part.shape[-1] for part in parts))
    tokens, start = djoined.flatten(0, -2), 0
    for y, inverse, dy, factor, unit in zip(parts, made[len(outer) :], outer, factors, units, strict=True):
        count, width = y.shape[-2:]
        dx = tokens[:, start : start + count * width]
        rows, _, told = norm.layout(y)
        with torch.cuda.device(y.get_device()):
            backward_kernel[(triton.cdiv(rows, told["ROWS"]),)](
                y, inverse, dy.contiguous(), dx, rows, count, width, dx.stride(0), factor, UNIT=unit, **told
            )
        start += count * width
    return djoined


@heads_backward.register_fake
def _(made, outer, factors, units):
    return made[0].new_empty(*made[0].shape[:-2], sum(part.shape[-2] * part.shape[-1] for part in made[: len(outer)]))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, ctx.counts, _, ctx.factors, _, ctx.units = inputs
    ctx.save_for_backward(*output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    made = list(ctx.saved_tensors)
    pairs = list(zip(made, grads, strict=True))[: len(ctx.counts)]
    outer = [torch.zeros_like(part) if grad is None else grad for part, grad in pairs]
    return heads_backward(made, outer, ctx.factors, ctx.units), None, None, None, None, None


as_heads.register_autograd(_backward, setup_context=_remember)


def takes(joined: Tensor, channels: list[int]) -> bool:
    """Whether the kernels read such projections on a GPU."""
    return norm.takes(joined[..., : max(channels)])
