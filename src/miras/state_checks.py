"""A state that is given, checked against the spec and the sizes that go on with it: its structure, shapes, dtypes and device.

B batch, T time, H heads, K key channels, V value channels, S pairs that a cache holds
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .algorithm import Descent, Newton, NonParametric
from .checks import Shapes, floating, norm_of, spec_of
from .spec import Spec
from .types import AnyState, CacheState, NewtonState, Norm, Progress, State, Weights, require

Sizes = list[tuple[int, ...]]


def state_of(spec: Spec, state: AnyState, shapes: Shapes, like: Tensor, form: str) -> AnyState:
    """Check that a state belongs to this spec and these sizes."""
    _kind(spec, state)
    wanted: Sizes = [(shapes.rows, shapes.heads, *shape) for shape in spec.memory.shapes(shapes.keys, shapes.values)]
    if isinstance(state, CacheState):
        rows, past = state.keys.shape[:2]
        wanted = [(shapes.rows, past, shapes.heads, shapes.keys), (rows, past, shapes.heads, shapes.values)]
    held = state.weights if isinstance(state.weights, tuple) else (state.weights,)
    if _sizes(held) != wanted:
        raise ValueError(f"state must hold weights of shapes {wanted} for {spec}, got {_sizes(held)}")
    _alike("state", held, like)
    for name, part, sizes in _parts(spec, state, shapes, wanted, form):
        require(_sizes(part) == sizes, f"state's {name} must have the shapes {sizes} for {spec}, got {_sizes(part)}")
        _alike(f"state's {name}", part, like)
    return state


def _alike(name: str, tensors: Weights, like: Tensor) -> None:
    for x in tensors:
        if x.dtype != like.dtype:
            raise ValueError(f"{name} is {x.dtype}, but q asks for {like.dtype}")
        if x.device != like.device:
            raise ValueError(f"{name} is on {x.device}, but q is on {like.device}")


def _sizes(tensors: Weights) -> Sizes:
    return [tuple(x.shape) for x in tensors]


def _parts(spec: Spec, state: AnyState, shapes: Shapes, wanted: Sizes, form: str) -> Iterator[tuple[str, Weights, Sizes]]:
    """What a state holds beside its weights, by name, and the shapes that it must have."""
    if isinstance(state, CacheState):
        _counts("lengths", state.lengths, state.keys.shape[0])
    elif isinstance(state, NewtonState):
        rows = (shapes.rows, shapes.heads)
        yield "key_key", (state.key_key,), [(*rows, shapes.keys, shapes.keys)]
        yield "value_key", (state.value_key,), [(*rows, shapes.values, shapes.keys)]
        yield "anchor", (state.anchor,), wanted
    else:
        yield "accumulated", state.accumulated, wanted
        remembers = isinstance(spec.algorithm, Descent) and spec.algorithm.remembers
        if bool(state.momentum) != remembers:
            raise ValueError(f"state {'lacks a' if remembers else 'has a'} momentum, unlike {spec}")
        yield "momentum", state.momentum, wanted if remembers else []
        anchored = spec.retention.anchored
        if bool(state.anchor) != anchored:
            raise ValueError(f"state {'lacks an' if anchored else 'has an'} anchor, unlike {spec}")
        yield "anchor", state.anchor, wanted if anchored else []
        if state.chunk is not None:
            yield from _progress(state.chunk, shapes.rows, wanted, form)


def _progress(chunk: Progress, rows: int, wanted: Sizes, form: str) -> Iterator[tuple[str, Weights, Sizes]]:
    """Of a chunk that was begun: gates have one number where they are the same along an axis of their weight."""
    _counts("chunk.position", chunk.position, rows)
    if form != "chunk" and bool(chunk.position.any()):
        raise ValueError("state stands in the middle of a chunk: go on with form='chunk'")
    yield "chunk.start", chunk.start, wanted
    yield "chunk.moved", chunk.moved, wanted
    for name in ("log_decay", "threshold"):
        gates: Weights = getattr(chunk, name)
        several = len(gates) == len(wanted)
        yield f"chunk.{name}", gates, list(map(_narrowed, _sizes(gates), wanted)) if several else wanted


def _narrowed(size: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """A gate's own size where it can be spread over its weight's, else that."""
    fits = len(size) == len(whole) and all(own in (1, full) for own, full in zip(size, whole, strict=True))
    return size if fits else whole


def _counts(name: str, given: Tensor, rows: int) -> None:
    """Refuse what is not a whole number for each row."""
    whole = given.dtype in (torch.int64, torch.int32)
    fits = whole and tuple(given.shape) == (rows,)
    require(
        fits, f"state's {name} must be a whole number for each of {rows} rows, got {given.dtype} of shape {list(given.shape)}"
    )


def _kind(spec: Spec, state: AnyState) -> None:
    kind = {Newton: NewtonState, NonParametric: CacheState}.get(type(spec.algorithm), State)
    if not isinstance(state, kind):
        raise ValueError(f"state must be a {kind.__name__} for {spec}, got {type(state).__name__}")


def queries(spec: Spec, state: AnyState, q: Tensor, norm: tuple[Tensor, Tensor] | None) -> Norm | None:
    """Check that queries can read a state of this spec, a row each or all from one row; the norm to read with."""
    spec_of(spec)
    _kind(spec, state)
    held = state.weights[0] if isinstance(state.weights, tuple) else state.weights
    if not isinstance(q, Tensor):
        raise ValueError(f"q must be a tensor, got {type(q).__name__}")
    if q.dim() != 4:
        raise ValueError(f"q must be [B,T,H,K], got a tensor of shape {list(q.shape)}")
    floating("q", q)
    if q.device != held.device:
        raise ValueError(f"state is on {held.device}, but q is on {q.device}")
    (batch, time, heads, keys), rows = q.shape, held.shape[0]
    if 1 not in (batch, rows) and batch != rows:
        raise ValueError(f"q has {batch} rows, but state has {rows}")
    wide = state.values.shape[3] if isinstance(state, CacheState) else held.shape[2]
    shapes = Shapes(batch, time, heads, keys, keys if spec.memory.square else wide, 1, rows)
    state_of(spec, state, shapes, held, "chunk")
    return norm_of(spec, norm, shapes, held)
