"""Retentions with a step of their own, chunk after chunk: the kernels move and read the weights, the step between is PyTorch.

Inside a chunk every retention of the chunk form moves its weights linearly, W_t = W_0 + b_t (W - W_0) - s G_t, which is what the
kernels fuse. What a retention makes of a whole chunk's G, a threshold, a projection or a link, is its own ``step``. So one
operator a chunk does the arithmetic, and any retention goes with it, one of your own too.

R sequences, T tokens of all of them, C tokens of a chunk, H heads, D channels, E hidden channels
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..algorithm import GradientDescent
from ..memory import MLP
from ..retention import L2, Dual, Keep, Retention
from ..retention.base import Linear, decay
from ..spec import Spec
from ..types import Gates, Held, Norm, Progress, State
from . import deep_op
from .arguments import Link
from .biases import Fused, fused
from .launch import INTERPRETED
from .pieces import Piece, Some, order_of
from .states import gain_and_shift, laid_out

# whether benchmarks/kernel_numerics.py has compared these calls with float64 on a GPU
COMPARED = False


def takes(spec: Spec) -> bool:
    """Whether a 2-layer memory's retention takes a step of its own, which no kernel fuses."""
    deep = isinstance(spec.memory, MLP) and spec.memory.depth == 2
    own = not isinstance(spec.retention, Keep | L2) and not deep_op.retains(spec.retention)
    return deep and own and isinstance(spec.algorithm, GradientDescent) and spec.algorithm.fixed_eta is None


def why_not(spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int) -> str | None:
    """Why the kernels cannot move and read the weights of such a call, or None where they can."""
    kept = spec.retention
    if type(kept).probe is not Retention.probe:
        return f"the kernels take the surprise at the weights that a chunk starts with, and {kept.label} at another"
    if not kept.leads and (reason := _moves_otherwise(kept)) is not None:
        return reason
    return deep_op.why_not_moved(spec, device, dtype, channels, size)


def uncompared(spec: Spec, device: torch.device) -> str | None:
    """Why such a call is not taken on a GPU unless it is asked for, or None where it is."""
    if COMPARED or INTERPRETED or device.type != "cuda" or not takes(spec):
        return None
    return (
        f"{spec.retention.label}'s own step between chunks that the kernels run was not compared with float64 on a GPU: "
        "backend='triton' asks for it, and benchmarks/kernel_numerics.py --only 'own step' compares it"
    )


def _moves_otherwise(kept: Retention) -> str | None:
    """Why what a retention does inside a chunk, seen on a small weight, is not what the kernels do, or None where it is."""
    with torch.no_grad():
        held = kept.start(torch.ones(1, 1, 2, 3))
        line = kept.linear(held, held.accumulated if kept.anchored else None)
        if line.centre:
            return f"the kernels do not centre what {kept.label} writes over its slices"
        if not line.decays:
            return f"the kernels let all that is read inside a chunk decay, and {kept.label} does not"
        if line.slope is not None and line.slope.shape[2:] != (1, 1):
            return (
                f"the kernels take one slope a weight, and {kept.label} has {tuple(line.slope.shape[2:])} of a weight of (2, 3)"
            )
        if line.base is not held.weight:
            return f"the kernels read what they measure the surprise at, and {kept.label} other weights"
    return None


class Call(NamedTuple):
    """What all chunks of a call share; ``norm`` is given, ``gain`` and ``shift`` are what the kernels take for it."""

    spec: Spec
    norm: Norm | None
    gain: Tensor
    shift: Tensor
    anchor: tuple[Tensor, ...]
    size: int
    sequences: int


class Chunk(NamedTuple):
    """The tokens of a piece ``[tokens,H,D or 1]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    eta: Tensor
    log_decay: Tensor | None
    delta: Tensor | None
    threshold: Tensor | None


class Open(NamedTuple):
    """What has accumulated of each weight in a chunk that is not full."""

    update: Tensor
    log_decay: Tensor
    threshold: Tensor


def run(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    norm: Norm | None,
    state: State,
    size: int,
    lengths: list[int],
) -> tuple[Tensor, State]:
    """As ``deep_op.run``: tokens ``[B,T,H,D]``, each row from a chunk's start, and the lengths of the sequences."""
    kept = spec.retention
    order = order_of(lengths, size, kept.leads, q.device)
    tokens = laid_out(q, k, v, gates)
    assert tokens[3] is not None
    rates = kept.rates(tokens[3].float(), None if tokens[4] is None else tokens[4].float())
    each = (*tokens[:3], rates.step, rates.log_decay, tokens[5], rates.threshold)
    call = Call(spec, norm, *gain_and_shift(norm, q), state.anchor, size, len(lengths))
    held = begun(kept, state)
    zero = torch.zeros_like(held[0].weight[..., :1, :1])
    left = tuple(Open(torch.zeros_like(h.weight), zero, zero) for h in held)
    outputs = []
    for piece, own in zip(order.pieces, zip(*map(order.cut, each), strict=True), strict=True):
        y, held, left = (led if piece.lead else moved)(call, piece, Chunk(*own), held, left)
        outputs.append(y)
    return order.together(outputs).reshape(q.shape), _state(call, held, left, lengths)


