"""RMSNorm in one pass each way, from one dtype into another: y = gain * x / sqrt(mean x^2 + eps).

A residual stream is float32 and what is projected has 16 bits: one operation after the other would write float32 and copy it.

N rows, D channels (DP: a power of two)
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .around import added, blocks, once, power_of_2, readable

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
    wide = power_of_2(channels)
    told = {"ROWS": max(HELD // wide, 1), "DP": wide, "num_warps": 8 if wide <= HELD else 16}
    return x.numel() // channels, channels, told


def shared(rows: int, told: dict[str, int]) -> tuple[int, int]:
    """How many programs share the rows of a gain's gradient, and how many steps each takes."""
    steps = blocks(rows, told["ROWS"] * SHARES)
    return blocks(rows, told["ROWS"] * steps), steps


def normed(x: Tensor, gain: Tensor, eps: float, to: torch.dtype) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) in a dtype; x ``[...,D]`` contiguous, gain ``[D]``."""
    rows, channels, told = layout(x)
    y = torch.empty_like(x, dtype=to)
    with torch.cuda.device(x.get_device()):
        forward_kernel[(blocks(rows, told["ROWS"]),)](x, gain, y, rows, channels, eps, **told)
    return y


def gradients(
    x: Tensor, gain: Tensor, dy: Tensor, eps: float, dx: Tensor, *, dstream: Tensor | None = None, again: Tensor | None = None
) -> Tensor:
    """Fill dx, and ``again`` with the same; shares of the gain's gradient ``[.,D]``."""
    rows, channels, told = layout(x)
    programs, steps = shared(rows, told)
    shares = x.new_empty(programs, channels, dtype=torch.float32)
    with torch.cuda.device(x.get_device()):
        backward_kernel[(programs,)](
            x, gain, dy, dstream, dx, again, shares, rows, channels, eps, steps,
            STREAM=dstream is not None, AGAIN=again is not None, **told,
        )  # fmt: skip
    return shares


class Norm(torch.autograd.Function):
    """The norm and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float, to: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, gain)
        ctx.eps = eps
        return normed(x, gain, eps, to)

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain = saved
        dx = torch.empty_like(x)
        shares = gradients(x, gain, dy.contiguous(), ctx.eps, dx)
        return dx, added(shares, gain) if ctx.needs_input_grad[1] else None, None, None


def rms_norm(x: Tensor, gain: Tensor, eps: float, to: torch.dtype) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) in a dtype; x ``[...,D]`` contiguous, gain ``[D]``."""
    y: Tensor = Norm.apply(x, gain, eps, to)  # type: ignore[no-untyped-call]
    return y


def takes(x: Tensor, gain: Tensor) -> bool:
    """Whether the kernels read such rows on a GPU."""
    return readable(x, gain) and x.shape[-1] <= WIDEST
