"""What follows a memory in one pass each way: RMSNorm of each head, times its gate, gain * y / sqrt(mean y^2 + eps) * f(g).

N rows, one for each token and head, H heads, V value channels of a head (DP: a power of two)
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import norm
from .around import added, blocks, once, readable, tokens

CURVES = ("sigmoid", "silu")


@triton.jit
def tile(x_ptr, row, d, H, V, stride, inside):
    """Rows of a tensor whose tokens lie ``stride`` apart, in float32."""
    at = (row // H)[:, None] * stride + (row % H)[:, None] * V + d[None, :]
    return tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def forward_kernel(
    y_ptr, gain_ptr, gate_ptr, out_ptr, N, H, V, stride, eps, SILU: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr
):
    """out = gain * u * f(g), u = y / sqrt(mean y^2 + eps)."""
    row, d = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    inside = (row < N)[:, None] & (d < V)[None, :]
    y, gate = tile(y_ptr, row, d, H, V, H * V, inside), tile(gate_ptr, row, d, H, V, stride, inside)
    gain = tl.load(gain_ptr + d, mask=d < V, other=0.0).to(tl.float32)
    value = tl.sigmoid(gate)
    if SILU:
        value *= gate
    unit = y * tl.rsqrt(tl.sum(y * y, 1) / V + eps)[:, None]
    tl.store(out_ptr + row[:, None] * V + d[None, :], gain[None, :] * unit * value, mask=inside)


@triton.jit
def backward_kernel(
    y_ptr, gain_ptr, gate_ptr, dout_ptr, dy_ptr, dgain_ptr, dgate_ptr, N, H, V, stride, eps, steps,
    SILU: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """dg = f'(g) gain u dout; with e = f(g) dout: a share of dgain = sum e u, and dy as behind any RMSNorm."""
    block, d = tl.program_id(0).to(tl.int64), tl.arange(0, DP)
    gain = tl.load(gain_ptr + d, mask=d < V, other=0.0).to(tl.float32)[None, :]
    share = tl.zeros([ROWS, DP], dtype=tl.float32)
    for step in range(steps):
        row = (block * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < N)[:, None] & (d < V)[None, :]
        at = row[:, None] * V + d[None, :]
        y, gate = tile(y_ptr, row, d, H, V, H * V, inside), tile(gate_ptr, row, d, H, V, stride, inside)
        dout = tl.load(dout_ptr + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.sigmoid(gate)
        slope = value * (1.0 - value)
        if SILU:
            slope = value + gate * slope
            value *= gate
        inverse = tl.rsqrt(tl.sum(y * y, 1) / V + eps)[:, None]
        unit, error = y * inverse, value * dout
        tl.store(dgate_ptr + at, slope * gain * unit * dout, mask=inside)
        share += error * unit
        error *= gain
        tl.store(dy_ptr + at, inverse * (error - unit * (tl.sum(error * unit, 1) / V)[:, None]), mask=inside)
    tl.store(dgain_ptr + block * V + d, tl.sum(share, 0), mask=d < V)


class GatedNorm(torch.autograd.Function):
    """The norm times its gate, and their gradients."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, gain: Tensor, gate: Tensor, eps: float, curve: str) -> Tensor:
        ctx.save_for_backward(y, gain, gate)
        ctx.eps, ctx.silu = eps, curve == "silu"
        out, y, gate = y.new_empty(gate.shape), y.contiguous(), tokens(gate)
        rows, channels, told = norm.layout(y)
        grid = (blocks(rows, told["ROWS"]),)
        with torch.cuda.device(y.get_device()):
            forward_kernel[grid](y, gain, gate, out, rows, y.shape[-2], channels, gate.stride(0), eps, SILU=ctx.silu, **told)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], dout: Tensor) -> tuple[Tensor | None, ...]:
        y, gain, gate = saved
        dgate, y, gate, dout = gate.new_empty(gate.shape), y.contiguous(), tokens(gate), dout.contiguous()
        rows, channels, told = norm.layout(y)
        programs, steps = norm.shared(rows, told)
        dy, shares = torch.empty_like(y), y.new_empty(programs, channels, dtype=torch.float32)
        with torch.cuda.device(y.get_device()):
            backward_kernel[(programs,)](
                y, gain, gate, dout, dy, shares, dgate, rows, y.shape[-2], channels, gate.stride(0), ctx.eps, steps,
                SILU=ctx.silu, **told,
            )  # fmt: skip
        return dy, added(shares, gain) if ctx.needs_input_grad[1] else None, dgate, None, None


def gated_norm(y: Tensor, gain: Tensor, gate: Tensor, eps: float, curve: str) -> Tensor:
    """gain * y / sqrt(mean y^2 + eps) * f(g) ``[...,H V]``; y ``[...,H,V]``, gain ``[V]``, gate ``[...,H V]``."""
    out: Tensor = GatedNorm.apply(y, gain, gate, eps, curve)  # type: ignore[no-untyped-call]
    return out


def takes(y: Tensor, gain: Tensor, gate: Tensor) -> bool:
    """Whether the kernels read such tokens on a GPU."""
    return norm.takes(y, gain) and readable(gate)