def begun(kept: Retention, state: State) -> tuple[Held, ...]:
    """The weights that a call starts from; a link reads what a state, or a user, gives it to accumulate in."""
    assert isinstance(state.weights, tuple)
    if isinstance(kept, Dual):
        return tuple(Held(a, kept.to_weight(a)) for a in state.accumulated)
    return tuple(Held(*pair) for pair in zip(state.accumulated, state.weights, strict=True))


def led(
    call: Call, piece: Piece, own: Chunk, held: tuple[Held, ...], left: tuple[Open, ...]
) -> tuple[Tensor, tuple[Held, ...], tuple[Open, ...]]:
    """The first tokens of a chunk: each takes the retention's step by itself and reads what that gives."""
    lines = tuple(Linear(h.weight) for h in held)
    _, ends = fused_chunk(call, piece, own._replace(log_decay=None), lines)
    updates = [h.weight - end for h, end in zip(held, ends, strict=True)]
    stepped = steps(call, held, *gates_of(call, piece, own), updates)
    y = read(call, piece.present, stepped, own.q)
    return y.to(own.q.dtype), replaced(piece.present, stepped, held), left


def moved(
    call: Call, piece: Piece, own: Chunk, held: tuple[Held, ...], left: tuple[Open, ...]
) -> tuple[Tensor, tuple[Held, ...], tuple[Open, ...]]:
    """A chunk's tokens move the weights and read them; where the chunk is full the retention's step follows, which its last token reads."""
    kept = call.spec.retention
    lines = moving(call, held)
    y, ends = fused_chunk(call, piece, own, lines)
    logs, thresholds = gates_of(call, piece, own)
    updates = [decayed(line, log) - end for line, log, end in zip(lines, logs, ends, strict=True)]
    if piece.closing is None or len(piece.closing.numbers):
        if kept.leads:
            stepped = tuple(kept.hold(end) for end in ends)
        else:
            stepped = steps(call, held, logs, thresholds, updates)
            if not kept.linear_step:
                y = y.index_copy(0, piece.ends, read(call, piece.closing, stepped, own.q[piece.ends]).to(y.dtype))
        held = replaced(piece.closing, stepped, held)
    if piece.closing is not None:
        # what is left open is a sequence's last chunk: nothing follows that would have to empty it
        opens = ~piece.closing.mask if piece.present is None else piece.present.mask & ~piece.closing.mask
        found = (
            Open(u, *(0 * u[..., :1, :1] if x is None else x for x in more))
            for u, *more in zip(updates, logs, thresholds, strict=True)
        )
        left = tuple(
            Open(*(where(opens, *pair) for pair in zip(new, old, strict=True))) for new, old in zip(found, left, strict=True)
        )
    return y, held, left


# of the outer weight and of the inner one, what a gate adds up to
Summed = tuple[Tensor | None, Tensor | None]


def steps(call: Call, held: tuple[Held, ...], logs: Summed, thresholds: Summed, updates: list[Tensor]) -> tuple[Held, ...]:
    """The retention's step of both weights."""
    each = zip(held, logs, updates, thresholds, call.anchor or (None, None), strict=True)
    return tuple(call.spec.retention.step(*own) for own in each)


def gates_of(call: Call, piece: Piece, own: Chunk) -> tuple[Summed, Summed]:
    """The logarithm of what all tokens of a piece keep, and their threshold."""
    return by_sequence(call, piece, own.log_decay), by_sequence(call, piece, _threshold(call, piece, own))


def moving(call: Call, held: tuple[Held, ...]) -> tuple[Linear, ...]:
    """How both weights move inside a chunk: as the retention says, or linearly where the first token has taken its step."""
    anchors = call.anchor or (None, None)
    if call.spec.retention.leads:
        return tuple(Linear(h.weight, towards=None if a is None else a.exp()) for h, a in zip(held, anchors, strict=True))
    return tuple(call.spec.retention.linear(h, a) for h, a in zip(held, anchors, strict=True))


