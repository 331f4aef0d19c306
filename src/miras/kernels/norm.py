"""RMSNorm in one pass each way, from one dtype into another: y = gain * x / sqrt(mean x^2 + eps).

A residual stream is float32 and what is projected has 16 bits: one operation after the other would write float32 and copy it.

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

from .launch import DOTS

# a wider row does not fit a program's registers
WIDEST = 8192
# numbers of x that a program has at once, and about how many programs share the rows of a gain's gradient
HELD, SHARES = 4096, 1024


@triton.jit
def forward_kernel(x_ptr, gain_ptr, y_ptr, N, D, eps, ROWS: tl.constexpr, DP: tl.constexpr):
    """y = gain * x / sqrt(mean x^2 + eps)."""
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    inside = (row < N)[:, None] & (d < D)[None, :]
    at = row[:, None] * D + d[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    tl.store(y_ptr + at, gain[None, :] * x * inverse[:, None], mask=inside)


@triton.jit
def backward_kernel(
    x_ptr, gain_ptr, dy_ptr, dstream_ptr, dx_ptr, again_ptr, dgain_ptr, N, D, eps, steps,
    STREAM: tl.constexpr, AGAIN: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """With u = x / sqrt(mean x^2 + eps) and g = gain dy: dx = (g - u mean(g u)) / sqrt(...), and a share of dgain = sum dy u.

    Where x goes on past its norm, what comes back along the stream is added; ``AGAIN`` writes dx once more, in another dtype.
    """
    block, d = tl.program_id(0).to(tl.int64), tl.arange(0, DP)
    gain = tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    share = tl.zeros([ROWS, DP], dtype=tl.float32)
    for step in range(steps):
        row = (block * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < N)[:, None] & (d < D)[None, :]
        at = row[:, None] * D + d[None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        unit, g = x * inverse, gain[None, :] * dy
        share += dy * unit
        dx = inverse * (g - unit * (tl.sum(g * unit, 1) / D)[:, None])
        if STREAM:
            dx += tl.load(dstream_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx, mask=inside)
        if AGAIN:
            tl.store(again_ptr + at, dx, mask=inside)
    tl.store(dgain_ptr + block * D + d, tl.sum(share, 0), mask=d < D)


def layout(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Rows, channels, and what the kernels are told at compile time."""
    channels = x.shape[-1]
    wide = triton.next_power_of_2(channels)
    told = {"ROWS": max(HELD // wide, 1), "DP": wide, "num_warps": 8 if wide <= HELD else 16}
    return x.numel() // channels, channels, told


def shared(rows: int, told: dict[str, int]) -> tuple[int, int]:
    """How many programs share the rows of a gain's gradient, and how many steps each takes."""
    steps = triton.cdiv(rows, told["ROWS"] * SHARES)
    return triton.cdiv(rows, told["ROWS"] * steps), steps


def gradients(
    x: Tensor, gain: Tensor, dy: Tensor, eps: float, dx: Tensor, *, dstream: Tensor | None = None, again: Tensor | None = None
) -> Tensor:
    """Fill dx, and ``again`` with the same; the gain's gradient, whose shares are added in one order."""
    rows, channels, told = layout(x)
    blocks, steps = shared(rows, told)
    shares = x.new_empty(blocks, channels, dtype=torch.float32)
    with torch.cuda.device(x.get_device()):
        backward_kernel[(blocks,)](
            x, gain, dy, dstream, dx, again, shares, rows, channels, eps, steps,
            STREAM=dstream is not None, AGAIN=again is not None, **told,
        )  # fmt: skip
    return shares.sum(0).to(gain.dtype)


@torch.library.custom_op("miras::rms_norm", mutates_args=())
def rms_norm(x: Tensor, gain: Tensor, eps: float, to: torch.dtype) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) in a dtype; x ``[...,D]`` contiguous, gain ``[D]``."""
    rows, channels, told = layout(x)
    y = torch.empty_like(x, dtype=to)
    with torch.cuda.device(x.get_device()):
        forward_kernel[(triton.cdiv(rows, told["ROWS"]),)](x, gain, y, rows, channels, eps, **told)
    return y


@rms_norm.register_fake
def _(x, gain, eps, to):
    return torch.empty_like(x, dtype=to)


@torch.library.custom_op("miras::rms_norm_backward", mutates_args=())
def rms_norm_backward(x: Tensor, gain: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradients of x and gain."""
    dx = torch.empty_like(x)
    return dx, gradients(x, gain, dy, eps, dx)


@rms_norm_backward.register_fake
def _(x, gain, dy, eps):
    return torch.empty_like(x), torch.empty_like(gain)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gain, ctx.eps, _ = inputs
    ctx.save_for_backward(x, gain)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
    return (*rms_norm_backward(*ctx.saved_tensors, dy.contiguous(), ctx.eps), None, None)


rms_norm.register_autograd(_backward, setup_context=_remember)


def takes(x: Tensor) -> bool:
    """Whether the kernels read such rows on a GPU."""
    return x.dtype in DOTS and x.numel() > 0 and x.shape[-1] <= WIDEST
