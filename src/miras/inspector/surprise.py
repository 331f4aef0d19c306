"""How surprised a memory is by tokens, at the place where it takes their gradients.

B batch, N tokens, P pairs a token, H heads, K key channels, V value channels, D channels of a gate
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..algorithm import Descent
from ..bias import DotProduct, Huber
from ..forms.chunk import family, no_chunks
from ..forms.common import as_tuple, decays, held_of, none_for, per_head, split, spread
from ..forms.recurrent import surprise as gradient_of
from ..retention import L2
from ..spec import Spec
from ..types import Gates, Held, NewtonState, Norm, State, Weights


def way(spec: Spec) -> str:
    """How a layer runs a spec: the chunk form's family, or "own" where the recurrent form alone knows how."""
    return "own" if no_chunks(spec) is not None else family(spec)


class Pairs(NamedTuple):
    """Tokens as the memory takes them: k ``[B,N P,H,K]``, v ``[B,N P,H,V]``, gates ``[B,N,H,D or 1]`` (eta ``[B,N P,..]``)."""

    k: Tensor
    v: Tensor
    gates: Gates
    each: int

    def cut(self, left: int, right: int) -> Pairs:
        """The tokens from ``left`` to ``right``."""
        every = {name: self.each if name == "eta" else 1 for name in Gates._fields if name != "ridge"}
        gates = {
            name: gate[:, left * every[name] : right * every[name]] if name in every else gate
            for name, gate in self.gates._asdict().items()
            if gate is not None
        }
        first, last = left * self.each, right * self.each
        return Pairs(self.k[:, first:last], self.v[:, first:last], Gates(**gates), self.each)


class Surprise(NamedTuple):
    """What the tokens of a stretch are to a memory, ``[B,N,H]`` each.

    ``gradient`` is ||g||, g = grad_W loss(M(W; k), v) over all weights; ``error`` ||M(W; k) - v||, None where the memory
    does not compare the two; ``clipped`` the share of the error's coordinates above the Huber threshold, None without one.
    Where a token has several pairs they are those of all pairs together.
    """

    gradient: Tensor
    error: Tensor | None
    clipped: Tensor | None


def surprise(spec: Spec, pairs: Pairs, norm: Norm | None, state: State | NewtonState) -> Surprise:
    """The surprise of a stretch of tokens that all take their gradients from one state, the state before them."""
    if spec.decoupled:
        return _decoupled(spec, pairs, state)
    if spec.memory.linear and isinstance(spec.bias, DotProduct):
        size = _size(spec, pairs.v.transpose(1, 2), pairs.k.transpose(1, 2))
        return Surprise(_together(size, pairs.each), None, None)
    if pairs.each > 1 and way(spec) == "delta":
        return _pair_by_pair(spec, pairs, norm, state)
    found = [_at(spec, weights, pairs.cut(left, right), norm) for left, right, weights in _places(spec, pairs, state)]
    columns = zip(*found, strict=True)
    gradient, error, clipped = (None if column[0] is None else torch.cat(column, 1) for column in columns)
    assert gradient is not None
    return Surprise(gradient, error, clipped)


def _places(spec: Spec, pairs: Pairs, state: State | NewtonState) -> Iterator[tuple[int, int, Weights]]:
    """Stretches of tokens and the weights at which their gradients are taken.

    All at the chunk's start, but for ``L2(at="decayed")``: token t's are at b_t W, b_t the decay since then. Parts of a
    user's own are asked for the place of the one token.
    """
    time = pairs.v.shape[1] // pairs.each
    if isinstance(state, NewtonState):
        yield 0, time, (state.weights,)
        return
    if way(spec) == "own":
        yield 0, time, _probed(spec, pairs, state)
        return
    start = as_tuple(state.weights) if state.chunk is None else state.chunk.start
    log_alpha = pairs.gates.log_alpha
    if not (isinstance(spec.retention, L2) and spec.retention.at == "decayed" and log_alpha is not None):
        yield 0, time, start
        return
    held = [Held(*pair) for pair in zip(state.accumulated, start, strict=True)]
    log_beta = pairs.gates.log_beta
    total = Gates(log_alpha=log_alpha.cumsum(1), log_beta=None if log_beta is None else log_beta.cumsum(1))
    anchor = state.anchor or (None,) * len(held)
    for t in range(time):
        kept = decays(spec, total, t)
        assert kept is not None
        yield t, t + 1, tuple(spec.retention.probe(*each) for each in zip(held, kept, anchor, strict=True))


