"""The kernels of the 2-layer MLP memory as one differentiable operation: layouts, block sizes, state in and out.

R sequences, B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .biases import DEVICE, Fused
from .deep_kernels import read_backward, readout, scan, scan_backward

DOTS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Rows(NamedTuple):
    """Where each sequence lies among all tokens, and which chunks are its own."""

    first: Tensor
    length: Tensor
    chunk: Tensor
    row: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: list[int], size: int, device: torch.device) -> Rows:
        """Sequences that lie one behind the other."""
        counts = [-(-length // size) for length in lengths]
        first = [sum(lengths[:i]) for i in range(len(lengths))]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        row = [i for i, count in enumerate(counts) for _ in range(count)]
        tensors = [torch.tensor(x, dtype=torch.int64, device=device) for x in (first, lengths, starts, row)]
        return cls(tensors[0], tensors[1], tensors[2], tensors[3], max(counts))


class Tokens(NamedTuple):
    """What is read, ``[T,H,D]`` for all sequences together; gates ``[T,H,D or 1]``, None where a spec has none."""

    q: Tensor
    k: Tensor
    v: Tensor
    eta: Tensor
    log_alpha: Tensor | None
    delta: Tensor | None


class Weights(NamedTuple):
    """Float32 weights, E-major: W1' and W2 ``[R,H,E,D]``, the anchors where there are any, gain and shift ``[H,D]``."""

    w1: Tensor
    w2: Tensor
    anchor1: Tensor | None
    anchor2: Tensor | None
    gain: Tensor
    shift: Tensor


class Saved(NamedTuple):
    """What the forward pass leaves for the backward one, in the tokens' dtype."""

    starts1: Tensor
    starts2: Tensor
    u1: Tensor
    o: Tensor
    o_q: Tensor
    scores: Tensor


class Result(NamedTuple):
    """y, the weights after the last token, and those at the start of the last chunk where that is not full."""

    y: Tensor
    w1: Tensor
    w2: Tensor
    tail1: Tensor
    tail2: Tensor


