"""The kernels of the 2-layer MLP memory as one differentiable operation: layouts, block sizes, state in and out.

R sequences, B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

import os
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .backward_kernels import (
    anchor_backward,
    begin_backward,
    finish_backward,
    gate_backward,
    linearise,
    read_backward,
    scan_backward,
    write_backward,
)
from .biases import DEVICE, Fused
from .forward_kernels import finish, prepare, readout, scan

# as many registers a thread as let two programs of eight warps share a multiprocessor
FULL = {"num_warps": 8, "maxnreg": 128}
# Gluon is experimental: its kernels run where they were compared
RESIDENT = triton.__version__.startswith("3.6.") and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
# the anchored parallel kernels in Gluon compile, but no GPU has compared them yet
RESIDENT_ANCHORED = False
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
DOTS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class Rows(NamedTuple):
    """Where each sequence lies among all tokens, and which chunks are its own."""

    first: Tensor
    length: Tensor
    chunk: Tensor
    row: Tensor

    @classmethod
    def of(cls, lengths: list[int], size: int, device: torch.device) -> Rows:
        """Sequences that lie one behind the other."""
        counts = [-(-length // size) for length in lengths]
        first, starts = ([0, *accumulate(x)][:-1] for x in (lengths, counts))
        row = [i for i, count in enumerate(counts) for _ in range(count)]
        tensors = (torch.tensor(x, dtype=torch.int64).to(device, non_blocking=True) for x in (first, lengths, starts, row))
        return cls(*tensors)


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


class Momentum(NamedTuple):
    """The momentum and what its gates make of a chunk, all float32.

    S of both weights ``[R,H,E,D]``; the pair factors kappa ``[N,H,C,C]``, sigma ``[N,H,C]``, what of S each token reads, and
    the products of mu from a token to its chunk's end ``[N,H,C]`` and over all of it ``[N,H]``.
    """

    speed1: Tensor
    speed2: Tensor
    kappa: Tensor
    sigma: Tensor
    grown: Tensor
    grown_end: Tensor


NO_MOMENTUM = (None,) * len(Momentum._fields)


class Link(NamedTuple):
    """W = A / max(||A||_q, floor)^(q-2), one norm a weight; q is 0 where the weights are read as they accumulate.

    The masses are what a column of W1 and of W2 sums to where a chunk's first token maps them by a softmax, else 0.
    """

    q: float = 0.0
    floor: float = 0.0
    mass1: float = 0.0
    mass2: float = 0.0


class Lead(NamedTuple):
    """What a chunk's first token takes its own step with, float32: the token and its gates ``[N,H,D]``, log A_0 ``[R,H,E,D]``.

    delta and the anchors are empty where there are none.
    """

    k: Tensor
    v: Tensor
    eta: Tensor
    log_alpha: Tensor
    delta: Tensor
    log_anchor1: Tensor
    log_anchor2: Tensor


NO_LEAD = (None,) * len(Lead._fields)


class Saved(NamedTuple):
    """What the forward pass leaves for the backward one.

    The weights at each chunk's start, the errors u1, both norms' inputs, both layers' scores, the decayed queries, each write's
    step at its chunk's end, bare and times -k and -u1, and the decay of each chunk. With momentum also its value at each chunk's
    start, what the read takes from it, and each write's step in it, bare and times -k and -u1; with a link the norms of each
    sequence's states; where a chunk's first token has a step of its own, the weights that it found and its norm's input. Empty
    otherwise.
    """

    starts1: Tensor
    starts2: Tensor
    u1: Tensor
    o: Tensor
    o_q: Tensor
    o_anchor: Tensor
    scores1: Tensor
    scores2: Tensor
    late_q: Tensor
    late: Tensor
    late_k: Tensor
    late_u1: Tensor
    kept: Tensor
    speeds1: Tensor
    speeds2: Tensor
    o_speed: Tensor
    slow: Tensor
    slow_k: Tensor
    slow_u1: Tensor
    norms: Tensor
    before1: Tensor
    before2: Tensor
    lead_o: Tensor


class Result(NamedTuple):
    """y, the weights after the last token, those at the start of the last chunk where that is not full, the momentum (or nothing)."""

    y: Tensor
    w1: Tensor
    w2: Tensor
    tail1: Tensor
    tail2: Tensor
    speed1: Tensor
    speed2: Tensor


def forward(
    tokens: Tokens,
    weights: Weights,
    momentum: Momentum | None,
    lead: Lead | None,
    rows: Rows,
    size: int,
    bias: Fused,
    link: Link,
) -> tuple[Result, Saved]:
    """What no weight enters, the scan over chunks, then the readout of all of them."""
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    hidden, chunks = weights.w2.shape[2], rows.row.shape[0]
    moves = momentum is not None
    saved = empty_saved(q, weights, chunks, size, moves, link)
    result = empty_result(q, weights, moves)
    speed1, speed2, kappa, sigma, grown, grown_end = momentum or NO_MOMENTUM
    anchors, norm = (weights.anchor1, weights.anchor2), (weights.gain, weights.shift)
    places = (rows.first, rows.length, rows.chunk)
    steps, decays = _strides(eta), _strides(log_alpha)
    say = options(q, size, hidden, tokens.log_alpha is not None, weights.anchor1 is not None, moves, link)
    grid = (chunks, heads)
    prepare[grid](
        q, k, eta, log_alpha, saved.scores2, saved.late_q, saved.late, saved.late_k, saved.kept, kappa, grown, saved.slow, saved.slow_k,
        *places, rows.row, heads, channels, *steps, *decays, **say.pairs,
    )  # fmt: skip
    states = (
        weights.w1, weights.w2, *anchors, *norm, saved.starts1, saved.starts2, saved.u1, saved.late_u1, saved.o, *result[1:5],
    )  # fmt: skip
    where = (*places, heads, channels, hidden)
    device = {"BIAS": DEVICE[bias.name].gradient, "P": bias.p, "HAS_DELTA": delta is not None, "ANCHORED": say.anchored}
    programs = (rows.first.shape[0], heads)
    if say.resident:
        from .resident_kernels import scan_resident

        whole = None if delta is None else delta.expand_as(q).contiguous()
        scan_resident[programs](k, v, saved.late, saved.late_k, saved.kept, whole, *states, *where, **device, num_warps=8)
    else:
        scan[programs](
            k, v, saved.late, saved.late_k, saved.kept, delta, *states, saved.slow, saved.slow_k, saved.slow_u1, sigma, grown_end,
            speed1, speed2, saved.speeds1, saved.speeds2, *result[5:], saved.norms,
            *(lead or NO_LEAD), saved.lead_o, saved.before1, saved.before2, *where, *_strides(delta), **device, **say.scan,
        )  # fmt: skip
    read = (saved.scores2, saved.scores1, saved.o_q)
    if say.reads_resident:
        from .resident_reads import readout_resident

        readout_resident[grid](
            q, saved.late_q, k, saved.u1, *read, saved.o_anchor, saved.starts1, saved.starts2, *_rounded(anchors, q),
            *places, rows.row, heads, channels, hidden, ANCHORED=say.anchored, **FULL,
        )  # fmt: skip
    else:
        readout[grid](
            q, saved.late_q, k, saved.u1, *read, saved.o_anchor, saved.starts1, saved.starts2, *anchors,
            sigma, saved.speeds1, saved.speeds2, saved.o_speed, saved.norms, *places, rows.row, heads, channels, hidden,
            ANCHORED=say.anchored, **say.read,
        )  # fmt: skip
    finish[grid](
        q, eta, log_alpha, saved.u1, saved.scores1, saved.o_q, saved.o_anchor, result.y, *norm, kappa, sigma, saved.o_speed, saved.norms,
        *places, rows.row, heads, channels, *steps, *decays, ANCHORED=say.anchored, LINK=link.q, **say.pairs,
    )  # fmt: skip
    return result, saved


def empty_result(q: Tensor, weights: Weights, moves: bool) -> Result:
    """Room for the results."""
    speeds = (torch.empty_like(weights.w1) if moves else weights.w1.new_empty(0) for _ in range(2))
    return Result(torch.empty_like(q), *(torch.empty_like(weights.w1) for _ in range(4)), *speeds)


def empty_saved(q: Tensor, weights: Weights, chunks: int, size: int, moves: bool, link: Link) -> Saved:
    """Room for what the backward pass needs; the read's norm inputs are summed in float32."""
    rows, heads, hidden, channels = weights.w2.shape
    starts1, starts2 = (q.new_empty(chunks, heads, hidden, channels) for _ in range(2))
    scores1, scores2 = (q.new_empty(chunks, heads, size, size) for _ in range(2))
    o_q = torch.empty_like(q, dtype=torch.float32)
    o_anchor = torch.empty_like(o_q) if weights.anchor1 is not None else o_q.new_empty(0)
    u1, o, late_q, late, late_k, late_u1 = (torch.empty_like(q) for _ in range(6))
    kept = o_q.new_empty(chunks, heads, channels)
    plain = (starts1, starts2, u1, o, o_q, o_anchor, scores1, scores2, late_q, late, late_k, late_u1, kept)
    momentum = (starts1, starts2, o_q, q, q, q)
    own = [torch.empty_like(x) if moves else x.new_empty(0) for x in momentum]
    own.append(o_q.new_empty((chunks + rows, heads, 2) if link.q > 0 else 0))
    own += [torch.empty_like(x) if link.mass1 > 0 else x.new_empty(0) for x in (starts1, starts2, kept)]
    return Saved(*plain, *own)


