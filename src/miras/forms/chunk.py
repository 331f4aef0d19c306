"""The chunk form: in parallel over the tokens of a chunk, exact where the algebra allows it.

B batch, T time, H heads, D channels, C tokens of a chunk, N chunks of a stretch, P pairs a token
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithm import Descent, GradientDescent, ImplicitGD, Momentum, MultiStep, Newton, NonParametric
from ..bias import L2 as L2Bias
from ..bias import DotProduct
from ..memory import Matrix
from ..retention import L2, Keep, Retention
from ..retention.base import decay
from ..rows import on_device, places
from ..spec import Spec
from ..torch_modes import again
from ..types import AnyState, CacheState, Gates, Held, NewtonState, Norm, Progress, State, require
from .attention import attention
from .chunk_delta import chunk_delta
from .chunk_newton import chunk_newton
from .chunk_scan import Carry, Tokens, run
from .common import held_of, none_for, split, unmoved

# chunks whose intermediate results are kept for the backward pass; further ones are recomputed from the state before them
STRETCH = 16


def no_chunks(spec: Spec) -> str | None:
    """Why a spec has no chunk form, or None where it has one: parts of a user's own may move as only they know."""
    if isinstance(spec.algorithm, NonParametric | Newton):
        return None
    known = (GradientDescent, ImplicitGD, Momentum, MultiStep)
    if not isinstance(spec.algorithm, known):
        names = ", ".join(kind.__name__ for kind in known)
        return f"the chunk form runs {names}; {spec.algorithm.label} moves in a way of its own"
    if not isinstance(spec.retention, L2) and type(spec.retention).probe is not Retention.probe:
        return f"{spec.retention.label} measures the surprise at a place of its own, which the chunk form does not know"
    return None


def family(spec: Spec) -> str:
    """How the chunk form runs a spec: "scan" is the paper's approximation, the other families are exact."""
    if isinstance(spec.algorithm, NonParametric):
        return "attention"
    if isinstance(spec.algorithm, Newton):
        return "newton"
    refused = no_chunks(spec)
    require(refused is None, f"{refused}: use form='recurrent'")
    quadratic = isinstance(spec.retention, Keep | L2)
    if isinstance(spec.memory, Matrix) and isinstance(spec.bias, L2Bias) and quadratic:
        return "scan" if isinstance(spec.algorithm, Momentum) else "delta"
    return "hebbian" if spec.memory.linear and isinstance(spec.bias, DotProduct) and quadratic else "scan"


def chunk(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    norm: Norm | None,
    state: AnyState,
    size: int,
    lengths: list[int] | None = None,
) -> tuple[Tensor, AnyState]:
    """Memorise ``k, v`` and recall ``q``, chunk by chunk; arguments and results as in the recurrent form.

    ``lengths`` are the tokens that each row really has, where rows are filled up on the right.
    """
    if isinstance(state, CacheState):
        assert isinstance(spec.algorithm, NonParametric)
        return attention(spec.algorithm, q, k, v, state, lengths)
    valid = None if lengths is None else _valid(lengths, q.shape[1], q.device)
    if isinstance(state, NewtonState):
        return chunk_newton(q, k, v, gates, state, size, valid)
    assert isinstance(spec.algorithm, Descent)
    pairs = spec.algorithm.pairs
    tokens = _by_head(q, k, v, gates, pairs)
    if family(spec) == "delta":
        kappa = None if gates.kappa is None else gates.kappa.transpose(1, 2)
        there = None if valid is None else valid.repeat_interleave(pairs, 1)
        y, end = chunk_delta(spec, tokens, kappa, state, size * pairs, there)
    else:
        counts = None if lengths is None else [length * pairs for length in lengths]
        y, end = _fast_weights(spec, tokens, norm, state, size, counts)
    return y[:, :, pairs - 1 :: pairs].transpose(1, 2), end


def _valid(lengths: list[int], time: int, device: torch.device) -> Tensor:
    return torch.arange(time, device=device) < on_device(lengths, device)[:, None]


