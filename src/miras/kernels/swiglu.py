"""The feed-forward part's silu(g) * u in one pass each way, of both projections side by side.

N rows, C inner channels
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .around import blocks, once, readable

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
    return rows, inner, (blocks(rows, ROWS), blocks(inner, COLUMNS))


class SwiGLU(torch.autograd.Function):
    """silu(g) * u, and the gradients of both, side by side."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        both = both.contiguous()
        rows, inner, grid = _grid(both)
        y = both.new_empty(*both.shape[:-1], inner)
        with torch.cuda.device(both.get_device()):
            forward_kernel[grid](both, y, rows, inner, ROWS, COLUMNS, num_warps=4)
        return y

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        both, dy = saved[0].contiguous(), dy.contiguous()
        rows, inner, grid = _grid(both)
        dboth = torch.empty_like(both)
        with torch.cuda.device(both.get_device()):
            backward_kernel[grid](both, dy, dboth, rows, inner, ROWS, COLUMNS, num_warps=4)
        return (dboth,)


def swiglu(both: Tensor) -> Tensor:
    """silu(g) * u ``[...,C]`` of g and u side by side, ``[...,2 C]``."""
    y: Tensor = SwiGLU.apply(both)  # type: ignore[no-untyped-call]
    return y


def takes(both: Tensor) -> bool:
    """Whether the kernels read such projections on a GPU."""
    return readable(both)
