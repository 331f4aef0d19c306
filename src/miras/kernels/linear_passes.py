"""Both passes of the 1-layer MLP memory: their kernels in a row.

R sequences, T tokens of all of them, H heads, D channels, N chunks
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arguments import Rows, Tokens
from .biases import DEVICE, Fused
from .gate_kernels import bias_backward, linearise
from .launch import DOTS, FULL, in_width, products_of, strides
from .linear_backward_kernels import (
    linear_anchor_backward,
    linear_read_backward,
    linear_scan_backward,
    linear_write_backward,
)
from .linear_kernels import linear_readout, linear_scan, linear_steps


class Weight(NamedTuple):
    """A float32 weight W' ``[R,H,D,D]``, its anchor where there is one, gain and shift ``[H,D]``."""

    w: Tensor
    anchor: Tensor | None
    gain: Tensor
    shift: Tensor


class Result(NamedTuple):
    """y, the weight after the last token, and that at the start of the last chunk where that is not full."""

    y: Tensor
    w: Tensor
    tail: Tensor


class Saved(NamedTuple):
    """What the forward pass leaves for the backward one.

    The weight at each chunk's start (less its anchor, where there is one), the errors u1 and their norm's inputs; under a decay also each write's step at its chunk's
    end and the decay of each chunk, empty otherwise.
    """

    starts: Tensor
    u1: Tensor
    o: Tensor
    late: Tensor
    kept: Tensor


class Options(NamedTuple):
    """The compile-time arguments and launch settings of each kind of kernel."""

    shape: dict[str, Any]
    scan: dict[str, Any]
    scan_backward: dict[str, Any]
    read: dict[str, Any]
    write: dict[str, Any]


def options(q: Tensor, size: int, decays: bool, anchored: bool) -> Options:
    """What the kernels are told."""
    wide, exact = triton.next_power_of_2(q.shape[2]), q.dtype == torch.float32
    shape = {"C": size, "DP": wide}
    products = products_of(q.dtype)
    alpha, anchor = {"HAS_ALPHA": decays}, {"ANCHORED": anchored}
    # float16 has no room for the exponents that split a decay between two tokens
    pairs = {"PAIR": tl.float32 if q.dtype == torch.float16 else DOTS[q.dtype], "BLOCK": min(16, size)}
    common = shape | products | alpha
    parallel = {"num_warps": 8 if exact or size * wide > 2048 else 4, "num_stages": 1}
    return Options(
        shape=shape,
        # with two stages the next chunk's tokens are copied to shared memory while this one's are used
        scan=common | anchor | {"num_warps": 8, "num_stages": 2},
        scan_backward=common | {"num_warps": 8, "num_stages": 2},
        read=common | anchor | pairs | parallel,
        write=common | anchor | parallel,
    )


def forward(tokens: Tokens, weight: Weight, rows: Rows, size: int, bias: Fused, keeps: bool = True) -> tuple[Result, Saved]:
    """The steps at each chunk's end, the scan over chunks, then the readout of all of them; it ``keeps`` what the backward pass needs."""
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    w, anchor, gain, shift = weight
    say = options(q, size, log_alpha is not None, anchor is not None)
    result, saved = empty_result(q, w), empty_saved(q, rows.row.shape[0], log_alpha is not None, keeps)
    places, sizes = (rows.first, rows.length, rows.chunk), (heads, channels)
    grid, programs = (rows.row.shape[0] * heads,), (rows.first.shape[0], heads)
    if log_alpha is not None:
        linear_steps[grid](
            eta, log_alpha, saved.late, saved.kept, *places, rows.row, *sizes, *strides(eta), *strides(log_alpha), **say.shape, num_warps=4,
        )  # fmt: skip
    late = eta if log_alpha is None else saved.late
    linear_scan[programs](
        k, v, late, saved.kept, delta, w, anchor, gain, shift, saved.starts, saved.u1, saved.o if keeps else None, result.w, result.tail,
        *places, *sizes, *strides(late), *strides(delta), BIAS=DEVICE[bias.name].gradient, P=bias.p, HAS_DELTA=delta is not None, **say.scan,
    )  # fmt: skip
    linear_readout[grid](
        q, k, eta, log_alpha, saved.u1, saved.starts, anchor, gain, shift, result.y,
        *places, rows.row, *sizes, *strides(eta), *strides(log_alpha), **say.read,
    )  # fmt: skip
    return result, saved


