"""The backward pass of the 2-layer MLP memory: its kernels in a row.

R sequences, B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .arguments import NO_LEAD, NO_MOMENTUM, Given, Lead, Momentum, Result, Rows, Saved, Tokens, Weights
from .biases import DEVICE
from .gate_kernels import bias_backward, gate_backward, linearise
from .launch import FULL, in_width, options, room_for, rounded, strides
from .lead_tokens import joined
from .read_backward_kernels import begin_backward, finish_backward, read_backward
from .write_backward_kernels import anchor_backward, scan_backward, write_backward


def backward(
    given: Given, ends: tuple[Tensor, Tensor], saved: Saved, outer: Result
) -> tuple[Tokens, Weights, Momentum | None, Lead | None]:
    """The gradients of tokens, weights, momentum and first tokens, given those of the results, ``outer``; ``ends`` are the outgoing weights."""
    run = Pass(given, saved, outer)
    run.read()
    run.scan(ends)
    run.write()
    dtokens = run.gates()
    norm = (run.dgain.sum((0, 1)), run.dshift.sum((0, 1)))
    dweights = Weights(run.dw1, run.dw2, *run.anchors_gradients(), *norm, run.slopes_gradient())
    dmomentum = None if given.momentum is None else Momentum(*run.own[:6])  # type: ignore[arg-type]
    return dtokens, dweights, dmomentum, run.dlead


class Pass:
    """A backward pass under way: what its kernels share, and what one leaves for the next.

    ``read`` runs all chunks' reads, ``scan`` the adjoint from the last chunk to the first, ``write`` all chunks' writes, ``gates`` what no
    product enters. What is not needed any more is let go: several of these tensors are as large as the weights of all chunks.
    """

    def __init__(self, given: Given, saved: Saved, outer: Result) -> None:
        tokens, weights, momentum, lead, rows, size, bias, link = given
        q = tokens.q
        self.tokens, self.weights, self.momentum, self.lead = tokens, weights, momentum, lead
        self.rows, self.size, self.link, self.saved, self.outer = rows, size, link, saved, outer
        self.device, self.p = DEVICE[bias.name], bias.p
        heads, channels = q.shape[1:]
        hidden, chunks = weights.w2.shape[2], rows.row.shape[0]
        self.moves = momentum is not None
        self.say = options(q, size, hidden, tokens.log_alpha is not None, weights.anchor1 is not None, self.moves, link)
        self.factors = Momentum(*(momentum or NO_MOMENTUM))
        self.own = _momentum_room(q, momentum, saved, rows, outer)
        self.grid, self.sizes = (chunks * heads,), (heads, channels, hidden)
        self.places = (rows.first, rows.length, rows.chunk)
        self.steps, self.decays, self.thresholds = strides(tokens.eta), strides(tokens.log_alpha), strides(tokens.delta)
        anchors = (weights.anchor1, weights.anchor2)
        self.anchors = rounded(anchors, q) if self.say.reads_resident else list(anchors)
        self.dw1, self.dw2 = _begun(outer.w1, outer.w2, weights.w1)
        self.dgain, self.dshift = torch.empty(2, 2 if lead is None else 3, chunks, heads, channels, device=q.device)
        # every sequence adds to its anchors
        self.dlead = None if lead is None else Lead(*(torch.zeros_like(x) for x in lead))
        self.dscale = torch.empty(chunks, heads, 5, device=q.device) if link.q > 0 else None
        dslopes = None if weights.slopes is None else torch.empty(chunks, heads, 2, device=q.device)
        self.slopes = (weights.slopes, dslopes)
        self.dlog = torch.empty_like(q, dtype=torch.float32)
        self.do, self.late_do, self.dx, self.dwhole, self.du1 = (torch.empty_like(q) for _ in range(5))
        self.hiddens: tuple[Tensor, ...] = tuple(q.new_empty(chunks, heads, hidden, size) for _ in range(3))
        self.move1, self.move2 = (q.new_empty(chunks + rows.first.shape[0], heads, hidden, channels) for _ in range(2))
        starts = (saved.starts1, saved.starts2)
        self.danchors = [torch.empty_like(x) if self.say.anchored else None for x in starts]

    def read(self) -> None:
        """From dy through both layers of the reads, to dq and to what each chunk adds to the adjoint of its starting weights."""
        q, k, _, eta, *_ = self.tokens
        saved, own, say, places = self.saved, self.own, self.say, (*self.places, self.rows.row)
        _, _, kappa, sigma, _, _ = self.factors
        # under an anchor its share and the anchor's nearly cancel in the decay's gradient
        dread = torch.empty_like(q, dtype=torch.float32 if say.anchored else q.dtype)
        dq_anchor = torch.empty_like(dread) if say.anchored else None
        dscores1, dscores2 = torch.empty_like(saved.scores1), torch.empty_like(saved.scores1)
        begin_backward[self.grid](
            eta, saved.total, saved.sizes, saved.u1, saved.scores1, saved.o_q, saved.o_anchor, self.outer.y, self.weights.gain,
            self.do, self.late_do, dscores1, self.dx, self.dlog, self.dgain[0], self.dshift[0],
            kappa, sigma, saved.o_speed, own.dkappa, own.dsigma, saved.norms, self.dscale, *self.slopes, *places, *self.sizes[:2], *self.steps, *self.decays,
            ANCHORED=say.anchored, LINK=self.link.q, **say.pairs,
        )  # fmt: skip
        tiles = (
            q, saved.late_q, k, eta, saved.u1, self.do, self.late_do, saved.scores2, dscores1, dscores2, saved.starts1, saved.starts2,
        )  # fmt: skip
        hiddens = (*self.hiddens, self.move1, self.move2)
        if say.reads_resident:
            from .resident_reads import read_backward_resident

            side = (saved.speeds1, saved.speeds2) if self.moves else self.anchors
            dside = (own.push1, own.push2) if self.moves else self.danchors
            read_backward_resident[self.grid](
                *tiles, *side, dread, own.dq_speed if self.moves else dq_anchor, self.dwhole, self.dx, self.du1, *hiddens, *dside,
                sigma, saved.norms, self.dscale, *places, *self.sizes, *self.steps,
                ANCHORED=say.anchored, MOMENTUM=self.moves, LINK=self.link.q, **say.led,
                # with more weights only one program fits a multiprocessor, which may then have all registers
                **({"num_warps": 8} if say.anchored or self.moves else FULL),
            )  # fmt: skip
        else:
            read_backward[self.grid](
                *tiles, *self.anchors, dread, dq_anchor, self.dwhole, self.dx, self.du1, *hiddens, *self.danchors,
                sigma, saved.speeds1, saved.speeds2, own.dq_speed, own.push1, own.push2, saved.norms, self.dscale,
                *places, *self.sizes, *self.steps, ANCHORED=say.anchored, **say.read_backward,
            )  # fmt: skip
        # what arrives at the writes takes the place of what no kernel reads any more
        self.dq, self.dwrite = torch.empty_like(q), self.late_do
        finish_backward[self.grid](
            q, k, eta, saved.total, saved.sizes, self.outer.y, dscores2, dread, dq_anchor, self.dq, self.dwrite, self.dlog,
            kappa, sigma, own.dq_speed, own.dkappa, own.dsigma, *self.slopes, *places, *self.sizes[:2], *self.steps, *self.decays,
            ANCHORED=say.anchored, **say.pairs,
        )  # fmt: skip

    def scan(self, ends: tuple[Tensor, Tensor]) -> None:
        """The adjoint of the state from the last chunk to the first; du1 and do become whole."""
        q, k, v, _, _, delta = self.tokens
        saved, own, say, link = self.saved, self.own, self.say, self.link
        norm = (self.weights.gain, self.weights.shift)
        unit, pull, bend = (torch.empty_like(q) for _ in range(3))
        inverse, mean = torch.empty(2, *q.shape[:2], device=q.device)
        linearise[self.grid](
            k, v, delta, saved.o, *norm, unit, pull, bend, inverse, mean, *self.places, self.rows.row, *self.sizes[:2], *self.thresholds,
            C=self.size, DP=say.wide, BIAS=self.device.gradient, SLOPE=self.device.slope, P=self.p, HAS_DELTA=delta is not None, num_warps=4,
        )  # fmt: skip
        _join_states(self.move1, self.move2, self.rows, self.size, self.outer)
        if own.push1 is not None and own.push2 is not None:
            _put(own.push1, self.rows.end, self.outer.speed1)
            _put(own.push2, self.rows.end, self.outer.speed2)
        arguments = (
            k, saved.late, saved.late_k, saved.kept, saved.u1, saved.late_u1, unit, pull, bend, inverse, mean, saved.starts1, *self.hiddens,
            self.du1, self.do, self.move1, self.move2, self.dw1, self.dw2,
        )  # fmt: skip
        pushes = (
            saved.slow, saved.slow_k, saved.slow_u1, self.factors.sigma, self.factors.grown_end, own.push1, own.push2, own.dspeed1, own.dspeed2,
        )  # fmt: skip
        mapped = (
            saved.starts2, *ends, saved.norms, self.dscale, *(self.lead or NO_LEAD), saved.lead_o, saved.before1, saved.before2, *norm,
            *(self.dlead or NO_LEAD), self.dgain[-1], self.dshift[-1],
        )  # fmt: skip
        told = self.bias() | {"ANCHORED": say.anchored}
        programs, where = (self.rows.first.shape[0], self.sizes[0]), (*self.places, *self.sizes)
        if say.scan_backward_resident and self.moves:
            from .resident_momentum_backward import scan_backward_momentum

            scan_backward_momentum[programs](*arguments, *pushes, *where, num_warps=8)
        elif say.scan_backward_resident:
            from .resident_backward import scan_backward_resident

            maps = (link.q, link.floor, link.mass1, link.mass2)
            scan_backward_resident[programs](*arguments, *mapped, *where, *maps, **told, num_warps=8)
        else:
            scan_backward[programs](*arguments, *pushes, *mapped, *where, **told, **say.scan_backward)
        # what arrives at both writes takes the place of the linearised errors
        self.dy1, self.dy2 = unit, pull

    def write(self) -> None:
        """The products of the adjoints at each chunk's end: the writes' share of dk, and what arrives at their vectors and at the decay."""
        saved, own, say = self.saved, self.own, self.say
        self.dend = torch.empty(len(self.rows.row), *self.sizes[:2], device=saved.u1.device)
        arguments = (
            saved.late_k, saved.u1, saved.late_u1, self.do, saved.starts1, saved.starts2, *self.anchors, *self.hiddens, self.move1, self.move2,
            self.dwhole, self.dy1, self.dy2, self.dend, saved.slow_k, saved.slow_u1, saved.speeds1, saved.speeds2,
            own.push1, own.push2, own.dslow1, own.dslow2, own.dcarried, own.dgrown_end, saved.norms, *self.places, self.rows.row, *self.sizes,
        )  # fmt: skip
        if say.reads_resident:
            from .resident_writes import write_backward_resident

            write_backward_resident[self.grid](
                *arguments,
                ANCHORED=say.anchored,
                MOMENTUM=self.moves,
                LINK=self.link.q,
                **({"num_warps": 8} if self.moves else FULL),
            )
        else:
            write_backward[self.grid](*arguments, ANCHORED=say.anchored, **say.write_backward)
        self.hiddens = ()

    def gates(self) -> Tokens:
        """From the writes and du1 to the gradients of k, v and the gates."""
        q, k, v, eta, log_alpha, delta = self.tokens
        saved, own, say, places = self.saved, self.own, self.say, (*self.places, self.rows.row)
        deta, dlog, ddelta = (None if gate is None else room_for(gate, q) for gate in (eta, log_alpha, delta))
        if dlog is not None and dlog.dtype == self.dlog.dtype:
            dlog = self.dlog
        dk, dv = torch.empty_like(q), torch.empty_like(q)
        bias_backward[self.grid](
            k, v, delta, saved.o, self.weights.gain, self.weights.shift, self.du1, dv, ddelta, self.dgain[1], self.dshift[1],
            *places, *self.sizes[:2], *self.thresholds, C=self.size, DP=say.wide, **self.bias(), **FULL,
        )  # fmt: skip
        gate_backward[(triton.cdiv(self.sizes[1], say.gates["DB"]) * self.grid[0],)](
            k, eta, saved.total, saved.u1, dv, self.dwrite, self.dx, self.dy1, self.dy2, self.dend, self.dwhole, self.dlog, dk, deta, dlog,
            self.factors.kappa, self.factors.grown, own.dslow1, own.dslow2, own.dcarried, own.dkappa, own.dsigma, own.dgrown,
            *places, *self.sizes[:2], *self.steps, *self.decays,
            **say.gates,
        )  # fmt: skip
        if self.dlead is not None:
            joined((dk, dv, deta, dlog, ddelta), self.dlead, self.rows, self.size)
        gradients = (in_width(deta, eta), in_width(dlog, log_alpha), in_width(ddelta, delta))
        return Tokens(self.dq, dk, dv, *gradients)  # type: ignore[arg-type]

    def anchors_gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """What arrives at the anchors, from all chunks."""
        if not self.say.anchored:
            return None, None
        heads, channels, hidden = self.sizes
        da1, da2 = torch.empty_like(self.dw1), torch.empty_like(self.dw2)
        anchor_backward[(self.rows.first.shape[0], heads, triton.cdiv(hidden, 32))](
            self.saved.kept, self.move1, self.move2, *self.danchors, da1, da2, self.rows.length, self.rows.chunk, heads, channels, hidden,
            C=self.size, DP=self.say.wide, EB=32, num_warps=4,
        )  # fmt: skip
        return da1, da2

    def slopes_gradient(self) -> Tensor | None:
        """What arrives at the slopes, from each sequence's chunks."""
        slopes, arrived = self.slopes
        if slopes is None or arrived is None:
            return None
        return torch.zeros_like(slopes).index_add_(0, self.rows.row, arrived)

    def bias(self) -> dict[str, Any]:
        """The bias's device functions."""
        named = {"BIAS": self.device.gradient, "SLOPE": self.device.slope, "DELTA_SLOPE": self.device.delta_slope, "P": self.p}
        return named | {"HAS_DELTA": self.tokens.delta is not None}


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
    speeds = _begun(outer.speed1, outer.speed2, momentum.speed1)
    return MomentumRoom(*speeds, *(torch.empty_like(x) for x in factors), *pushes)


def _begun(outer1: Tensor, outer2: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The adjoints that the reverse scan goes on from: what arrived at a pair of states, or zeros."""
    if outer1.numel() > 0:
        return outer1.clone(), outer2.clone()
    return torch.zeros_like(like), torch.zeros_like(like)


def _put(chunks: Tensor, end: Tensor, state: Tensor) -> None:
    """What arrived at the outgoing states, or zeros, in its place behind the chunks' own shares."""
    if state.numel() > 0:
        chunks.index_copy_(0, end, state.to(chunks.dtype))
    else:
        chunks.index_fill_(0, end, 0.0)


def _join_states(move1: Tensor, move2: Tensor, rows: Rows, size: int, outer: Result) -> None:
    """What arrives at the outgoing weights, and at those an open chunk starts from, takes its place among the chunks' own shares."""
    for move, state, tail in ((move1, outer.w1, outer.tail1), (move2, outer.w2, outer.tail2)):
        _put(move, rows.end, state)
        if tail.numel() > 0:
            begun = (rows.length % size != 0)[:, None, None, None]
            move.index_add_(0, (rows.end - 1).clamp_min(0), torch.where(begun, tail, 0.0).to(move.dtype))
