"""A gate from its projection in one pass: factor * f(x + b), f sigmoid, softplus or log sigmoid, and its derivative.

Gates may be as large as the tokens; one operation after the other would read and write them several times. The bias is added in
float32: a decay of 1e-4 lies at softplus(-9.2), where bf16 has steps of 1/16. What comes out is float32, or in the projection's
dtype where it is asked to be ``lean``.

N rows, C channels
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import DOTS

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


@torch.library.custom_op("miras::gate_link", mutates_args=())
def gate_link(x: Tensor, bias: Tensor, factor: float, curve: str, lean: bool) -> Tensor:
    """factor * f(x + b); x ``[...,C]`` contiguous, bias ``[C]``."""
    value = torch.empty_like(x, dtype=x.dtype if lean else torch.float32)
    rows, channels = x.numel() // x.shape[-1], x.shape[-1]
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(channels, COLUMNS))
    forward_kernel[grid](x, bias, value, rows, channels, factor, CURVES.index(curve), ROWS, COLUMNS, num_warps=4)
    return value


@gate_link.register_fake
def _(x, bias, factor, curve, lean):
    return torch.empty_like(x, dtype=x.dtype if lean else torch.float32)


@torch.library.custom_op("miras::gate_link_backward", mutates_args=())
def gate_link_backward(x: Tensor, bias: Tensor, dvalue: Tensor, factor: float, curve: str) -> tuple[Tensor, Tensor]:
    """The gradients of x and bias."""
    rows, channels = x.numel() // x.shape[-1], x.shape[-1]
    blocks = triton.cdiv(rows, ROWS)
    dx, sums = torch.empty_like(x), torch.empty(blocks, channels, device=x.device)
    grid = (blocks, triton.cdiv(channels, COLUMNS))
    backward_kernel[grid](x, bias, dvalue, dx, sums, rows, channels, factor, CURVES.index(curve), ROWS, COLUMNS, num_warps=4)
    return dx, sums.sum(0).to(bias.dtype)


@gate_link_backward.register_fake
def _(x, bias, dvalue, factor, curve):
    return torch.empty_like(x), torch.empty_like(bias)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, ctx.factor, ctx.curve, _ = inputs
    ctx.save_for_backward(x, bias)


def _backward(ctx: Any, dvalue: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    dx, dbias = gate_link_backward(*ctx.saved_tensors, dvalue.contiguous(), ctx.factor, ctx.curve)
    return dx, dbias, None, None, None


gate_link.register_autograd(_backward, setup_context=_remember)


def takes(x: Tensor) -> bool:
    """Whether the kernels read such a projection on a GPU."""
    return x.dtype in DOTS and x.numel() > 0