def _probed(spec: Spec, pairs: Pairs, state: State) -> Weights:
    """The weights at which one token takes its gradient, as the recurrent form asks its retention."""
    algorithm, retention, held, k = spec.algorithm, spec.retention, held_of(state), pairs.k[:, 0]
    assert isinstance(algorithm, Descent) and pairs.gates.eta is not None
    eta = algorithm.rate(pairs.gates.eta[:, 0], spec.memory.curvature(k) if spec.memory.linear else None)
    kept = decays(spec, pairs.gates, 0) or none_for(held)
    rates = [retention.rates(spread(side, eta), decay) for side, decay in zip(spec.memory.sides, kept, strict=True)]
    anchor = state.anchor or none_for(held)
    return tuple(retention.probe(h, r.log_decay, a) for h, r, a in zip(held, rates, anchor, strict=True))


def _at(spec: Spec, weights: Weights, pairs: Pairs, norm: Norm | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradient, error and share of clipped coordinates of tokens at given weights."""
    k, v = pairs.k.transpose(1, 2), pairs.v.transpose(1, 2)
    delta = pairs.gates.delta
    if delta is not None:
        delta = delta.repeat_interleave(pairs.each, 1).transpose(1, 2)
    maps = spec.memory.maps(weights)
    prediction, trace = spec.memory.trace(maps, k, per_head(norm, 1))
    factors = spec.memory.backprop(maps, trace, spec.bias.gradient(prediction, v, delta))
    sizes = torch.stack([_size(spec, factor.error, factor.input) for factor in factors]).norm(dim=0)
    error = prediction - v
    clipped = None
    if isinstance(spec.bias, Huber):
        threshold = delta if spec.bias.delta is None else torch.as_tensor(spec.bias.delta).to(error)
        assert threshold is not None
        size = error.abs() if spec.bias.form == "coordinate" else error.norm(dim=-1, keepdim=True)
        share = (size > threshold).to(error.dtype).mean(-1).transpose(1, 2)
        clipped = split(share, 1, share.shape[1] // pairs.each).mean(2)
    return _together(sizes, pairs.each), _together(_norm(error), pairs.each), clipped


def _pair_by_pair(spec: Spec, pairs: Pairs, norm: Norm | None, state: State | NewtonState) -> Surprise:
    """One token of several delta steps: each of its pairs meets what the one before has written."""
    assert isinstance(state, State) and pairs.gates.eta is not None
    anchor = state.anchor[0] if state.anchor else None
    kept = decays(spec, pairs.gates, 0)
    log_decay = None if kept is None else kept[0]
    held = Held(state.accumulated[0], as_tuple(state.weights)[0])
    sizes, errors = [], []
    for i in range(pairs.each):
        place = (spec.retention.probe(held, log_decay, anchor),)
        own = Pairs(pairs.k[:, i : i + 1], pairs.v[:, i : i + 1], pairs.gates, 1)
        size, error, _ = _at(spec, place, own, norm)
        sizes.append(size)
        errors.append(error)
        gradient = gradient_of(spec, place, pairs.k, pairs.v, pairs.gates, norm, 0, i)[0]
        held = spec.retention.step(held, log_decay, spread("out", pairs.gates.eta[:, i]) * gradient, None, anchor)
        log_decay = None
    return Surprise(torch.stack(sizes).norm(dim=0), torch.stack(errors).norm(dim=0), None)


def _size(spec: Spec, error: Tensor, given: Tensor) -> Tensor:
    """The norm of a weight's gradient by token, ``[B,H,N P]``: that of an outer product, or of a vector memory's product."""
    if spec.memory.sides == ("each",):
        return _norm(error * given)
    return _norm(error) * _norm(given)


def _together(sizes: Tensor, each: int) -> Tensor:
    """``[B,H,N P] -> [B,N,H]``: the norm over a token's pairs."""
    return _norm(split(sizes, 2, sizes.shape[2] // each)).transpose(1, 2)


def _norm(x: Tensor) -> Tensor:
    """||x|| over the last axis."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return size


def _decoupled(spec: Spec, pairs: Pairs, state: State | NewtonState) -> Surprise:
    """RWKV-7 removes one key and writes another: its surprise is all that it changes, ||(W kappa)(a * kappa)' - v k'||."""
    kappa, eta = pairs.gates.kappa, pairs.gates.eta
    assert kappa is not None and eta is not None
    ((_, _, weights),) = _places(spec, pairs, state)
    removed = kappa.transpose(1, 2) @ weights[0].mT  # [B,H,N,V]
    rate = (eta * kappa).transpose(1, 2)
    change = removed[..., :, None] * rate[..., None, :]
    change = change - pairs.v.transpose(1, 2)[..., :, None] * pairs.k.transpose(1, 2)[..., None, :]
    return Surprise(_norm(change.flatten(-2)).transpose(1, 2), None, None)
