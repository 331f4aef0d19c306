"""The chunk form of fast weights: gradients at a chunk's start, linear inside, any memory, bias and retention.

A stretch of chunks is run in two passes. The scan advances the state from chunk to chunk and does nothing else; the readout
then recalls every token of the stretch at once, each weight's read a masked gated linear attention whose values are the
back-propagated errors. Nothing of the size of the weights is made for a token.

B batch, H heads, N chunks of a stretch, C tokens of a chunk, K key channels, V value channels, D channels of a gate
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Descent
from ..bias import DotProduct
from ..memory import Factor, Map, Matrix, Vector
from ..retention import L2, Retention
from ..retention.base import decay
from ..spec import Spec
from ..types import Held, Norm, Weights
from .common import per_head, split
from .moving_maps import Decayed, Read
from .pace import Along, Memo, Pace, along, by_chunk, scaled, shaped


class Tokens(NamedTuple):
    """Tokens by head, ``[B,H,N,C,D]`` in chunks or ``[B,H,T,D]`` before; ``valid`` ``[B,N,C]`` where some are not there."""

    q: Tensor
    k: Tensor
    v: Tensor
    eta: Tensor
    log_alpha: Tensor | None
    log_beta: Tensor | None
    delta: Tensor | None
    mu: Tensor | None
    valid: Tensor | None

    def stretch(self, left: int, chunks: int, size: int) -> Tokens:
        """``chunks`` chunks of ``size`` tokens from ``left`` on, of tokens that are not in chunks yet."""
        cut = (None if x is None else split(x[:, :, left : left + chunks * size], 2, chunks) for x in self)
        return Tokens(*cut)  # type: ignore[arg-type]

    def cut(self, left: int | None, right: int | None) -> Tokens:
        """The tokens from ``left`` to ``right`` of every chunk."""
        cut = (None if x is None else x[:, :, left:right] if x.dim() == 3 else x[:, :, :, left:right] for x in self)
        return Tokens(*cut)  # type: ignore[arg-type]


class Carry(NamedTuple):
    """The state inside a stretch; the last three are empty where every row stands at a chunk's end."""

    held: tuple[Held, ...]
    anchor: Weights
    momentum: Weights
    moved: Weights = ()
    log_decay: Weights = ()
    threshold: Weights = ()


class Paced(NamedTuple):
    """Each weight's pace, step and threshold, for every chunk of a stretch at once."""

    paces: list[Pace]
    steps: list[Along]
    thresholds: list[Along | None]
    memo: Memo


def paced(spec: Spec, tokens: Tokens) -> Paced:
    """What the gates of a stretch mean for each weight."""
    retention, memory, algorithm = spec.retention, spec.memory, spec.algorithm
    assert isinstance(algorithm, Descent)
    eta = algorithm.rate(tokens.eta, memory.curvature(tokens.k) if memory.linear else None)
    log_alpha, log_beta, mu, valid = tokens.log_alpha, tokens.log_beta, tokens.mu, None
    if tokens.valid is not None:
        valid = tokens.valid[:, None, :, :, None]
        eta = torch.where(valid, eta, 0.0)
        log_alpha, log_beta = (None if x is None else torch.where(valid, x, 0.0) for x in (log_alpha, log_beta))
    split = isinstance(retention, L2) and retention.side != "value"
    memo = Memo()
    result = Paced([], [], [], memo)
    for side in memory.sides:
        own = along(side, eta)
        log = None if log_alpha is None or split else along(side, log_alpha)
        rates = retention.rates(own.value, None if log is None else log.value)
        decays = [] if rates.log_decay is None else [Along((log or own).axis, rates.log_decay)]
        decays += [along("in", log_alpha)] if split and log_alpha is not None else []
        decays += [along("out", log_beta)] if split and log_beta is not None else []
        momentum = None if mu is None else along(side, mu)
        result.paces.append(Pace(decays, momentum, valid, tokens.k, side == "each", memo))
        result.steps.append(Along(own.axis, rates.step))
        result.thresholds.append(None if rates.threshold is None else Along(own.axis, rates.threshold))
    return result


def run(
    spec: Spec, tokens: Tokens, norm: Norm | None, carry: Carry, closes: bool | Tensor, at_start: bool
) -> tuple[Tensor, Carry]:
    """A stretch of chunks: y ``[B,H,N,C,V]`` and the state after it.

    ``closes`` says whether the chunks reach their end: all, none, or ``[B,N]``. ``at_start`` says that they begin at their
    start; rows of masked tokens may begin later, with what ``carry`` holds.
    """
    if spec.retention.leads:
        return _led_chunks(spec, tokens, norm, carry, closes, at_start)
    return _linear_chunks(spec, tokens, norm, carry, closes)