def _fast_weights(
    spec: Spec, tokens: Tokens, norm: Norm | None, state: State, size: int, counts: list[int] | None
) -> tuple[Tensor, State]:
    """Fast weights by stretches of chunks, each row from its own place in its chunk; y is read after every pair."""
    rows, time = tokens.q.shape[0], tokens.q.shape[2]
    exact = family(spec) == "hebbian"
    positions = places(state)
    require(
        min(positions) >= 0 and max(positions) < size,
        f"state stands {max(positions, key=abs)} tokens into its chunk, so it cannot go on with chunk_size={size}",
    )
    carry = _carry_of(state, positions)
    if counts is None and len(set(positions)) == 1:
        y, carry = _even(spec, tokens, norm, carry, size, positions[0], exact)
        reached = [0 if exact else (positions[0] + time) % size] * rows
    else:
        counts = [time] * rows if counts is None else counts
        y, carry = _uneven(spec, tokens, norm, carry, size, positions, counts)
        reached = [0 if exact else (p + n) % size for p, n in zip(positions, counts, strict=True)]
        if exact:
            carry = _closed(spec, carry)
    return y, _state_of(spec, carry, reached)


def _by_head(q: Tensor, k: Tensor, v: Tensor, gates: Gates, pairs: int) -> Tokens:
    """All tokens, heads first; where a token has several pairs, it decays with the first and is read after the last."""

    def first(x: Tensor | None) -> Tensor | None:
        return x if x is None or pairs == 1 else F.pad(x[:, :, None], (0, 0, 0, 0, 0, pairs - 1)).flatten(1, 2)

    def each(x: Tensor | None) -> Tensor | None:
        return x if x is None or pairs == 1 else x.repeat_interleave(pairs, 1)

    last = q if pairs == 1 else F.pad(q[:, :, None], (0, 0, 0, 0, pairs - 1, 0)).flatten(1, 2)
    given = (last, k, v, gates.eta, first(gates.log_alpha), first(gates.log_beta), each(gates.delta), gates.mu)
    return Tokens(*(None if x is None else x.transpose(1, 2) for x in given), None)  # type: ignore


