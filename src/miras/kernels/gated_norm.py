"""What follows a memory in one pass each way: RMSNorm of each head, times its gate, gain * y / sqrt(mean y^2 + eps) * f(g).

N rows, one for each token and head, H heads, V value channels of a head (DP: a power of two)
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
from .launch import DOTS

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


def _tokens(gate: Tensor) -> Tensor:
    """A gate ``[...,H V]`` as the kernels take it: channels side by side, tokens any distance apart."""
    gate = gate.flatten(0, -2)
    return gate if gate.stride(1) == 1 else gate.contiguous()


@torch.library.custom_op("miras::gated_norm", mutates_args=())
def gated_norm(y: Tensor, gain: Tensor, gate: Tensor, eps: float, curve: str) -> Tensor:
    """gain * y / sqrt(mean y^2 + eps) * f(g) ``[...,H V]``; y ``[...,H,V]``, gain ``[V]``, gate ``[...,H V]``."""
    out, y, gate = y.new_empty(gate.shape), y.contiguous(), _tokens(gate)
    rows, channels, told = norm.layout(y)
    grid = (triton.cdiv(rows, told["ROWS"]),)
    with torch.cuda.device(y.get_device()):
        forward_kernel[grid](y, gain, gate, out, rows, y.shape[-2], channels, gate.stride(0), eps, SILU=curve == "silu", **told)
    return out


@gated_norm.register_fake
def _(y, gain, gate, eps, curve):
    return y.new_empty(gate.shape)


@torch.library.custom_op("miras::gated_norm_backward", mutates_args=())
def gated_norm_backward(
    y: Tensor, gain: Tensor, gate: Tensor, dout: Tensor, eps: float, curve: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of y, gain and gate; shares of the gain's are added in one order."""
    dgate, y, gate, dout = gate.new_empty(gate.shape), y.contiguous(), _tokens(gate), dout.contiguous()
    rows, channels, told = norm.layout(y)
    blocks, steps = norm.shared(rows, told)
    dy, shares = torch.empty_like(y), y.new_empty(blocks, channels, dtype=torch.float32)
    with torch.cuda.device(y.get_device()):
        backward_kernel[(blocks,)](
            y, gain, gate, dout, dy, shares, dgate, rows, y.shape[-2], channels, gate.stride(0), eps, steps,
            SILU=curve == "silu", **told,
        )  # fmt: skip
    return dy, shares.sum(0).to(gain.dtype), dgate


@gated_norm_backward.register_fake
def _(y, gain, gate, dout, eps, curve):
    return y.new_empty(y.shape), torch.empty_like(gain), gate.new_empty(gate.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    y, gain, gate, ctx.eps, ctx.curve = inputs
    ctx.save_for_backward(y, gain, gate)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    return (*gated_norm_backward(*ctx.saved_tensors, dout, ctx.eps, ctx.curve), None, None)


gated_norm.register_autograd(_backward, setup_context=_remember)


def takes(y: Tensor, gate: Tensor) -> bool:
    """Whether the kernels read such tokens on a GPU."""
    return norm.takes(y) and gate.dtype in DOTS
