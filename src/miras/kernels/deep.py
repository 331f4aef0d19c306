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
from .deep_kernels import begin_backward, finish, finish_backward, pairs, read_backward, readout, scan, scan_backward

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
    """What the forward pass leaves for the backward one: chunk-start weights, errors, norm inputs, both layers' scores."""

    starts1: Tensor
    starts2: Tensor
    u1: Tensor
    o: Tensor
    o_q: Tensor
    o_anchor: Tensor
    scores1: Tensor
    scores2: Tensor


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
    saved = empty_saved(q, chunks, hidden, size, weights.anchor1 is not None)
    y, tail1, tail2 = torch.empty_like(q), torch.empty_like(state1), torch.empty_like(state2)
    anchors, norm = (weights.anchor1, weights.anchor2), (weights.gain, weights.shift)
    places = (rows.first, rows.length, rows.chunk)
    steps, decays = _strides(eta), _strides(log_alpha)
    plain, pair, inner = _options(tokens, weights, size)
    block, warps = _scan_block(q, hidden)
    scan[(rows.first.shape[0], heads)](
        k, v, eta, log_alpha, delta, state1, state2, *anchors, *norm, saved.starts1, saved.starts2, saved.u1, saved.o, tail1, tail2,
        *places, heads, channels, hidden, *steps, *decays, *_strides(delta),
        EB=block, NE=-(-hidden // block), BIAS=DEVICE[bias.name].gradient, P=bias.p, HAS_DELTA=delta is not None,
        CHUNKS=rows.longest, num_warps=warps, num_stages=1, **plain,
    )  # fmt: skip
    grid = (chunks, heads)
    pairs[grid](
        q, k, eta, log_alpha, saved.scores2, *places, rows.row, heads, channels, *steps, *decays, **pair,
    )  # fmt: skip
    readout[grid](
        q, k, log_alpha, saved.u1, saved.scores2, saved.scores1, saved.o_q, saved.o_anchor, saved.starts1, saved.starts2, *anchors,
        *places, rows.row, heads, channels, hidden, *decays, num_stages=2, **inner, **plain,
    )  # fmt: skip
    finish[grid](
        q, eta, log_alpha, saved.u1, saved.scores1, saved.o_q, saved.o_anchor, y, *norm, *places, rows.row, heads, channels,
        *steps, *decays, ANCHORED=weights.anchor1 is not None, **pair,
    )  # fmt: skip
    return Result(y, state1, state2, tail1, tail2), saved


def empty_saved(q: Tensor, chunks: int, hidden: int, size: int, anchored: bool) -> Saved:
    """Room for what the backward pass needs; the read's norm inputs are summed in float32."""
    heads, channels = q.shape[1:]
    starts1, starts2 = (q.new_empty(chunks, heads, hidden, channels) for _ in range(2))
    scores1, scores2 = (q.new_empty(chunks, heads, size, size) for _ in range(2))
    o_q = torch.empty_like(q, dtype=torch.float32)
    o_anchor = torch.empty_like(o_q) if anchored else o_q.new_empty(0)
    return Saved(starts1, starts2, torch.empty_like(q), torch.empty_like(q), o_q, o_anchor, scores1, scores2)


def backward(
    tokens: Tokens, weights: Weights, rows: Rows, size: int, bias: Fused, saved: Saved, dy: Tensor, dw1: Tensor, dw2: Tensor
) -> tuple[Tokens, Weights]:
    """The gradients of tokens and weights, given those of y and of the outgoing weights."""
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    hidden, chunks = weights.w2.shape[2], rows.row.shape[0]
    dw1, dw2 = dw1.clone(), dw2.clone()
    anchored = weights.anchor1 is not None
    anchors = (weights.anchor1, weights.anchor2)
    places = (rows.first, rows.length, rows.chunk)
    steps, decays = _strides(eta), _strides(log_alpha)
    plain, pair, inner = _options(tokens, weights, size)
    dq, dk, deta, dlog, du1, dv, ddelta = (torch.empty_like(q, dtype=torch.float32) for _ in range(7))
    do = torch.empty_like(q)
    dq_plain = torch.empty_like(dq) if anchored else None
    z, slope, curve, u2, dz, du2 = (q.new_empty(q.shape[0], heads, hidden) for _ in range(6))
    dread1, dread2 = torch.empty_like(saved.starts1), torch.empty_like(saved.starts1)
    dplain1, dplain2 = (torch.empty_like(dread1), torch.empty_like(dread1)) if anchored else (None, None)
    da1, da2 = (torch.zeros_like(dw1), torch.zeros_like(dw2)) if anchored else (None, None)
    dscores1, dscores2 = torch.empty_like(saved.scores1), torch.empty_like(saved.scores1)
    read_gain, read_shift = torch.empty(2, chunks, heads, channels, device=q.device)
    scan_gain, scan_shift = torch.empty(2, rows.first.shape[0], heads, channels, device=q.device)
    grid = (chunks, heads)
    begin_backward[grid](
        eta, log_alpha, saved.u1, saved.scores1, saved.o_q, saved.o_anchor, dy, weights.gain,
        do, dscores1, deta, dlog, du1, read_gain, read_shift, *places, rows.row, heads, channels, *steps, *decays,
        ANCHORED=anchored, **pair,
    )  # fmt: skip
    read_backward[grid](
        q, k, log_alpha, saved.u1, do, saved.scores2, dscores1, dscores2, saved.starts1, saved.starts2, *anchors,
        dq, dq_plain, z, slope, curve, u2, dz, du2, dread1, dread2, dplain1, dplain2,
        *places, rows.row, heads, channels, hidden, *decays, num_stages=1, **inner, **plain,
    )  # fmt: skip
    finish_backward[grid](
        q, k, eta, log_alpha, dy, dscores2, dq, dq_plain, dk, deta, dlog, *places, rows.row, heads, channels, *steps, *decays,
        ANCHORED=anchored, **pair,
    )  # fmt: skip
    device, (block, warps) = DEVICE[bias.name], _reverse_block(q, hidden)
    scan_backward[(rows.first.shape[0], heads)](
        k, v, eta, log_alpha, delta, saved.u1, saved.o, saved.starts1, saved.starts2, *anchors, weights.gain, weights.shift,
        z, slope, curve, u2, dk, dv, deta, dlog, ddelta, du1, dz, du2, dread1, dread2, dplain1, dplain2,
        dw1, dw2, da1, da2, scan_gain, scan_shift, *places, heads, channels, hidden, *steps, *decays, *_strides(delta),
        EB=block, NE=-(-hidden // block), BIAS=device.gradient, SLOPE=device.slope, DELTA_SLOPE=device.delta_slope, P=bias.p,
        HAS_DELTA=delta is not None, CHUNKS=rows.longest, num_warps=warps, num_stages=1, **plain,
    )  # fmt: skip
    gain, shift = read_gain.sum(0) + scan_gain.sum(0), read_shift.sum(0) + scan_shift.sum(0)
    gates = (_like(deta, eta), _like(dlog, log_alpha), _like(ddelta, delta))
    return Tokens(dq, dk, dv, *gates), Weights(dw1, dw2, da1, da2, gain, shift)  # type: ignore[arg-type]


def _like(gradient: Tensor, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient in the gate's own width."""
    if gate is None:
        return None
    return gradient if gate.shape[2] > 1 else gradient.sum(2, keepdim=True)


def _options(tokens: Tokens, weights: Weights, size: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What all kernels are told, what those of pairs are told besides, and the blocks of the read's inner loop."""
    dtype, hidden, wide = tokens.q.dtype, weights.w2.shape[2], triton.next_power_of_2(tokens.q.shape[2])
    common = {
        "C": size,
        "DP": wide,
        "HAS_ALPHA": tokens.log_alpha is not None,
        "DOT": DOTS[dtype],
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }
    # on Hopper, Triton 3.6 compiles the bf16 read with blocks of 32 wrongly (docs/kernels.md); float32 has no room for 64
    block = 32 if dtype == torch.float32 else 64
    inner = {"EB": block, "NE": -(-hidden // block), "num_warps": 4}
    return common | {"ANCHORED": weights.anchor1 is not None}, common | {"BLOCK": min(16, size), "num_warps": 4}, inner


def _scan_block(q: Tensor, hidden: int) -> tuple[int, int]:
    """Hidden channels a step of the scan takes, and its warps: as much as registers and shared memory hold."""
    small = q.dtype == torch.float32 or q.shape[2] > 64
    return min(64 if small else 128, triton.next_power_of_2(hidden)), 8


def _reverse_block(q: Tensor, hidden: int) -> tuple[int, int]:
    """The same for the reverse scan, which holds more at once."""
    small = q.dtype == torch.float32 or q.shape[2] > 64
    return min(32 if small else 64, triton.next_power_of_2(hidden)), 8


def _strides(gate: Tensor | None) -> tuple[int, int, int]:
    """Token, head and channel strides of a gate ``[T,H,D or 1]``; a scalar gate stands still along the channels."""
    if gate is None:
        return 0, 0, 0
    return gate.stride(0), gate.stride(1), 0 if gate.shape[2] == 1 else gate.stride(2)