def backward(
    tokens: Tokens,
    weights: Weights,
    momentum: Momentum | None,
    lead: Lead | None,
    rows: Rows,
    size: int,
    bias: Fused,
    link: Link,
    ends: tuple[Tensor, Tensor],
    saved: Saved,
    outer: Result,
) -> tuple[Tokens, Weights, Momentum | None, Lead | None]:
    """The gradients of tokens, weights, momentum and first tokens, given those of the results, ``outer``; ``ends`` are the outgoing weights."""
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    hidden, chunks = weights.w2.shape[2], rows.row.shape[0]
    dy, dw1, dw2 = outer.y, outer.w1.clone(), outer.w2.clone()
    anchors, norm = (weights.anchor1, weights.anchor2), (weights.gain, weights.shift)
    places = (rows.first, rows.length, rows.chunk)
    steps, decays, thresholds = _strides(eta), _strides(log_alpha), _strides(delta)
    say = options(q, size, hidden, log_alpha is not None, weights.anchor1 is not None, momentum is not None, link)
    dscale = torch.empty(chunks, heads, 5, device=q.device) if link.q > 0 else None
    _, _, kappa, sigma, grown, grown_end = momentum or NO_MOMENTUM
    own = _momentum_room(q, momentum, saved, rows, outer)
    device = DEVICE[bias.name]
    dread, dwhole, dlog, du1 = (torch.empty_like(q, dtype=torch.float32) for _ in range(4))
    do, late_do, dx = (torch.empty_like(q) for _ in range(3))
    inverse, mean = torch.empty(2, *q.shape[:2], device=q.device)
    z, slope, curve = (q.new_empty(chunks, heads, hidden, size) for _ in range(3))
    move1, move2 = (q.new_empty(chunks + rows.first.shape[0], heads, hidden, channels) for _ in range(2))
    dq_anchor, danchor1, danchor2, da1, da2 = (
        torch.empty_like(x) if say.anchored else None for x in (dread, saved.starts1, saved.starts2, dw1, dw2)
    )
    dscores1, dscores2 = torch.empty_like(saved.scores1), torch.empty_like(saved.scores1)
    dgain, dshift = torch.empty(2, 2 if lead is None else 3, chunks, heads, channels, device=q.device)
    # every sequence adds to its anchors
    dlead = None if lead is None else Lead(*(torch.zeros_like(x) for x in lead))
    dend = torch.empty(chunks, heads, channels, device=q.device)
    grid, programs = (chunks, heads), (rows.first.shape[0], heads)
    sizes = (heads, channels, hidden)
    begin_backward[grid](
        eta, log_alpha, saved.u1, saved.scores1, saved.o_q, saved.o_anchor, dy, weights.gain,
        do, late_do, dscores1, dx, dlog, dgain[0], dshift[0],
        kappa, sigma, saved.o_speed, own.dkappa, own.dsigma, saved.norms, dscale, *places, rows.row, heads, channels, *steps, *decays,
        ANCHORED=say.anchored, LINK=link.q, **say.pairs,
    )  # fmt: skip
    states = (saved.starts1, saved.starts2)
    hiddens = (z, slope, curve, move1, move2)
    if say.reads_resident:
        from .resident_reads import read_backward_resident

        # with an anchor only one program fits a multiprocessor, which may then have all registers
        read_backward_resident[grid](
            q, saved.late_q, k, eta, saved.u1, do, late_do, saved.scores2, dscores1, dscores2, *states, *_rounded(anchors, q),
            dread, dq_anchor, dwhole, dx, du1, *hiddens, danchor1, danchor2, *places, rows.row, *sizes, *steps,
            ANCHORED=say.anchored, **({"num_warps": 8} if say.anchored else FULL),
        )  # fmt: skip
    else:
        read_backward[grid](
            q, saved.late_q, k, eta, saved.u1, do, late_do, saved.scores2, dscores1, dscores2, *states, *anchors,
            dread, dq_anchor, dwhole, dx, du1, *hiddens, danchor1, danchor2,
            sigma, saved.speeds1, saved.speeds2, own.dq_speed, own.push1, own.push2, saved.norms, dscale, *places, rows.row, *sizes, *steps,
            ANCHORED=say.anchored, **say.read_backward,
        )  # fmt: skip
    # what is not needed any more makes room: several of these are as large as the weights of all chunks
    del dscores1
    dq, dwrite = torch.empty_like(q), late_do
    finish_backward[grid](
        q, k, eta, log_alpha, dy, dscores2, dread, dq_anchor, dq, dwrite, dlog,
        kappa, sigma, own.dq_speed, own.dkappa, own.dsigma, *places, rows.row, heads, channels, *steps, *decays,
        ANCHORED=say.anchored, **say.pairs,
    )  # fmt: skip
    del dscores2, dread
    unit, pull, bend = (torch.empty_like(q) for _ in range(3))
    linearise[grid](
        k, v, delta, saved.o, *norm, unit, pull, bend, inverse, mean, *places, rows.row, heads, channels, *thresholds,
        C=size, DP=say.wide, BIAS=device.gradient, SLOPE=device.slope, P=bias.p, HAS_DELTA=delta is not None, num_warps=4,
    )  # fmt: skip
    _join_states(move1, move2, rows, size, outer)
    if own.push1 is not None and own.push2 is not None:
        end = _last(rows, size)
        own.push1.index_copy_(0, end, outer.speed1.to(q.dtype))
        own.push2.index_copy_(0, end, outer.speed2.to(q.dtype))
    arguments = (
        k, saved.late, saved.late_k, saved.kept, saved.u1, saved.late_u1, unit, pull, bend, inverse, mean, saved.starts1, z, slope, curve,
        du1, do, move1, move2, dw1, dw2,
    )  # fmt: skip
    if say.resident:
        from .resident_kernels import scan_backward_resident

        scan_backward_resident[programs](*arguments, *places, *sizes, num_warps=8)
    else:
        scan_backward[programs](
            *arguments, saved.slow, saved.slow_k, saved.slow_u1, sigma, grown_end, own.push1, own.push2, own.dspeed1, own.dspeed2,
            saved.starts2, *ends, saved.norms, dscale, *(lead or NO_LEAD), saved.lead_o, saved.before1, saved.before2, *norm,
            *(dlead or NO_LEAD), dgain[-1], dshift[-1], *places, *sizes, BIAS=device.gradient, SLOPE=device.slope, DELTA_SLOPE=device.delta_slope, P=bias.p,
            HAS_DELTA=delta is not None, ANCHORED=say.anchored, **say.scan_backward,
        )  # fmt: skip
    # the linearised errors are not needed any more
    dy1, dy2 = unit, pull
    vectors, found = (saved.late_k, saved.u1, saved.late_u1, do), (dwhole, dy1, dy2, dend)
    if say.reads_resident:
        from .resident_reads import write_backward_resident

        write_backward_resident[grid](
            *vectors, *states, *_rounded(anchors, q), *hiddens, *found, *places, rows.row, *sizes, ANCHORED=say.anchored, **FULL,
        )  # fmt: skip
    else:
        write_backward[grid](
            *vectors, *states, *anchors, *hiddens, *found, saved.slow_k, saved.slow_u1, saved.speeds1, saved.speeds2,
            own.push1, own.push2, own.dslow1, own.dslow2, own.dcarried, own.dgrown_end, saved.norms, *places, rows.row, *sizes,
            ANCHORED=say.anchored, **say.write_backward,
        )  # fmt: skip
    del arguments, hiddens, z, slope, curve
    deta, ddelta = (torch.empty_like(q, dtype=torch.float32) for _ in range(2))
    dk, dv = torch.empty_like(q), torch.empty_like(q)
    gate_backward[grid](
        k, v, eta, log_alpha, delta, saved.u1, saved.o, *norm, dwrite, dx, du1, dy1, dy2, dend, dwhole,
        dk, dv, deta, dlog, ddelta, dgain[1], dshift[1],
        kappa, grown, own.dslow1, own.dslow2, own.dcarried, own.dkappa, own.dsigma, own.dgrown,
        *places, rows.row, heads, channels, *steps, *decays, *thresholds,
        C=size, DP=say.wide, BIAS=device.gradient, SLOPE=device.slope, DELTA_SLOPE=device.delta_slope, P=bias.p,
        HAS_ALPHA=log_alpha is not None, HAS_DELTA=delta is not None, MOMENTUM=momentum is not None, num_warps=say.pairs["num_warps"],
    )  # fmt: skip
    if say.anchored:
        anchor_backward[(rows.first.shape[0], heads, triton.cdiv(hidden, 32))](
            saved.kept, move1, move2, danchor1, danchor2, da1, da2, rows.length, rows.chunk, heads, channels, hidden,
            C=size, DP=say.wide, EB=32, num_warps=4,
        )  # fmt: skip
    gates = (_like(deta, eta), _like(dlog, log_alpha), _like(ddelta, delta))
    dweights = Weights(dw1, dw2, da1, da2, dgain.sum((0, 1)), dshift.sum((0, 1)))
    dmomentum = None if momentum is None else Momentum(*own[:6])  # type: ignore[arg-type]
    return Tokens(dq, dk, dv, *gates), dweights, dmomentum, dlead  # type: ignore[arg-type]