def forward(tokens: Tokens, weights: Weights, rows: Rows, size: int, bias: Fused) -> tuple[Result, Saved]:
    """The scan over chunks, then the readout of all of them."""
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    hidden, chunks = weights.w2.shape[2], rows.row.shape[0]
    state1, state2 = weights.w1.clone(), weights.w2.clone()
    starts1 = torch.empty(chunks, heads, hidden, channels, dtype=q.dtype, device=q.device)
    u1, o, o_q = (torch.empty_like(q) for _ in range(3))
    saved = Saved(starts1, torch.empty_like(starts1), u1, o, o_q, _scores(q, chunks, size))
    y, tail1, tail2 = torch.empty_like(q), torch.empty_like(state1), torch.empty_like(state2)
    common = _options(tokens, weights, size)
    block = min(128, triton.next_power_of_2(hidden))
    scan[(rows.first.shape[0], heads)](
        k, v, eta, log_alpha, delta, state1, state2, weights.anchor1, weights.anchor2, weights.gain, weights.shift,
        saved.starts1, saved.starts2, saved.u1, saved.o, tail1, tail2,
        rows.first, rows.length, rows.chunk, heads, channels, hidden, *_strides(eta), *_strides(log_alpha), *_strides(delta),
        EB=block, NE=-(-hidden // block), BIAS=DEVICE[bias.name].gradient, P=bias.p, HAS_DELTA=delta is not None,
        CHUNKS=rows.longest, num_warps=8, num_stages=1, **common,
    )  # fmt: skip
    block = min(64, triton.next_power_of_2(hidden))
    readout[(chunks, heads)](
        q, k, eta, log_alpha, saved.u1, y, saved.o_q, saved.scores, saved.starts1, saved.starts2,
        weights.anchor1, weights.anchor2, weights.gain, weights.shift,
        rows.first, rows.length, rows.chunk, rows.row, heads, channels, hidden, *_strides(eta), *_strides(log_alpha),
        EB=block, NE=-(-hidden // block), BLOCK=min(16, size), num_warps=4, num_stages=2, **common,
    )  # fmt: skip
    return Result(y, state1, state2, tail1, tail2), saved


def _scores(q: Tensor, chunks: int, size: int) -> Tensor:
    return torch.empty(chunks, q.shape[1], size, size, dtype=q.dtype, device=q.device)


def backward(
    tokens: Tokens, weights: Weights, rows: Rows, size: int, bias: Fused, saved: Saved, dy: Tensor, dw1: Tensor, dw2: Tensor
) -> tuple[Tokens, Weights]:
    """The gradients of tokens and weights, given those of y and of the outgoing weights."""
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    hidden, chunks = weights.w2.shape[2], rows.row.shape[0]
    dw1, dw2 = dw1.clone(), dw2.clone()
    common = _options(tokens, weights, size)
    dq, dk, deta, dlog, du1, dv, ddelta = (torch.empty_like(q, dtype=torch.float32) for _ in range(7))
    wide = torch.empty(q.shape[0], heads, hidden, dtype=q.dtype, device=q.device)
    dz, du2 = wide, torch.empty_like(wide)
    dread1, dread2 = torch.empty_like(saved.starts1), torch.empty_like(saved.starts1)
    anchored = weights.anchor1 is not None
    dplain1, dplain2 = (torch.empty_like(dread1), torch.empty_like(dread1)) if anchored else (None, None)
    da1, da2 = (torch.zeros_like(dw1), torch.zeros_like(dw2)) if anchored else (None, None)
    read_gain, read_shift = torch.empty(2, chunks, heads, channels, device=q.device)
    scan_gain, scan_shift = torch.empty(2, rows.first.shape[0], heads, channels, device=q.device)
    block = min(64, triton.next_power_of_2(hidden))
    read_backward[(chunks, heads)](
        q, k, eta, log_alpha, saved.u1, saved.o_q, saved.scores, dy, saved.starts1, saved.starts2,
        weights.anchor1, weights.anchor2, weights.gain,
        dq, dk, deta, dlog, du1, dz, du2, dread1, dread2, read_gain, read_shift, dplain1, dplain2,
        rows.first, rows.length, rows.chunk, rows.row, heads, channels, hidden, *_strides(eta), *_strides(log_alpha),
        EB=block, NE=-(-hidden // block), BLOCK=min(16, size), num_warps=4 if channels <= 64 else 8, num_stages=1, **common,
    )  # fmt: skip
    device = DEVICE[bias.name]
    scan_backward[(rows.first.shape[0], heads)](
        k, v, eta, log_alpha, delta, saved.u1, saved.o, saved.starts1, saved.starts2,
        weights.anchor1, weights.anchor2, weights.gain, weights.shift,
        dk, dv, deta, dlog, ddelta, du1, dz, du2, dread1, dread2, dplain1, dplain2, dw1, dw2, da1, da2, scan_gain, scan_shift,
        rows.first, rows.length, rows.chunk, heads, channels, hidden, *_strides(eta), *_strides(log_alpha), *_strides(delta),
        EB=block, NE=-(-hidden // block), BIAS=device.gradient, SLOPE=device.slope, DELTA_SLOPE=device.delta_slope, P=bias.p,
        HAS_DELTA=delta is not None, CHUNKS=rows.longest, num_warps=8, num_stages=1, **common,
    )  # fmt: skip
    gain, shift = read_gain.sum(0) + scan_gain.sum(0), read_shift.sum(0) + scan_shift.sum(0)
    gates = (_like(deta, eta), _like(dlog, log_alpha), _like(ddelta, delta))
    return Tokens(dq, dk, dv, *gates), Weights(dw1, dw2, da1, da2, gain, shift)  # type: ignore[arg-type]


def _like(gradient: Tensor, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient in the gate's own width."""
    if gate is None:
        return None
    return gradient if gate.shape[2] > 1 else gradient.sum(2, keepdim=True)


def _options(tokens: Tokens, weights: Weights, size: int) -> dict[str, Any]:
    dtype = tokens.q.dtype
    return {
        "C": size,
        "DP": triton.next_power_of_2(tokens.q.shape[2]),
        "HAS_ALPHA": tokens.log_alpha is not None,
        "ANCHORED": weights.anchor1 is not None,
        "DOT": DOTS[dtype],
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }


def _strides(gate: Tensor | None) -> tuple[int, int, int]:
    """Token, head and channel strides of a gate ``[T,H,D or 1]``; a scalar gate stands still along the channels."""
    if gate is None:
        return 0, 0, 0
    return gate.stride(0), gate.stride(1), 0 if gate.shape[2] == 1 else gate.stride(2)
