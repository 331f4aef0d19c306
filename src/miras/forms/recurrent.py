"""The recurrent form: one token at a time, exact, any spec. It is the specification of every other form.

B batch, T time, H heads, K key channels, V value channels, D = K = V where a memory needs them equal
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..algorithm import Descent, NonParametric
from ..algorithm.newton import solve
from ..algorithm.non_parametric import attend
from ..memory import Side
from ..spec import Spec
from ..types import AnyState, CacheState, Gates, NewtonState, Norm, State, Weights
from .common import as_tuple, cached, decays, held_of, none_for, per_head, seen, spread, state_of


def recurrent(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, gates: Gates, norm: Norm | None, state: AnyState
) -> tuple[Tensor, AnyState]:
    """Memorise ``k, v`` and recall ``q``, token by token.

    All tensors are ``[B,T,H,D]``, gates among them (a scalar gate has D = 1; k, v and eta have ``T * pairs`` tokens).
    Returns y ``[B,T,H,V]`` and the state after the last token.
    """
    outputs = [v.new_zeros(q.shape[0], 0, *v.shape[2:])]
    for t in range(q.shape[1]):
        if isinstance(state, CacheState):
            state = cached(state, k[:, t : t + 1], v[:, t : t + 1])
        elif isinstance(state, NewtonState):
            state = absorb(state, k, v, gates, t)
        else:
            state = learn(spec, state, k, v, gates, norm, t)
        outputs.append(read(spec, state, q[:, t : t + 1], norm))
    return torch.cat(outputs, 1), state


def read(spec: Spec, state: AnyState, q: Tensor, norm: Norm | None) -> Tensor:
    """M(W; q) for every query ``[B,N,H,K]``, all from the same state."""
    if isinstance(state, CacheState):
        assert isinstance(spec.algorithm, NonParametric)
        return attend(q, state.keys, state.values, seen(state), spec.algorithm.scale_for(q.shape[-1]))
    maps = spec.memory.maps(as_tuple(state.weights))
    return spec.memory.recall(maps, q.transpose(1, 2), per_head(norm, 1)).transpose(1, 2)


def learn(spec: Spec, state: State, k: Tensor, v: Tensor, gates: Gates, norm: Norm | None, t: int) -> State:
    """One token of fast weights: for each of its pairs the surprise, what is retained, what is learned."""
    algorithm, retention, memory = spec.algorithm, spec.retention, spec.memory
    assert isinstance(algorithm, Descent) and gates.eta is not None
    held = held_of(state)
    none = none_for(held)
    anchor = state.anchor or none
    momentum: tuple[Tensor | None, ...] = state.momentum or none
    mu = none if gates.mu is None else tuple(spread(side, gates.mu[:, t]) for side in memory.sides)
    for i in range(algorithm.pairs):
        at = t * algorithm.pairs + i
        eta = algorithm.rate(gates.eta[:, at], memory.curvature(k[:, at]) if memory.linear else None)
        sides: tuple[Side, ...] = ("in",) if spec.decoupled else memory.sides
        steps = tuple(spread(side, eta) for side in sides)
        log_alpha = decays(spec, gates, t) or none if i == 0 else none
        rates = [retention.rates(*gate) for gate in zip(steps, log_alpha, strict=True)]
        probe = tuple(retention.probe(h, r.log_decay, a) for h, r, a in zip(held, rates, anchor, strict=True))
        gradient = removal(probe, gates, at) if spec.decoupled else surprise(spec, probe, k, v, gates, norm, t, at)
        learned = [r.step * g for r, g in zip(rates, gradient, strict=True)]
        if spec.decoupled:
            learned = [learned[0] - v[:, at, :, :, None] * k[:, at, :, None, :]]
        moves = [algorithm.move(*move) for move in zip(momentum, learned, mu, strict=True)]
        momentum = tuple(s for s, _ in moves)
        held = [
            retention.step(h, r.log_decay, update, r.threshold, a)
            for h, r, (_, update), a in zip(held, rates, moves, anchor, strict=True)
        ]
    return state_of(held, state.anchor, tuple(s for s in momentum if s is not None))


def surprise(spec: Spec, weights: Weights, k: Tensor, v: Tensor, gates: Gates, norm: Norm | None, t: int, at: int) -> Weights:
    """grad_W loss(M(W; k), v) of the pair ``at`` of token ``t``, in closed form."""
    maps = spec.memory.maps(weights)
    prediction, trace = spec.memory.trace(maps, k[:, at, :, None], per_head(norm, 1))
    delta = None if gates.delta is None else gates.delta[:, t, :, None]
    error = spec.bias.gradient(prediction, v[:, at, :, None], delta)
    return tuple(spec.memory.gradient(factor) for factor in spec.memory.backprop(maps, trace, error))


def removal(weights: Weights, gates: Gates, at: int) -> Weights:
    """(W kappa) kappa': what a decoupled step takes away, before its rate."""
    assert gates.kappa is not None
    kappa = gates.kappa[:, at, :, None]
    return ((kappa @ weights[0].mT).mT @ kappa,)


def absorb(state: NewtonState, k: Tensor, v: Tensor, gates: Gates, t: int) -> NewtonState:
    """One token of Newton's algorithm: the decayed sums take in the pair, the weights are solved for again."""
    assert gates.eta is not None and gates.ridge is not None
    weight = gates.eta[:, t, :, None]
    kept = torch.ones_like(weight) if gates.log_alpha is None else gates.log_alpha[:, t, :, None].exp()
    key_key = kept * state.key_key + weight * k[:, t, :, :, None] * k[:, t, :, None, :]
    value_key = kept * state.value_key + weight * v[:, t, :, :, None] * k[:, t, :, None, :]
    weights = solve(key_key, value_key, gates.ridge, state.anchor)
    return NewtonState(weights, key_key, value_key, state.anchor)
