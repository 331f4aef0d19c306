"""Queries and keys less the mean of the keys so far, of unit length again, in one pass each way.

A program has a sequence and head and goes through its tokens block by block, forwards with the sum of the keys, backwards with
the sum of what their means have received. What was scaled is scaled back from the result, so the input is not kept.

B batch, T time, H heads, D key channels (DP: a power of two)
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .around import once, power_of_2, readable

# numbers of each tensor that a program has at once
HELD, WIDEST = 4096, 512


@triton.jit
def less(x_ptr, y_ptr, inverse_ptr, mean, at, row, there, inside, eps):
    """y = u / sqrt(||u||^2 + eps) for u = x - mean, and the root's inverse."""
    u = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) - mean
    inverse = tl.rsqrt(tl.sum(tl.where(inside, u * u, 0.0), 1) + eps)
    tl.store(y_ptr + at, u * inverse[:, None], mask=inside)
    tl.store(inverse_ptr + row, inverse, mask=there)


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, before_ptr, seen_ptr, centred_q_ptr, centred_k_ptr, inverse_q_ptr, inverse_k_ptr, after_ptr, T, H, D, eps,
    ROWS: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """m_t = (sum of the keys up to t) / (t + 1), and both less that."""
    program, d = tl.program_id(0).to(tl.int64), tl.arange(0, DP)
    batch, head = program // H, program % H
    seen = tl.load(seen_ptr + batch)
    total = tl.load(before_ptr + program * D + d, mask=d < D, other=0.0)
    for first in range(0, T, ROWS):
        t = first + tl.arange(0, ROWS)
        row = (batch * T + t) * H + head
        there = t < T
        inside = there[:, None] & (d < D)[None, :]
        at = row[:, None] * D + d[None, :]
        k = tl.load(k_ptr + at, mask=inside, other=0.0).to(tl.float32)
        mean = (tl.cumsum(k, 0) + total[None, :]) / (seen + t + 2).to(tl.float32)[:, None]
        less(q_ptr, centred_q_ptr, inverse_q_ptr, mean, at, row, there, inside, eps)
        less(k_ptr, centred_k_ptr, inverse_k_ptr, mean, at, row, there, inside, eps)
        total += tl.sum(k, 0)
    tl.store(after_ptr + program * D + d, total, mask=d < D)


@triton.jit
def back(y_ptr, dy_ptr, inverse_ptr, at, row, there, inside):
    """du = (dy - y (y . dy)) / sqrt(||u||^2 + eps)."""
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.load(inverse_ptr + row, mask=there, other=0.0)
    return inverse[:, None] * (dy - y * tl.sum(y * dy, 1)[:, None])


@triton.jit
def backward_kernel(
    centred_q_ptr, centred_k_ptr, inverse_q_ptr, inverse_k_ptr, seen_ptr, dy_q_ptr, dy_k_ptr, dafter_ptr, dq_ptr, dk_ptr, dbefore_ptr,
    T, H, D, ROWS: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """With g_t = -(du_q + du_k) / (t + 1), what a mean gives to each of its keys: dk_s = du_k + the sum of g_t from s on."""
    program, d = tl.program_id(0).to(tl.int64), tl.arange(0, DP)
    batch, head = program // H, program % H
    seen = tl.load(seen_ptr + batch)
    later = tl.load(dafter_ptr + program * D + d, mask=d < D, other=0.0)
    for block in range(tl.cdiv(T, ROWS)):
        t = (tl.cdiv(T, ROWS) - 1 - block) * ROWS + tl.arange(0, ROWS)
        row = (batch * T + t) * H + head
        there = t < T
        inside = there[:, None] & (d < D)[None, :]
        at = row[:, None] * D + d[None, :]
        dq = back(centred_q_ptr, dy_q_ptr, inverse_q_ptr, at, row, there, inside)
        dk = back(centred_k_ptr, dy_k_ptr, inverse_k_ptr, at, row, there, inside)
        g = -(dq + dk) / (seen + t + 2).to(tl.float32)[:, None]
        tl.store(dq_ptr + at, dq, mask=inside)
        tl.store(dk_ptr + at, dk + tl.cumsum(g, 0, reverse=True) + later[None, :], mask=inside)
        later += tl.sum(g, 0)
    tl.store(dbefore_ptr + program * D + d, later, mask=d < D)


def layout(k: Tensor) -> tuple[tuple[int], tuple[int, int, int], dict[str, int]]:
    """The programs, the sizes, and what the kernels are told at compile time."""
    batch, time, heads, channels = k.shape
    wide = power_of_2(channels)
    return (batch * heads,), (time, heads, channels), {"ROWS": HELD // wide, "DP": wide, "num_warps": 8}


class Centre(torch.autograd.Function):
    """Both centred, and their gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, before: Tensor, seen: Tensor, eps: float) -> tuple[Tensor, ...]:
        programs, sizes, told = layout(k)
        made = torch.empty_like(q), torch.empty_like(k)
        inverse = k.new_empty(2, *k.shape[:3], dtype=torch.float32)
        after = torch.empty_like(before)
        with torch.cuda.device(k.get_device()):
            forward_kernel[programs](q, k, before, seen, *made, *inverse, after, *sizes, eps, **told)
        ctx.save_for_backward(*made, *inverse, seen)
        return *made, after

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy_q: Tensor, dy_k: Tensor, dafter: Tensor) -> tuple[Tensor | None, ...]:
        programs, sizes, told = layout(dy_k)
        dq, dk, dbefore = torch.empty_like(saved[0]), torch.empty_like(saved[1]), torch.empty_like(dafter)
        outer = (x.contiguous() for x in (dy_q, dy_k, dafter))
        with torch.cuda.device(dk.get_device()):
            backward_kernel[programs](*saved, *outer, dq, dk, dbefore, *sizes, **told)
        return dq, dk, dbefore, None, None


def centred(q: Tensor, k: Tensor, before: Tensor, seen: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """As ``miras.nn.centre.centred`` of sequences that are rows; eps under the root of a length."""
    made: tuple[Tensor, Tensor, Tensor] = Centre.apply(q.contiguous(), k.contiguous(), before.contiguous(), seen, eps)  # type: ignore[no-untyped-call]
    return made


def takes(q: Tensor, k: Tensor) -> bool:
    """Whether the kernels read such queries and keys on a GPU."""
    return readable(q, k) and k.shape[-1] <= WIDEST
