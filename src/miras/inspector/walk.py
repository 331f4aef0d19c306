"""A layer read in stretches, so that its memory can be looked at in between.

B batch (1 here), T time, C channels, H heads, D channels of a gate, P pairs a token, N chunks, W weights of a memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from ..forms.common import as_tuple, split
from ..memorize import tied_key
from ..nn import MirasLayer, MirasState
from ..nn.layer import Prepared
from ..retention import ElasticNet, ElasticNetFTRL
from ..spec import Spec
from ..types import AnyState, CacheState, Gates, Norm, require
from .surprise import Pairs, Surprise, surprise, way


class Band(NamedTuple):
    """A gate over time: its mean, smallest and largest over the channels (and pairs) of a head, ``[H,T]`` each."""

    mean: Tensor
    low: Tensor
    high: Tensor


class LayerTrace(NamedTuple):
    """What a layer's memory did, token by token and chunk by chunk; None where it has no such thing.

    Attributes:
        surprise, error, clipped: ``[H,T]``, see :class:`Surprise`.
        bands: the gates by name, as bands of what they mean to the memory: "step" eta, "decay" -log alpha, "value_decay"
            -log beta, "momentum" mu, "threshold" delta, "soft_threshold" gamma.
        ends: where norms are taken: 0, the end of each chunk, T; N + 1 of them.
        norms: ``[W,H,N+1]``, ||W|| of each weight as the memory reads it.
        moved: ``[W,H,N]``, how far each chunk moved it, ||W_end - W_start|| / ||W_start||; NaN from zero.
        zeros: ``[W,H,N]``, the share of entries that a soft threshold holds at zero; NaN for a chunk that is not full.
        y: ``[B,T,H,V]``, what the memory read, in stretches.
    """

    surprise: Tensor | None
    error: Tensor | None
    clipped: Tensor | None
    bands: dict[str, Band]
    ends: list[int]
    norms: Tensor | None
    moved: Tensor | None
    zeros: Tensor | None
    y: Tensor


@torch.no_grad()
def walk(layer: MirasLayer, x: Tensor, advance: Callable[[int], None] = lambda tokens: None) -> LayerTrace:
    """Read x ``[1,T,C]`` chunk by chunk and note what the memory does; ``advance`` hears of every token read.

    The surprise is the one that the layer itself learns by. Where its chunk form is approximate, a chunk's gradients are taken
    at the chunk's start; where it is exact, or where there is none, at the state of the token before, so such a memory is read
    token by token.

    >>> import torch
    >>> from miras.nn import MirasLayer
    >>> walk(MirasLayer(dim=32, heads=2, spec="yaad"), torch.randn(1, 100, 32)).surprise.shape
    torch.Size([2, 100])
    """
    require(x.dim() == 3 and x.shape[0] == 1 and x.shape[1] > 0, f"x must be [1,T,C] with T >= 1, got {list(x.shape)}")
    spec, time = layer.spec, x.shape[1]
    followed = layer.pairs == 1 or way(spec) != "own"
    require(followed, f"{spec.algorithm.label} takes {layer.pairs} pairs a token in a way of its own, which cannot be followed")
    size = _tokens_of_a_chunk(layer)
    prepared = layer.prepare(x)
    pairs, norm = _as_memorised(layer, prepared)
    # reading nothing gives the state before the first token
    _, state = layer.remember(_cut(prepared, 0, 0))
    found: list[Surprise] = []
    outputs: list[Tensor] = []
    ends, before = [0], _weights(state)
    chunks = [_Chunk(_norms(before), *(torch.full_like(_norms(before), torch.nan) for _ in range(2)))]
    for left, right in _stretches(spec, size, time):
        if not isinstance(state, CacheState):
            found.append(surprise(spec, pairs.cut(left, right), norm, state))
        y, state = layer.remember(_cut(prepared, left, right), MirasState(prepared.window, state, prepared.seen))
        outputs.append(y)
        if right % size == 0 or right == time:
            ends.append(right)
            after = _weights(state)
            chunks.append(_chunk(before, after, full=right % size == 0))
            before = after
        advance(right - left)
    return LayerTrace(
        _joined([each.gradient for each in found]),
        _joined([each.error for each in found]),
        _joined([each.clipped for each in found]),
        _bands(spec, pairs),
        ends,
        *_over_time(spec, chunks),
        torch.cat(outputs, 1),
    )


def _tokens_of_a_chunk(layer: MirasLayer) -> int:
    """How many tokens a chunk has; where the chunk form is approximate it counts pairs."""
    size = layer.spec.chunk_size if layer.chunk_size is None else layer.chunk_size
    if layer.pairs == 1 or way(layer.spec) != "scan":
        return size
    whole = size % layer.pairs == 0
    require(whole, f"a chunk of {size} pairs ends inside a token of {layer.pairs}: take a chunk_size that is a multiple of it")
    return size // layer.pairs


def _stretches(spec: Spec, size: int, time: int) -> Iterator[tuple[int, int]]:
    """Stretches of tokens whose gradients are all taken at one state; no stretch goes beyond a chunk's end."""
    if way(spec) in ("delta", "newton", "own"):
        yield from ((t, t + 1) for t in range(time))
        return
    for left in range(0, time, size):
        right = min(left + size, time)
        # the first token of a led chunk takes its step alone, the others go on from there
        if spec.retention.leads and right - left > 1:
            yield left, left + 1
            left += 1
        yield left, right