def backward(
    tokens: Tokens, weight: Weight, rows: Rows, size: int, bias: Fused, saved: Saved, outer: Result
) -> tuple[Tokens, Weight]:
    """The gradients of tokens and weight, given those of the results, ``outer``."""
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    w, anchor, gain, shift = weight
    chunks, sequences = rows.row.shape[0], rows.first.shape[0]
    say = options(q, size, log_alpha is not None, anchor is not None)
    places, sizes = (rows.first, rows.length, rows.chunk), (heads, channels)
    where = (*places, rows.row, *sizes)
    steps, decays, thresholds = strides(eta), strides(log_alpha), strides(delta)
    grid, programs = (chunks * heads,), (sequences, heads)
    dq, dk, dv, dx, dwrite, do, unit, pull, bend = (torch.empty_like(q) for _ in range(9))
    dread, du1, deta, dlog, ddelta = (torch.empty_like(q, dtype=torch.float32) for _ in range(5))
    shares, ends, dw = torch.empty_like(saved.starts), torch.empty_like(saved.starts), torch.empty_like(w)
    danchor, da = (None, None) if anchor is None else (torch.empty_like(saved.starts), torch.empty_like(w))
    dgain, dshift = torch.empty(2, 2, chunks, heads, channels, device=q.device)
    linear_read_backward[grid](
        q, k, eta, log_alpha, saved.u1, saved.starts, anchor, gain, outer.y,
        dq, dread, dx, dwrite, dlog, shares, danchor, dgain[0], dshift[0], *where, *steps, *decays, **say.read,
    )  # fmt: skip
    device = DEVICE[bias.name]
    told = {"BIAS": device.gradient, "SLOPE": device.slope, "P": bias.p, "HAS_DELTA": delta is not None}
    inverse, mean = torch.empty(2, *q.shape[:2], device=q.device)
    linearise[grid](
        k, v, delta, saved.o, gain, shift, unit, pull, bend, inverse, mean, *where, *thresholds, **say.shape, **told, num_warps=4,
    )  # fmt: skip
    late = eta if log_alpha is None else saved.late
    linear_scan_backward[programs](
        k, late, saved.kept, saved.u1, unit, pull, bend, inverse, mean, dwrite, du1, do, shares, ends, outer.w, outer.tail, dw,
        *places, *sizes, *strides(late), **say.scan_backward,
    )  # fmt: skip
    bias_backward[grid](
        k, v, delta, saved.o, gain, shift, du1, dv, ddelta, dgain[1], dshift[1], *where, *thresholds,
        **say.shape, DELTA_SLOPE=device.delta_slope, **told, **FULL,
    )  # fmt: skip
    linear_write_backward[grid](
        k, eta, log_alpha, saved.u1, do, dx, dv, saved.starts, anchor, ends, dread, dk, deta, dlog,
        *where, *steps, *decays, **say.write,
    )  # fmt: skip
    if anchor is not None:
        linear_anchor_backward[(*programs, triton.cdiv(channels, 16))](
            saved.kept, ends, danchor, da, rows.length, rows.chunk, *sizes, **say.shape, EB=16, num_warps=4,
        )  # fmt: skip
    gates = (in_width(deta, eta), in_width(dlog, log_alpha), in_width(ddelta, delta))
    return Tokens(dq, dk, dv, *gates), Weight(dw, da, dgain.sum((0, 1)), dshift.sum((0, 1)))  # type: ignore[arg-type]


def empty_result(q: Tensor, w: Tensor) -> Result:
    """Room for the results."""
    return Result(torch.empty_like(q), torch.empty_like(w), torch.empty_like(w))


def empty_saved(q: Tensor, chunks: int, decays: bool, keeps: bool) -> Saved:
    """Room for what the backward pass needs, or, unless it ``keeps`` that, for what the forward pass itself reads again."""
    heads, channels = q.shape[1:]
    late = torch.empty_like(q) if decays else q.new_empty(0)
    kept = q.new_empty((chunks, heads, channels) if decays else 0, dtype=torch.float32)
    starts = q.new_empty(chunks, heads, channels, channels)
    return Saved(starts, torch.empty_like(q), torch.empty_like(q) if keeps else q.new_empty(0), late, kept)
