"""A gate from its projection in one pass: factor * f(x + b), f sigmoid, softplus or log sigmoid, and its derivative.

Gates may be as large as the tokens; one operation after the other would read and write them several times. The bias is added in
float32: a decay of 1e-4 lies at softplus(-9.2), where bf16 has steps of 1/16. What comes out is float32, or in the projection's
dtype where it is asked to be ``lean``.

N rows, C channels
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .around import added, blocks, once, readable, watched

CURVES = ("sigmoid", "softplus", "log_sigmoid")
ROWS, COLUMNS = 32, 128


@triton.jit
def log1p(x):
    """log(1 + x) of a number in [0, 1], with all digits where it is small."""
    one = 1.0 + x
    rounded = one - 1.0
    return tl.where(rounded == 0, x, tl.log(one) * (x / tl.where(rounded == 0, 1.0, rounded)))


@triton.jit
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def forward_kernel(x_ptr, bias_ptr, value_ptr, N, C, factor, CURVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """value = factor * f(x + b)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < N)[:, None] & (column < C)[None, :]
    at = row[:, None] * C + column[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + column, mask=column < C, other=0.0).to(tl.float32)[None, :]
    if CURVE == 0:
        value = tl.sigmoid(x)
    elif CURVE == 1:
        value = softplus(x)
    else:
        value = -softplus(-x)
    tl.store(value_ptr + at, factor * value, mask=inside)


@triton.jit
def backward_kernel(
    x_ptr,
    bias_ptr,
    dvalue_ptr,
    dx_ptr,
    dbias_ptr,
    N,
    C,
    factor,
    CURVE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """dx = factor * f'(x + b) dvalue, and each program's sum of it over its rows."""
    block = tl.program_id(0).to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < N)[:, None] & (column < C)[None, :]
    at = row[:, None] * C + column[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + column, mask=column < C, other=0.0).to(tl.float32)[None, :]
    share = tl.sigmoid(x)
    if CURVE == 0:
        slope = share * (1.0 - share)
    elif CURVE == 1:
        slope = share
    else:
        slope = 1.0 - share
    dx = factor * slope * tl.load(dvalue_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx_ptr + at, dx, mask=inside)
    tl.store(dbias_ptr + block * C + column, tl.sum(dx, 0), mask=column < C)


def _grid(x: Tensor) -> tuple[int, int, tuple[int, int]]:
    """Rows, channels, and the programs that share them."""
    rows, channels = x.numel() // x.shape[-1], x.shape[-1]
    return rows, channels, (blocks(rows, ROWS), blocks(channels, COLUMNS))


def _value(x: Tensor, bias: Tensor, factor: float, curve: str, lean: bool) -> Tensor:
    value = torch.empty_like(x, dtype=x.dtype if lean else torch.float32)
    rows, channels, grid = _grid(x)
    with torch.cuda.device(x.get_device()):
        forward_kernel[grid](x, bias, value, rows, channels, factor, CURVES.index(curve), ROWS, COLUMNS, num_warps=4)
    return value


class GateLink(torch.autograd.Function):
    """The gate, and the gradients of its projection and bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, factor: float, curve: str, lean: bool) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.factor, ctx.curve = factor, curve
        return _value(x, bias, factor, curve, lean)

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], dvalue: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = saved
        rows, channels, grid = _grid(x)
        dx, shares = torch.empty_like(x), x.new_empty(grid[0], channels, dtype=torch.float32)
        with torch.cuda.device(x.get_device()):
            backward_kernel[grid](
                x, bias, dvalue.contiguous(), dx, shares, rows, channels, ctx.factor, CURVES.index(ctx.curve), ROWS, COLUMNS,
                num_warps=4,
            )  # fmt: skip
        return dx, added(shares, bias) if ctx.needs_input_grad[1] else None, None, None, None


def gate_link(x: Tensor, bias: Tensor, factor: float, curve: str, lean: bool) -> Tensor:
    """factor * f(x + b); x ``[...,C]`` contiguous, bias ``[C]``."""
    # a token that is decoded comes through here too, and waits for every call
    if not watched():
        return _value(x, bias, factor, curve, lean)
    value: Tensor = GateLink.apply(x, bias, factor, curve, lean)  # type: ignore[no-untyped-call]
    return value


def takes(x: Tensor, bias: Tensor) -> bool:
    """Whether the kernels read such a projection on a GPU."""
    return readable(x, bias)
