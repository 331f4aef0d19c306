"""The backward pass of the 2-layer MLP memory: its kernels in a row.

R sequences, B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .arguments import NO_LEAD, NO_MOMENTUM, Lead, Link, Momentum, Result, Rows, Saved, Tokens, Weights
from .backward_kernels import (
    anchor_backward,
    begin_backward,
    finish_backward,
    read_backward,
    scan_backward,
    write_backward,
)
from .biases import DEVICE, Fused
from .gate_kernels import bias_backward, gate_backward, linearise
from .launch import FULL, in_width, options, rounded, strides


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
    steps, decays, thresholds = strides(eta), strides(log_alpha), strides(delta)
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
    low_anchors = rounded(anchors, q) if say.reads_resident else []
    if say.reads_resident:
        from .resident_reads import read_backward_resident

        moves = momentum is not None
        side = (saved.speeds1, saved.speeds2) if moves else low_anchors
        dside = (own.push1, own.push2) if moves else (danchor1, danchor2)
        read_backward_resident[grid](
            q, saved.late_q, k, eta, saved.u1, do, late_do, saved.scores2, dscores1, dscores2, *states, *side,
            dread, own.dq_speed if moves else dq_anchor, dwhole, dx, du1, *hiddens, *dside, sigma, saved.norms, dscale,
            *places, rows.row, *sizes, *steps, ANCHORED=say.anchored, MOMENTUM=moves, LINK=link.q,
            # with more weights only one program fits a multiprocessor, which may then have all registers
            **({"num_warps": 8} if say.anchored or moves else FULL),
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
    mapped = (
        saved.starts2, *ends, saved.norms, dscale, *(lead or NO_LEAD), saved.lead_o, saved.before1, saved.before2, *norm,
        *(dlead or NO_LEAD), dgain[-1], dshift[-1],
    )  # fmt: skip
    slopes = {"BIAS": device.gradient, "SLOPE": device.slope, "DELTA_SLOPE": device.delta_slope, "P": bias.p}
    told = slopes | {"HAS_DELTA": delta is not None, "ANCHORED": say.anchored}
    pushes = (
        saved.slow, saved.slow_k, saved.slow_u1, sigma, grown_end, own.push1, own.push2, own.dspeed1, own.dspeed2,
    )  # fmt: skip
    if say.scan_backward_resident and momentum is not None:
        from .resident_momentum_backward import scan_backward_momentum

        scan_backward_momentum[programs](*arguments, *pushes, *places, *sizes, num_warps=8)
    elif say.scan_backward_resident:
        from .resident_backward import scan_backward_resident

        scan_backward_resident[programs](
            *arguments, *mapped, *places, *sizes, link.q, link.floor, link.mass1, link.mass2, **told, num_warps=8,
        )  # fmt: skip
    else:
        scan_backward[programs](
            *arguments, *pushes, *mapped, *places, *sizes, **told, **say.scan_backward,
        )  # fmt: skip
    # the linearised errors are not needed any more
    dy1, dy2 = unit, pull
    slow = (
        saved.slow_k, saved.slow_u1, saved.speeds1, saved.speeds2, own.push1, own.push2, own.dslow1, own.dslow2, own.dcarried, own.dgrown_end,
    )  # fmt: skip
    vectors, found = (saved.late_k, saved.u1, saved.late_u1, do), (dwhole, dy1, dy2, dend)
    if say.reads_resident:
        from .resident_writes import write_backward_resident

        write_backward_resident[grid](
            *vectors, *states, *low_anchors, *hiddens, *found, *slow, saved.norms, *places, rows.row, *sizes,
            ANCHORED=say.anchored, MOMENTUM=momentum is not None, LINK=link.q, **({"num_warps": 8} if momentum is not None else FULL),
        )  # fmt: skip
    else:
        write_backward[grid](
            *vectors, *states, *anchors, *hiddens, *found, *slow, saved.norms, *places, rows.row, *sizes,
            ANCHORED=say.anchored, **say.write_backward,
        )  # fmt: skip
    del arguments, hiddens, z, slope, curve
    deta, ddelta = (torch.empty_like(q, dtype=torch.float32) for _ in range(2))
    dk, dv = torch.empty_like(q), torch.empty_like(q)
    own_bias = {"BIAS": device.gradient, "SLOPE": device.slope, "P": bias.p, "HAS_DELTA": delta is not None}
    bias_backward[grid](
        k, v, delta, saved.o, *norm, du1, dv, ddelta, dgain[1], dshift[1], *places, rows.row, heads, channels, *thresholds,
        C=size, DP=say.wide, DELTA_SLOPE=device.delta_slope, **own_bias, **FULL,
    )  # fmt: skip
    # a momentum's factors are sums over the channels, which one program then has
    block = say.wide if momentum is not None else min(say.wide, 32)
    gate_backward[(*grid, triton.cdiv(channels, block))](
        k, eta, log_alpha, saved.u1, dv, dwrite, dx, dy1, dy2, dend, dwhole, dk, deta, dlog,
        kappa, grown, own.dslow1, own.dslow2, own.dcarried, own.dkappa, own.dsigma, own.dgrown,
        *places, rows.row, heads, channels, *steps, *decays,
        C=size, DB=block, HAS_ALPHA=log_alpha is not None, MOMENTUM=momentum is not None, **FULL,
    )  # fmt: skip
    if say.anchored:
        anchor_backward[(rows.first.shape[0], heads, triton.cdiv(hidden, 32))](
            saved.kept, move1, move2, danchor1, danchor2, da1, da2, rows.length, rows.chunk, heads, channels, hidden,
            C=size, DP=say.wide, EB=32, num_warps=4,
        )  # fmt: skip
    gates = (in_width(deta, eta), in_width(dlog, log_alpha), in_width(ddelta, delta))
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


def _join_states(move1: Tensor, move2: Tensor, rows: Rows, size: int, outer: Result) -> None:
    """What arrives at the outgoing weights, and at those an open chunk starts from, takes its place among the chunks' own shares."""
    begun, end = (rows.length % size != 0)[:, None, None, None], _last(rows, size)
    for move, state, tail in ((move1, outer.w1, outer.tail1), (move2, outer.w2, outer.tail2)):
        move.index_copy_(0, end, state.to(move.dtype))
        move.index_add_(0, (end - 1).clamp_min(0), torch.where(begun, tail, 0.0).to(move.dtype))


def _last(rows: Rows, size: int) -> Tensor:
    """The place of each sequence's outgoing state, behind its chunks' own."""
    return rows.chunk + (rows.length + size - 1) // size + torch.arange(rows.first.shape[0], device=rows.first.device)
