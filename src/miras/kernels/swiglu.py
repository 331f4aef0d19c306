"""The feed-forward part's silu(g) * u in one pass each way, of both projections side by side.

N rows, C inner channels
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

ROWS, COLUMNS = 8, 256


@triton.jit
def place(N, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where a program's channels lie in y, where their gate lies beside their other half, and which are there."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < N)[:, None] & (column < C)[None, :]
    return row[:, None] * C + column[None, :], row[:, None] * (2 * C) + column[None, :], inside


@triton.jit
def forward_kernel(both_ptr, y_ptr, N, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """y = silu(g) u."""
    at, gate_at, inside = place(N, C, ROWS, COLUMNS)
    gate = tl.load(both_ptr + gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + gate_at + C, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, gate * tl.sigmoid(gate) * up, mask=inside)


@triton.jit
def backward_kernel(both_ptr, dy_ptr, dboth_ptr, N, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """dg = silu'(g) u dy and du = silu(g) dy."""
    at, gate_at, inside = place(N, C, ROWS, COLUMNS)
    gate = tl.load(both_ptr + gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + gate_at + C, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    tl.store(dboth_ptr + gate_at, share * (1.0 + gate * (1.0 - share)) * up * dy, mask=inside)
    tl.store(dboth_ptr + gate_at + C, gate * share * dy, mask=inside)


def _grid(both: Tensor) -> tuple[int, int, tuple[int, int]]:
    """Rows, inner channels, and the programs that share them."""
    inner = both.shape[-1] // 2
    rows = both.numel() // (2 * inner)
    return rows, inner, (triton.cdiv(rows, ROWS), triton.cdiv(inner, COLUMNS))


@torch.library.custom_op("miras::swiglu", mutates_args=())
def swiglu(both: Tensor) -> Tensor:
    """silu(g) * u ``[...,C]`` of g and u side by side, ``[...,2 C]``."""
    both = both.contiguous()
    rows, inner, grid = _grid(both)
    y = both.new_empty(*both.shape[:-1], inner)
    with torch.cuda.device(both.get_device()):
        forward_kernel[grid](both, y, rows, inner, ROWS, COLUMNS, num_warps=4)
    return y


@swiglu.register_fake
def _(both):
    return both.new_empty(*both.shape[:-1], both.shape[-1] // 2)


@torch.library.custom_op("miras::swiglu_backward", mutates_args=())
def swiglu_backward(both: Tensor, dy: Tensor) -> Tensor:
    """The gradients of g and u, side by side."""
    both, dy = both.contiguous(), dy.contiguous()
    rows, inner, grid = _grid(both)
    dboth = torch.empty_like(both)
    with torch.cuda.device(both.get_device()):
        backward_kernel[grid](both, dy, dboth, rows, inner, ROWS, COLUMNS, num_warps=4)
    return dboth


@swiglu_backward.register_fake
def _(both, dy):
    return both.new_empty(both.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor) -> Tensor:
    made: Tensor = swiglu_backward(*ctx.saved_tensors, dy)
    return made


swiglu.register_autograd(_backward, setup_context=_remember)


def takes(both: Tensor) -> bool:
    """Whether the kernels read such projections on a GPU."""
    return both.dtype in DOTS and both.numel() > 0