def _even(
    spec: Spec, tokens: Tokens, norm: Norm | None, carry: Carry, size: int, position: int, exact: bool
) -> tuple[Tensor, Carry]:
    """All rows at the same place: what is left of a begun chunk, whole chunks by stretches, and a tail."""
    time = tokens.q.shape[2]
    outputs = [tokens.v.new_zeros(*tokens.v.shape[:2], 0, tokens.v.shape[3])]
    pieces = []
    if position:
        pieces.append((1, min(size - position, time), position + time >= size, False))
    left = sum(n * c for n, c, *_ in pieces)
    while left < time:
        chunks = min(STRETCH, (time - left) // size)
        pieces.append((chunks, size, True, True) if chunks else (1, time - left, exact, True))
        left += pieces[-1][0] * pieces[-1][1]
    # taken apart once, so that the backward pass puts it together once
    sizes = [n * c for n, c, *_ in pieces]
    apart = zip(*(torch.split(x, sizes, 2) if x is not None else [None] * len(sizes) for x in tokens), strict=True)
    for piece, (chunks, width, closes, at_start) in zip(apart, pieces, strict=True):
        cut = Tokens(*piece).stretch(0, chunks, width)
        y, carry = _stretch(spec, cut, norm, carry, closes, at_start, len(pieces) > 2)
        outputs.append(y.flatten(2, 3))
    return torch.cat(outputs, 2), carry


def _uneven(
    spec: Spec, tokens: Tokens, norm: Norm | None, carry: Carry, size: int, positions: list[int], counts: list[int]
) -> tuple[Tensor, Carry]:
    """Rows at different places or of different lengths: each is laid out so that its chunks end where all others' do."""
    device = tokens.q.device
    chunks = -(-max(p + n for p, n in zip(positions, counts, strict=True)) // size)
    begin, count = on_device(positions, device)[:, None], on_device(counts, device)[:, None]
    slot = torch.arange(chunks * size, device=device)
    token = slot - begin  # [B,S]: which token stands in a slot
    valid = (token >= 0) & (token < count)
    source = token.clamp(0, max(tokens.q.shape[2] - 1, 0))

    def laid_out(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        index = source[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
        return torch.where(valid[:, None, :, None], x.gather(2, index), 0.0)

    flat = Tokens(*map(laid_out, tokens))  # type: ignore[arg-type]
    carry = _waiting(carry)
    outputs = [tokens.v.new_zeros(*tokens.v.shape[:2], 0, tokens.v.shape[3])]
    for left in range(0, chunks, STRETCH):
        number = min(STRETCH, chunks - left)
        cut = flat.stretch(left * size, number, size)
        there = split(valid[:, left * size : (left + number) * size], 1, number)
        y, carry = _stretch(spec, cut._replace(valid=there), norm, carry, there[:, :, -1], True, chunks > STRETCH)
        outputs.append(y.flatten(2, 3))
    time = torch.arange(tokens.q.shape[2], device=device)
    back = (begin + time).clamp(max=chunks * size - 1)[:, None, :, None]
    y = torch.cat(outputs, 2)
    y = y.gather(2, back.expand(-1, y.shape[1], -1, y.shape[3]))
    return torch.where((time < count)[:, None, :, None], y, 0.0), carry


def _stretch(
    spec: Spec, tokens: Tokens, norm: Norm | None, carry: Carry, closes: bool | Tensor, at_start: bool, recompute: bool
) -> tuple[Tensor, Carry]:
    """One stretch; one of many is recomputed in the backward pass, so that no more than one keeps its intermediate results."""
    arguments = (spec, tokens, norm, carry, closes, at_start)
    return again(run, *arguments) if recompute else run(*arguments)


def _carry_of(state: State, positions: list[int]) -> Carry:
    momentum, progress = tuple(-s for s in state.momentum), state.chunk
    if progress is None or not any(positions):
        return Carry(tuple(held_of(state)), state.anchor, momentum)
    held = tuple(Held(*pair) for pair in zip(state.accumulated, progress.start, strict=True))
    return Carry(held, state.anchor, momentum, progress.moved, progress.log_decay, progress.threshold)


def _waiting(carry: Carry) -> Carry:
    """A carry that has room for what a chunk accumulates."""
    if carry.moved:
        return carry
    moved, log_decay, threshold = unmoved(tuple(h.weight for h in carry.held))
    return carry._replace(moved=moved, log_decay=log_decay, threshold=threshold)


def _closed(spec: Spec, carry: Carry) -> Carry:
    """An exact carry with what has moved taken in."""
    if not carry.moved:
        return carry
    anchors = carry.anchor or none_for(carry.held)
    held = [
        spec.retention.step(h, log, moved, None, anchor)
        for h, log, moved, anchor in zip(carry.held, carry.log_decay, carry.moved, anchors, strict=True)
    ]
    return Carry(tuple(held), carry.anchor, carry.momentum)


def _state_of(spec: Spec, carry: Carry, positions: list[int]) -> State:
    """The carry as a state, its weights as the memory would read them now."""
    accumulated = tuple(h.accumulated for h in carry.held)
    start = tuple(h.weight for h in carry.held)
    momentum = tuple(-p for p in carry.momentum)
    weights, progress = start, None
    if any(positions) or carry.moved:
        carry = _waiting(carry)
        anchors = carry.anchor or none_for(carry.held)
        weights = tuple(
            _moved(spec, h, log, moved, anchor)
            for h, log, moved, anchor in zip(carry.held, carry.log_decay, carry.moved, anchors, strict=True)
        )
        progress = Progress(start, carry.moved, carry.log_decay, carry.threshold, torch.tensor(positions, device="cpu"))
    return State(weights[0] if len(weights) == 1 else weights, accumulated, carry.anchor, momentum, progress)


def _moved(spec: Spec, held: Held, log_decay: Tensor, moved: Tensor, anchor: Tensor | None) -> Tensor:
    """A weight in the middle of a chunk: towards + b (base - towards) - slope * centred G."""
    if spec.retention.leads:
        return decay(held.weight, log_decay, None if anchor is None else anchor.exp()) - moved
    base, decays, towards, slope, centre = spec.retention.linear(held, anchor)
    base = decay(base, log_decay, towards) if decays else base
    update = moved - moved.mean(centre, keepdim=True) if centre else moved
    return base - (update if slope is None else slope * update)