class MomentumRoom(NamedTuple):
    """What the backward pass finds for a momentum, None everywhere where there is none."""

    dspeed1: Tensor | None = None
    dspeed2: Tensor | None = None
    dkappa: Tensor | None = None
    dsigma: Tensor | None = None
    dgrown: Tensor | None = None
    dgrown_end: Tensor | None = None
    dcarried: Tensor | None = None
    dq_speed: Tensor | None = None
    dslow1: Tensor | None = None
    dslow2: Tensor | None = None
    push1: Tensor | None = None
    push2: Tensor | None = None


def _momentum_room(q: Tensor, momentum: Momentum | None, saved: Saved, rows: Rows, outer: Result) -> MomentumRoom:
    if momentum is None:
        return MomentumRoom()
    factors = (momentum.kappa, momentum.sigma, momentum.grown, momentum.grown_end, momentum.grown_end, saved.o_speed, q, q)
    pushed = (saved.speeds1.shape[0] + rows.first.shape[0], *saved.speeds1.shape[1:])
    pushes = (q.new_empty(pushed) for _ in range(2))
    return MomentumRoom(outer.speed1.clone(), outer.speed2.clone(), *(torch.empty_like(x) for x in factors), *pushes)


def _rounded(anchors: tuple[Tensor | None, Tensor | None], q: Tensor) -> list[Tensor | None]:
    """Anchors in the dtype of the products."""
    return [None if anchor is None else anchor.to(q.dtype) for anchor in anchors]


