"""What every form needs: a state to begin with, and gates shaped for each weight.

B batch, T time, H heads, K key channels, V value channels
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..algorithm import Descent, Newton, NonParametric
from ..memory import Side
from ..retention import L2, Dual
from ..spec import Spec
from ..types import AnyState, CacheState, Gates, Held, NewtonState, Norm, Progress, State, Weights


def begin(
    spec: Spec,
    weights: Weights | None,
    rows: int,
    heads: int,
    keys: int,
    values: int,
    like: Tensor,
    linked: bool = True,
) -> AnyState:
    """The state before the first token: initial weights ``[H,...]`` or ``[B,H,...]``, zeros where none are given.

    ``like`` has the device and the dtype that the memory works in. Where the weights are not ``linked``, they are what
    accumulates, for kernels that read through a link themselves.
    """
    if isinstance(spec.algorithm, NonParametric):
        lengths = torch.zeros(rows, dtype=torch.long, device=like.device)
        return CacheState(like.new_zeros(rows, 0, heads, keys), like.new_zeros(rows, 0, heads, values), lengths)
    shapes = [(rows, heads, *shape) for shape in spec.memory.shapes(keys, values)]
    given = [like.new_zeros(shape) for shape in shapes] if weights is None else list(weights)
    if isinstance(spec.algorithm, Newton):
        initial = given[0].expand(shapes[0])
        return NewtonState(initial, like.new_zeros(rows, heads, keys, keys), torch.zeros_like(initial), initial)
    assert isinstance(spec.algorithm, Descent)
    held = []
    for weight, shape in zip(given, shapes, strict=True):
        # rows that share their initial weights are started once
        shared = weight if weight.dim() == len(shape) else weight[None]
        bare = isinstance(spec.retention, Dual) and not linked
        started = Held(shared, shared) if bare else spec.retention.start(shared)
        held.append(Held(*(part.expand(shape) for part in started)))
    anchor = tuple(h.accumulated for h in held) if spec.retention.anchored else ()
    momentum = tuple(torch.zeros_like(h.weight) for h in held) if spec.algorithm.remembers else ()
    return state_of(held, anchor, momentum)


def cached(state: CacheState, k: Tensor, v: Tensor) -> CacheState:
    """The cache with the pairs of more tokens."""
    return CacheState(torch.cat([state.keys, k], 1), torch.cat([state.values, v], 1), state.lengths + k.shape[1])


def seen(state: CacheState) -> Tensor:
    """Which of the cached pairs are a row's own, ``[B,S]``."""
    size = state.keys.shape[1]
    return torch.arange(size, device=state.keys.device) >= size - state.lengths[:, None]


def stacked(states: Sequence[AnyState]) -> AnyState:
    """States of one row each as the rows of one state; caches are filled up on the left, and chunks begun where one is."""
    if isinstance(states[0], CacheState):
        size = max(state.keys.shape[1] for state in states if isinstance(state, CacheState))
        states = [
            state._replace(keys=_left_padded(state.keys, size), values=_left_padded(state.values, size))
            for state in states
            if isinstance(state, CacheState)
        ]
    if any(isinstance(state, State) and state.chunk is not None for state in states):
        states = [_in_a_chunk(state) if isinstance(state, State) else state for state in states]

    def joined(*rows: Tensor | None) -> Tensor | None:
        # a decay may be a scalar in one row and channel-wise in another
        return None if rows[0] is None else torch.cat(torch.broadcast_tensors(*rows), 0)  # type: ignore[no-untyped-call]

    together: AnyState = pytree.tree_map(joined, *states)
    return together


def each_row(state: AnyState) -> list[AnyState]:
    """The states of all rows, each still with a row.

    All are cut at once, so that the backward pass puts their gradients together once.
    """
    leaves, structure = pytree.tree_flatten(state)
    rows = len(next(x for x in leaves if x is not None))
    apart = [[None] * rows if x is None else x.split(1) for x in leaves]
    return [pytree.tree_unflatten(list(own), structure) for own in zip(*apart, strict=True)]


def picked(state: AnyState, rows: list[int]) -> AnyState:
    """The state of some rows of another, in their order; of all of them itself."""
    every = len(as_tuple(state.weights)[0])
    if rows == list(range(every)):
        return state
    own = each_row(state)
    return stacked([own[row] for row in rows])


def replaced(state: AnyState, rows: list[int], own: AnyState) -> AnyState:
    """A state with some of its rows, in their order, as another has them."""
    if len(rows) == len(as_tuple(state.weights)[0]):
        return own
    every = each_row(state)
    for row, new in zip(rows, each_row(own), strict=True):
        every[row] = new
    return stacked(every)


def _in_a_chunk(state: State) -> State:
    """A state that says where in its chunk it stands, if only at its start."""
    if state.chunk is not None:
        return state
    start = as_tuple(state.weights)
    return state._replace(
        chunk=Progress(start, *unmoved(start), torch.zeros(start[0].shape[0], dtype=torch.long, device="cpu"))
    )


def unmoved(start: Weights) -> tuple[Weights, Weights, Weights]:
    """What has accumulated at a chunk's start, and its decays and thresholds: nothing yet."""
    single = tuple(torch.zeros_like(w[..., :1] if w.dim() == 3 else w[..., :1, :1]) for w in start)
    return tuple(torch.zeros_like(w) for w in start), single, single


def _left_padded(pairs: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(pairs, (0, 0, 0, 0, size - pairs.shape[1], 0))


def held_of(state: State) -> list[Held]:
    """The state's weights as its retention keeps them."""
    return [Held(*pair) for pair in zip(state.accumulated, as_tuple(state.weights), strict=True)]


def state_of(held: Sequence[Held], anchor: Weights, momentum: Weights) -> State:
    """The state of what a retention keeps."""
    weights = tuple(h.weight for h in held)
    return State(weights[0] if len(weights) == 1 else weights, tuple(h.accumulated for h in held), anchor, momentum)


def split(x: Tensor, axis: int, parts: int) -> Tensor:
    """An axis cut into ``parts`` of equal length."""
    return x.reshape(*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis:][1:])


def as_tuple(weights: Tensor | Weights) -> Weights:
    """One weight or several, as several."""
    return (weights,) if isinstance(weights, Tensor) else weights


def none_for(held: Sequence[Held]) -> tuple[None, ...]:
    """Nothing, for each weight."""
    return (None,) * len(held)


def spread(side: Side, gate: Tensor) -> Tensor:
    """A gate ``[B,H,D or 1]`` shaped to act on its side of a weight."""
    if side == "mean":
        return gate.mean(-1)[..., None, None]
    return {"out": gate[..., :, None], "in": gate[..., None, :], "each": gate}[side]


def decays(spec: Spec, gates: Gates, t: int) -> Weights | None:
    """log alpha of token t, shaped for each weight, or None where the spec has none."""
    if gates.log_alpha is None:
        return None
    log_alpha = gates.log_alpha[:, t]
    if isinstance(spec.retention, L2) and spec.retention.side != "value":
        shaped = spread("in", log_alpha)
        return (shaped if gates.log_beta is None else shaped + spread("out", gates.log_beta[:, t]),)
    return tuple(spread(side, log_alpha) for side in spec.memory.sides)


def per_head(norm: Norm | None, axes: int) -> Norm | None:
    """Gain and shift ``[H,V]`` with ``axes`` between head and channel."""
    if norm is None:
        return None
    shape = (norm.gain.shape[0], *[1] * axes, norm.gain.shape[1])
    return Norm(norm.gain.reshape(shape), norm.shift.reshape(shape))