def decayed(line: Linear, log_decay: Tensor | None) -> Tensor:
    """What decay alone leaves of a weight."""
    return decay(line.base, log_decay, line.towards)


def fused_chunk(call: Call, piece: Piece, own: Chunk, lines: tuple[Linear, ...]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What the tokens read, and the weights that they leave: b W - G, whatever the slope of what they read."""
    outer, inner = lines
    bias = fused(call.spec.bias)
    assert isinstance(bias, Fused)
    anchors: tuple[Tensor | None, ...] = (None, None)
    if own.log_decay is not None and outer.towards is not None and inner.towards is not None:
        anchors = (outer.towards.mT.contiguous(), inner.towards.contiguous())
    slopes = None
    if outer.slope is not None and inner.slope is not None:
        slopes = torch.stack([line.slope.flatten(1) for line in (outer, inner)], 2)  # type: ignore[union-attr]
    y, new1, new2, *_ = deep_op.deep_forward(
        *(None if x is None else x.contiguous() for x in own[:6]), outer.base.mT.contiguous(), inner.base.contiguous(), *anchors,
        call.gain, call.shift, slopes, [], [], list(piece.rows), call.size, bias.name, bias.p, *Link(), torch.is_grad_enabled(),
    )  # fmt: skip
    return y, (new1.mT, new2)


def by_sequence(call: Call, piece: Piece, gate: Tensor | None) -> Summed:
    """A gate's sum over each sequence's tokens, for the rows of the outer weight and for the columns of the inner one."""
    if gate is None:
        return None, None
    total = padded(call, piece, gate).sum(1)
    return total[..., :, None], total[..., None, :]


def padded(call: Call, piece: Piece, gate: Tensor) -> Tensor:
    """A gate by sequences, ``[R,C,H,D or 1]``, zeros where a sequence has no token."""
    room = gate.new_zeros(call.sequences * call.size, *gate.shape[1:])
    return room.index_copy(0, piece.slot, gate).view(call.sequences, call.size, *gate.shape[1:])


def _threshold(call: Call, piece: Piece, own: Chunk) -> Tensor | None:
    """Each token's share of its chunk's threshold: decayed to the chunk's end, or of the last token alone."""
    if own.threshold is None:
        return None
    if not call.spec.retention.sums_thresholds:
        after = padded(call, piece, torch.ones_like(own.threshold[:, :1, :1])).flip(1).cumsum(1).flip(1)
        last = (after == 1).flatten(0, 1)[piece.slot]
        return torch.where(last, own.threshold, 0.0)
    if own.log_decay is None:
        return own.threshold
    # of the tokens after each: all that are summed, since nothing may be taken off -inf again
    after = padded(call, piece, own.log_decay)[:, 1:]
    later = torch.cat([after.flip(1).cumsum(1).flip(1), torch.zeros_like(after[:, :1])], 1)
    return own.threshold * later.flatten(0, 1)[piece.slot].exp()


def read(call: Call, which: Some | None, held: tuple[Held, ...], q: Tensor) -> Tensor:
    """M(W; q) for one query ``[tokens,H,D]`` of each of these sequences."""
    weights = tuple(h.weight if which is None else h.weight[which.numbers] for h in held)
    norm = None if call.norm is None else Norm(*(x[:, None] for x in call.norm))
    memory = call.spec.memory
    return memory.recall(memory.maps(weights), q.float()[:, :, None], norm)[:, :, 0]


def where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """One or the other, sequence by sequence."""
    return torch.where(mask[:, None, None, None], new, old)


def replaced(which: Some | None, new: tuple[Held, ...], old: tuple[Held, ...]) -> tuple[Held, ...]:
    """The weights of these sequences anew."""
    if which is None:
        return new
    return tuple(Held(*(where(which.mask, a, b) for a, b in zip(x, y, strict=True))) for x, y in zip(new, old, strict=True))


def _state(call: Call, held: tuple[Held, ...], left: tuple[Open, ...], lengths: list[int]) -> State:
    """What is held as a state, its weights as the memory would read them now."""
    start, accumulated = tuple(h.weight for h in held), tuple(h.accumulated for h in held)
    position = torch.tensor([length % call.size for length in lengths])
    if not any(length % call.size for length in lengths):
        return State(start, accumulated, call.anchor, ())
    weights = tuple(
        decayed(line, own.log_decay) - (own.update if line.slope is None else line.slope * own.update)
        for line, own in zip(moving(call, held), left, strict=True)
    )
    updates, logs, thresholds = zip(*left, strict=True)
    return State(weights, accumulated, call.anchor, (), Progress(start, updates, logs, thresholds, position))