def _join_states(move1: Tensor, move2: Tensor, rows: Rows, size: int, outer: Result) -> None:
    """What arrives at the outgoing weights, and at those an open chunk starts from, takes its place among the chunks' own shares."""
    begun, end = (rows.length % size != 0)[:, None, None, None], _last(rows, size)
    for move, state, tail in ((move1, outer.w1, outer.tail1), (move2, outer.w2, outer.tail2)):
        move.index_copy_(0, end, state.to(move.dtype))
        move.index_add_(0, (end - 1).clamp_min(0), torch.where(begun, tail, 0.0).to(move.dtype))


def _last(rows: Rows, size: int) -> Tensor:
    """The place of each sequence's outgoing state, behind its chunks' own."""
    return rows.chunk + (rows.length + size - 1) // size + torch.arange(rows.first.shape[0], device=rows.first.device)


def _like(gradient: Tensor, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient in the gate's own width."""
    if gate is None:
        return None
    return gradient if gate.shape[2] > 1 else gradient.sum(2, keepdim=True)


class Options(NamedTuple):
    """The compile-time arguments and launch settings of each kind of kernel."""

    anchored: bool
    resident: bool
    reads_resident: bool
    wide: int
    pairs: dict[str, Any]
    scan: dict[str, Any]
    read: dict[str, Any]
    read_backward: dict[str, Any]
    scan_backward: dict[str, Any]
    write_backward: dict[str, Any]


def options(q: Tensor, size: int, hidden: int, decays: bool, anchored: bool, moves: bool, link: Link) -> Options:
    """What the kernels are told: as many hidden channels at once as registers and shared memory hold."""
    dtype, channels = q.dtype, q.shape[2]
    wide = triton.next_power_of_2(channels)
    exact, large = dtype == torch.float32, wide > 64
    shape, warps = {"C": size, "DP": wide}, 8 if large else 4
    # three products of rounded numbers are as good as one in float32, and the matrix units do them
    products = {"DOT": DOTS[dtype], "PRECISION": "tf32" if not exact else "ieee" if INTERPRETED else "tf32x3"}
    # float16 has no room for the exponents that split a decay between two tokens
    paired = products | ({"DOT": tl.float32} if dtype == torch.float16 else {})

    def blocks(most: int, warps: int, stages: int = 1) -> dict[str, Any]:
        block = min(most // (2 if exact else 1) // (2 if large else 1), triton.next_power_of_2(hidden))
        return (
            shape
            | products
            | momentum
            | linked
            | {"EB": block, "NE": triton.cdiv(hidden, block), "num_warps": warps, "num_stages": stages}
        )

    momentum = {"MOMENTUM": moves}
    linked = {"LINK": link.q}
    mapped = {"FLOOR": link.floor, "MASS1": link.mass1, "MASS2": link.mass2, "LB": 32}
    fast = {"FAST": not exact and not INTERPRETED}
    alpha = {"HAS_ALPHA": decays}
    fits = size == 64 and channels % 16 == 0 and channels <= 64 and hidden <= 256
    resident = RESIDENT and q.is_cuda and not exact and fits and not moves and link == Link()
    return Options(
        anchored=anchored,
        resident=resident,
        reads_resident=resident and (RESIDENT_ANCHORED or not anchored),
        wide=wide,
        pairs=shape | paired | alpha | momentum | {"BLOCK": min(16, size), "num_warps": warps},
        scan=blocks(128, 8) | fast | mapped,
        read=blocks(128, 8) | fast if large else blocks(64, 4) | fast,
        read_backward=blocks(128, 8) | fast,
        scan_backward=blocks(128, 8) | fast | mapped,
        write_backward=blocks(128, 8),
    )


def _strides(gate: Tensor | None) -> tuple[int, int, int]:
    """Token, head and channel strides of a gate ``[T,H,D or 1]``; a scalar gate stands still along the channels."""
    if gate is None:
        return 0, 0, 0
    return gate.stride(0), gate.stride(1), 0 if gate.shape[2] == 1 else gate.stride(2)