def _linear_chunks(spec: Spec, tokens: Tokens, norm: Norm | None, carry: Carry, closes: bool | Tensor) -> tuple[Tensor, Carry]:
    """Chunks inside which the weights move linearly; a retention that maps them does so at each chunk's end."""
    retention, pace = spec.retention, paced(spec, tokens)
    starts: list[Carry] = []
    ends: list[Carry] = []
    errors: list[tuple[Factor, ...]] = []
    for n in range(tokens.k.shape[2]):
        starts.append(carry)
        found, carry = _chunk(spec, retention, pace, tokens, norm, carry, closes, n)
        errors.append(found)
        ends.append(carry)
    y = _readout(spec, retention, pace, tokens, norm, starts, errors)
    if not retention.linear_step and closes is not False:
        last = _recall_at(spec, [end.held for end in ends], tokens.q[..., -1:, :], norm)
        last = last if closes is True else torch.where(closes[:, None, :, None, None], last, y[..., -1:, :])
        y = torch.cat([y[..., :-1, :], last], -2)
    return y, carry


def _chunk(
    spec: Spec,
    retention: Retention,
    pace: Paced,
    tokens: Tokens,
    norm: Norm | None,
    carry: Carry,
    closes: bool | Tensor,
    n: int,
) -> tuple[tuple[Factor, ...], Carry]:
    """One chunk of the scan: its factors, times their steps, and the state after it."""
    once = pace.memo.once
    k, v = once(by_chunk, tokens.k)[n], once(by_chunk, tokens.v)[n]
    if isinstance(spec.memory, Matrix | Vector) and isinstance(spec.bias, DotProduct):
        found: tuple[Factor, ...] = (Factor(-v, k),)
    else:
        maps = _probes(spec, retention, pace.paces, carry, n)
        delta = None if tokens.delta is None else once(by_chunk, tokens.delta)[n]
        prediction, trace = spec.memory.trace(maps, k, per_head(norm, 1))
        found = spec.memory.backprop(maps, trace, spec.bias.gradient(prediction, v, delta))
    steps = (Along(step.axis, once(by_chunk, step.value)[n]) for step in pace.steps)
    found = tuple(scaled(f, step) for f, step in zip(found, steps, strict=True))
    return found, _advance(retention, pace, found, carry, closes if isinstance(closes, bool) else closes[:, n], n)


def _probes(spec: Spec, retention: Retention, paces: list[Pace], carry: Carry, n: int) -> tuple[Map, ...]:
    """The maps at which a chunk's gradients are taken."""
    if not (isinstance(retention, L2) and retention.at == "decayed"):
        return spec.memory.maps(tuple(h.weight for h in carry.held))
    maps = []
    for i, (h, pace) in enumerate(zip(carry.held, paces, strict=True)):
        towards = carry.anchor[i] if carry.anchor else None
        weight = decay(h.weight, carry.log_decay[i], towards) if carry.log_decay else h.weight
        maps.append(Decayed(weight, towards, pace, n))
    return tuple(maps)


def _advance(
    retention: Retention, pace: Paced, found: tuple[Factor, ...], carry: Carry, closes: bool | Tensor, n: int
) -> Carry:
    """The state after one chunk: closed by the retention's step, or with what it has accumulated so far."""
    steps: list[tuple[Held, Tensor | None, Tensor, Tensor | None, Tensor | None]] = []
    momentum: list[Tensor] = []
    for i, (h, own, factor) in enumerate(zip(carry.held, pace.paces, found, strict=True)):
        log_decay, update = own.end_decay(n), own.end_sum(factor, n)
        kept = None if log_decay is None else log_decay.exp()
        threshold = _threshold(retention, own, pace.thresholds[i], carry.threshold[i] if carry.threshold else None, kept, n)
        if carry.moved:
            update = update + (carry.moved[i] if kept is None else kept * carry.moved[i])
            log_decay = carry.log_decay[i] if log_decay is None else carry.log_decay[i] + log_decay
        if carry.momentum:
            update = update + own.end_carry(carry.momentum[i], n)
            momentum.append(own.end_momentum(carry.momentum[i], factor, n))
        steps.append((h, log_decay, update, threshold, carry.anchor[i] if carry.anchor else None))
    if closes is True:
        return Carry(tuple(retention.step(*step) for step in steps), carry.anchor, tuple(momentum))
    open_ = Carry(carry.held, carry.anchor, tuple(momentum), *_accumulated(steps))
    if closes is False:
        return open_
    stepped = [retention.step(*step) for step in steps]

    def chosen(yes: Tensor, no: Tensor) -> Tensor:
        assert isinstance(closes, Tensor)
        return torch.where(closes.reshape(-1, *[1] * (yes.dim() - 1)), yes, no)

    held = tuple(Held(*map(chosen, new, old)) for new, old in zip(stepped, carry.held, strict=True))
    emptied = [tuple(chosen(torch.zeros_like(x), x) for x in xs) for xs in (open_.moved, open_.log_decay, open_.threshold)]
    return Carry(held, carry.anchor, tuple(momentum), *emptied)


