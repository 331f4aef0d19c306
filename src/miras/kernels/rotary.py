"""Rotary positions in one pass each way: channels j and j + D/2 of a head turned by their token's angle, backwards by its opposite.

N rows, one for each token and head, H heads, D channels of a head (HP: a power of two, at least their half), A tokens of angles
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .around import blocks, power_of_2, readable

# numbers of each half that a program has at once
HELD = 2048


@triton.jit
def kernel(x_ptr, cosine_ptr, sine_ptr, y_ptr, N, H, HALF, A, stride, BACK: tl.constexpr, ROWS: tl.constexpr, HP: tl.constexpr):
    """(x1 cos - x2 sin, x2 cos + x1 sin); angles are the same for every A tokens."""
    row, j = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, HP)
    inside = (row < N)[:, None] & (j < HALF)[None, :]
    token = row // H
    angle = (token % A)[:, None] * HALF + j[None, :]
    cosine, sine = tl.load(cosine_ptr + angle, mask=inside, other=0.0), tl.load(sine_ptr + angle, mask=inside, other=0.0)
    if BACK:
        sine = -sine
    at = token[:, None] * stride + (row % H)[:, None] * (2 * HALF) + j[None, :]
    one = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(x_ptr + at + HALF, mask=inside, other=0.0).to(tl.float32)
    place = row[:, None] * (2 * HALF) + j[None, :]
    tl.store(y_ptr + place, one * cosine - two * sine, mask=inside)
    tl.store(y_ptr + place + HALF, two * cosine + one * sine, mask=inside)


class Rotary(torch.autograd.Function):
    """Turning, and turning back: it is its own inverse's transpose, so this one may be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor, back: bool) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.back = back
        heads, channels = x.shape[2:]
        tokens = x.flatten(0, 1)
        tokens = tokens if tokens.stride()[1:] == (channels, 1) else tokens.contiguous()
        y, rows, half = x.new_empty(x.shape), len(tokens) * heads, channels // 2
        wide, angles = power_of_2(half), cosine.shape[0] * cosine.shape[1]
        told = {"BACK": back, "ROWS": max(HELD // wide, 1), "HP": wide, "num_warps": 4}
        with torch.cuda.device(x.get_device()):
            kernel[(blocks(rows, told["ROWS"]),)](
                tokens, cosine.contiguous(), sine.contiguous(), y, rows, heads, half, angles, tokens.stride(0), **told
            )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cosine, sine = ctx.saved_tensors
        return rotary(dy, cosine, sine, not ctx.back), None, None, None


def rotary(x: Tensor, cosine: Tensor, sine: Tensor, back: bool) -> Tensor:
    """x ``[B,T,H,D]`` turned by the angles, or back; their cosine and sine ``[B or 1,T,D/2]`` in float32."""
    y: Tensor = Rotary.apply(x, cosine, sine, back)  # type: ignore[no-untyped-call]
    return y


def takes(x: Tensor) -> bool:
    """Whether the kernel turns such heads on a GPU."""
    return readable(x)
