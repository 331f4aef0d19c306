"""Launching the kernels of the 2-layer MLP memory: layouts, block sizes, the state in and out.

B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .biases import DEVICE, Fused
from .deep_kernels import readout, scan

DOTS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Rows(NamedTuple):
    """Where each sequence lies among all tokens, and which chunks are its own."""

    first: Tensor
    length: Tensor
    chunk: Tensor
    row: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: list[int], first: list[int], size: int, device: torch.device) -> Rows:
        """The rows of sequences that begin at ``first`` among all tokens."""
        counts = [-(-length // size) for length in lengths]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        row = [i for i, count in enumerate(counts) for _ in range(count)]
        tensors = (torch.tensor(x, dtype=torch.int64, device=device) for x in (first, lengths, starts, row))
        return cls(*tensors, longest=max(counts))


class Result(NamedTuple):
    """y, the weights after the last token, and at the start of the last chunk where that is not full."""

    y: Tensor
    w1: Tensor
    w2: Tensor
    tail1: Tensor
    tail2: Tensor


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eta: Tensor,
    log_alpha: Tensor | None,
    delta: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    anchor: tuple[Tensor, Tensor] | None,
    gain: Tensor,
    shift: Tensor,
    rows: Rows,
    size: int,
    bias: Fused,
) -> Result:
    """y ``[B,T,H,D]`` from tokens in any of the dot dtypes, weights W1 ``[R,H,D,E]`` and W2 ``[R,H,E,D]`` in float32."""
    heads, channels = q.shape[2], q.shape[3]
    hidden = w2.shape[2]
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    state1, state2 = w1.mT.contiguous().clone(), w2.contiguous().clone()
    anchor1, anchor2 = (state1, state2) if anchor is None else (anchor[0].mT.contiguous(), anchor[1].contiguous())
    chunks = rows.row.shape[0]
    starts1 = torch.empty(chunks, heads, hidden, channels, dtype=q.dtype, device=q.device)
    starts2 = torch.empty_like(starts1)
    u1, y = torch.empty_like(q), torch.empty_like(q)
    tail1, tail2 = torch.empty_like(state1), torch.empty_like(state2)
    eta, log_alpha, delta = (None if x is None else x.flatten(0, 1) for x in (eta, log_alpha, delta))
    wide = triton.next_power_of_2(channels)
    options: dict[str, Any] = {
        "C": size,
        "DP": wide,
        "HAS_ALPHA": log_alpha is not None,
        "ANCHORED": anchor is not None,
        "DOT": DOTS[q.dtype],
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }
    block = min(128, triton.next_power_of_2(hidden))
    scan[(rows.first.shape[0], heads)](
        k, v, eta, log_alpha, delta, state1, state2, anchor1, anchor2, gain, shift, starts1, starts2, u1, tail1, tail2,
        rows.first, rows.length, rows.chunk, heads, channels, hidden,
        *_strides(eta), *_strides(log_alpha), *_strides(delta),
        EB=block, NE=-(-hidden // block), BIAS=DEVICE[bias.name], P=bias.p, HAS_DELTA=bias.reads_delta, CHUNKS=rows.longest,
        num_warps=8, num_stages=1, **options,
    )  # fmt: skip
    block = min(64, triton.next_power_of_2(hidden))
    readout[(chunks, heads)](
        q, k, eta, log_alpha, u1, y, starts1, starts2, anchor1, anchor2, gain, shift,
        rows.first, rows.length, rows.chunk, rows.row, heads, channels, hidden,
        *_strides(eta), *_strides(log_alpha),
        EB=block, NE=-(-hidden // block), BLOCK=min(16, size), num_warps=4, num_stages=2, **options,
    )  # fmt: skip
    return Result(y, state1.mT, state2, tail1.mT, tail2)


def _strides(gate: Tensor | None) -> tuple[int, int, int]:
    """Token, head and channel strides of a gate ``[T,H,D or 1]``; a scalar gate stands still along the channels."""
    if gate is None:
        return 0, 0, 0
    return gate.stride(0), gate.stride(1), 0 if gate.shape[2] == 1 else gate.stride(2)