def _accumulated(
    steps: list[tuple[Held, Tensor | None, Tensor, Tensor | None, Tensor | None]],
) -> tuple[Weights, Weights, Weights]:
    """What an open chunk carries on: its update, log decay and threshold, zeros where a retention has none."""
    zeros = [torch.zeros_like(update[..., :1] if update.dim() == 3 else update[..., :1, :1]) for _, _, update, *_ in steps]
    return (
        tuple(update for _, _, update, *_ in steps),
        tuple(zero if step[1] is None else step[1] for step, zero in zip(steps, zeros, strict=True)),
        tuple(zero if step[3] is None else step[3] for step, zero in zip(steps, zeros, strict=True)),
    )


def _threshold(
    retention: Retention, pace: Pace, own: Along | None, carried: Tensor | None, kept: Tensor | None, n: int
) -> Tensor | None:
    """The soft threshold of a chunk so far: the decayed sum of its tokens', or the last token's."""
    if own is None:
        return None
    value = pace.at(own, n).value
    if not retention.sums_thresholds:
        return shaped(Along(own.axis, value[:, :, -1]), pace.vector)
    for gate in pace.kept_to_end:
        value = value * pace.at(gate, n).value
    total = shaped(Along(own.axis, value.sum(-2)), pace.vector)
    if carried is None:
        return total
    return total + (carried if kept is None else kept * carried)


def _readout(
    spec: Spec,
    retention: Retention,
    pace: Paced,
    tokens: Tokens,
    norm: Norm | None,
    starts: list[Carry],
    errors: list[tuple[Factor, ...]],
) -> Tensor:
    """Recall every token of the stretch at once, from the state at its chunk's start."""
    maps = []
    for i, own in enumerate(pace.paces):
        anchor = starts[0].anchor[i] if starts[0].anchor else None
        lines = [retention.linear(start.held[i], anchor) for start in starts]
        base = _stack([line.base for line in lines])
        towards = None if lines[0].towards is None else _stack([line.towards for line in lines])
        slope = None if lines[0].slope is None else _stack([line.slope for line in lines])
        moved = None
        if any(start.moved for start in starts):
            moved = _stack([s.moved[i] if s.moved else torch.zeros_like(s.held[i].weight) for s in starts])
            if lines[0].decays:
                log = _stack([s.log_decay[i] if s.log_decay else torch.zeros_like(starts[0].log_decay[i]) for s in starts])
                base = decay(base, log, towards)
        line = lines[0]._replace(base=base, towards=towards, slope=slope)
        factor = Factor(_stack([e[i].error for e in errors]), _stack([e[i].input for e in errors]))
        momentum = _stack([start.momentum[i] for start in starts]) if starts[0].momentum else None
        maps.append(Read(line, own, factor, moved, momentum))
    return spec.memory.recall(maps, tokens.q, per_head(norm, 2))


def _stack(each: list[Any]) -> Tensor:
    """One tensor a chunk, as ``[B,H,N,...]``; a decay may be a scalar in one chunk and channel-wise in the next."""
    return torch.stack(torch.broadcast_tensors(*each), 2)  # type: ignore[no-untyped-call]


def _recall_at(spec: Spec, held: list[tuple[Held, ...]], q: Tensor, norm: Norm | None) -> Tensor:
    """M(W; q) for queries ``[B,H,N,*,K]``, each chunk's from weights of its own."""
    weights = tuple(_stack([h.weight for h in each]) for each in zip(*held, strict=True))
    return spec.memory.recall(spec.memory.maps(weights), q, per_head(norm, 2))


def _led_chunks(
    spec: Spec, tokens: Tokens, norm: Norm | None, carry: Carry, closes: bool | Tensor, at_start: bool
) -> tuple[Tensor, Carry]:
    """Chunks whose first token takes the retention's step alone; after it the weights themselves move linearly."""
    linear = L2(at="previous", anchor=spec.retention.anchored)
    lead, rest = (tokens.cut(None, 1), tokens.cut(1, None)) if at_start else (None, tokens)
    first = None if lead is None else paced(spec, lead)
    later = paced(spec, rest) if rest.k.shape[3] else None
    anchor, linear_anchor = carry.anchor, tuple(a.exp() for a in carry.anchor)
    leads: list[tuple[Held, ...]] = []
    starts: list[Carry] = []
    errors: list[tuple[Factor, ...]] = []
    for n in range(tokens.k.shape[2]):
        if lead is not None and first is not None:
            there = True if lead.valid is None else lead.valid[:, :, 0]
            _, carry = _chunk(spec, spec.retention, first, lead, norm, carry, there, n)
            leads.append(carry.held)
        if later is not None:
            carry = carry._replace(held=tuple(Held(h.weight, h.weight) for h in carry.held), anchor=linear_anchor)
            starts.append(carry)
            found, carry = _chunk(spec, linear, later, rest, norm, carry, closes, n)
            errors.append(found)
            carry = carry._replace(held=tuple(spec.retention.hold(h.weight) for h in carry.held), anchor=anchor)
    reads = [] if lead is None else [_recall_at(spec, leads, lead.q, norm)]
    reads += [] if later is None else [_readout(spec, linear, later, rest, norm, starts, errors)]
    return torch.cat(reads, -2), carry