def _cut(prepared: Prepared, left: int, right: int) -> Prepared:
    """What the memory is given of the tokens from ``left`` to ``right``."""
    time = prepared.q.shape[1]

    def part(x: Tensor | None) -> Tensor | None:
        if x is None or x.dim() < 3:  # a gate without time
            return x
        each = x.shape[1] // time
        return x[:, left * each : right * each]

    q, v = part(prepared.q), part(prepared.v)
    assert q is not None and v is not None
    return prepared._replace(q=q, k=part(prepared.k), v=v, gates=Gates(*map(part, prepared.gates)))


def _as_memorised(layer: MirasLayer, prepared: Prepared) -> tuple[Pairs, Norm | None]:
    """Tokens, gates and norm as ``memorize`` shapes them, in the dtype that the memory works in."""
    spec, q, v = layer.spec, prepared.q, prepared.v
    shapes = checks.tokens(spec, q, prepared.k, v, None)
    like = torch.empty(0, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device=q.device)
    gates = checks.gates_of(spec, prepared.gates, shapes, like).to(like.dtype)
    k = tied_key(spec, gates) if prepared.k is None else prepared.k
    return Pairs(k.to(like.dtype), v.to(like.dtype), gates, layer.pairs), checks.norm_of(
        spec, layer.memory.norm(), shapes, like
    )


def _joined(found: list[Tensor | None]) -> Tensor | None:
    """One of a surprise's numbers over all stretches, ``[H,T]``."""
    there = [x for x in found if x is not None]
    return torch.cat(there, 1)[0].mT if there else None


def _bands(spec: Spec, pairs: Pairs) -> dict[str, Band]:
    """Every gate that varies, and what the retention makes of the step."""
    gates = pairs.gates
    if gates.eta is None:
        return {}
    rates = spec.retention.rates(gates.eta, None)
    log_alpha = rates.log_decay if gates.log_alpha is None else gates.log_alpha
    values = {
        "step": gates.eta,
        "decay": None if log_alpha is None else -log_alpha,
        "value_decay": None if gates.log_beta is None else -gates.log_beta,
        "momentum": gates.mu,
        "threshold": gates.delta,
        "soft_threshold": rates.threshold,
    }
    time = pairs.v.shape[1] // pairs.each
    return {name: _band(gate[0], time) for name, gate in values.items() if gate is not None}


def _band(gate: Tensor, time: int) -> Band:
    """``[T P,H,D] -> [H,T]`` three times."""
    flat = split(gate, 0, time).permute(2, 0, 1, 3).flatten(2)
    return Band(flat.mean(-1), flat.amin(-1), flat.amax(-1))


class _Chunk(NamedTuple):
    """What a chunk did to each weight, ``[W,H]``: its norm at the end, how far it moved, its share of zeros."""

    norms: Tensor
    moved: Tensor
    zeros: Tensor


def _weights(state: AnyState) -> tuple[Tensor, ...]:
    """The weights ``[H,...]`` of the one row."""
    return () if isinstance(state, CacheState) else tuple(weight[0] for weight in as_tuple(state.weights))


def _norms(weights: tuple[Tensor, ...]) -> Tensor:
    """||W|| of each weight and head, ``[W,H]``."""
    return torch.stack([weight.flatten(1).norm(dim=1) for weight in weights]) if weights else torch.empty(0)


def _chunk(before: tuple[Tensor, ...], after: tuple[Tensor, ...], *, full: bool) -> _Chunk:
    start = _norms(before)
    step = _norms(tuple(new - old for new, old in zip(after, before, strict=True)))
    moved = torch.where(start > 0, step / start.clamp_min(1e-30), torch.nan)
    if not full or not after:
        return _Chunk(_norms(after), moved, torch.full_like(start, torch.nan))
    return _Chunk(_norms(after), moved, torch.stack([(w == 0).flatten(1).to(w.dtype).mean(1) for w in after]))


def _over_time(spec: Spec, chunks: list[_Chunk]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Norms ``[W,H,N+1]``, movement and zeros ``[W,H,N]``; zeros only of an exact soft threshold."""
    if not chunks[0].norms.numel():
        return None, None, None
    norms, moved, zeros = (torch.stack(each, -1) for each in zip(*chunks, strict=True))
    soft = isinstance(spec.retention, ElasticNet | ElasticNetFTRL) and not spec.retention.smooth
    return norms, moved[..., 1:], zeros[..., 1:] if soft else None
