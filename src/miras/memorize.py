"""The one public operation: check the arguments, choose how to run, run.

B batch, T time, H heads, K key channels, V value channels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import checks
from .forms.chunk import chunk, family
from .forms.common import as_tuple, begin, stacked
from .forms.ragged import buckets, positions, unpacked, unpacked_gates
from .forms.recurrent import read, recurrent
from .retention import L2
from .spec import Spec
from .types import AnyState, Gates, Norm, Weights, require

Form = Literal["chunk", "recurrent"]
Backend = Literal["auto", "torch", "triton", "fla"]


def memorize(
    spec: Spec,
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    gates: Gates | None = None,
    *,
    weights: Tensor | Weights | None = None,
    norm: tuple[Tensor, Tensor] | None = None,
    state: AnyState | None = None,
    cu_seqlens: Tensor | None = None,
    form: Form = "chunk",
    chunk_size: int | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, AnyState]:
    """Run a memory over a sequence: each token is learned, then recalled from.

    Args:
        spec: the four choices.
        q, k: ``[B,T,H,K]`` queries and keys (k is None for a spec whose key is tied to its decay).
        v: ``[B,T,H,V]`` values.
        gates: what the spec needs, nothing else; see :class:`Gates`.
        weights: initial weights in the space the retention accumulates in, a tensor or, outermost first, a tuple,
            ``[H,...]`` or ``[B,H,...]``; zeros where that is a place to start from.
        norm: gain and shift ``[H,V]`` of an MLP memory's LayerNorm; ones and zeros when not given.
        state: where an earlier call ended; it holds the weights, so ``weights`` is then None.
        cu_seqlens: ``[N+1]``, the bounds of sequences packed in a batch of 1, each starting from ``weights`` or from its row
            of ``state``.
        form: "chunk", in parallel over the tokens of a chunk, or "recurrent", one token at a time, exact for every spec.
            :func:`explain` says which specs the chunk form runs exactly.
        chunk_size: tokens of a chunk; the spec's own when not given.
        backend: "auto" or "torch"; a backend that is named is used or refused, never replaced.

    Returns:
        y ``[B,T,H,V]`` and the state after the last token (one row a packed sequence).

    >>> import torch
    >>> from miras import Gates, memorize, presets
    >>> q, k, v = torch.randn(3, 1, 10, 2, 4)
    >>> y, state = memorize(presets.deltanet(), q, k, v, Gates(eta=torch.full((2,), 0.5)))
    >>> y.shape, state.weights.shape
    (torch.Size([1, 10, 2, 4]), torch.Size([1, 2, 4, 4]))
    """
    require(isinstance(spec, Spec), f"spec must be a Spec (miras.presets.get(name) gives one), got {spec!r}")
    size = checks.how(spec, form, chunk_size, backend)
    shapes = checks.tokens(spec, q, k, v, cu_seqlens)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    with torch.autocast(q.device.type, enabled=False):
        query, value = q.to(dtype), v.to(dtype)
        shaped = checks.gates_of(spec, gates or Gates(), shapes, query)
        key = tied_key(spec, shaped) if k is None else k.to(dtype)
        gain = checks.norm_of(spec, norm, shapes, query)
        if state is None:
            start = begin(spec, checks.weights_of(spec, weights, shapes, query), key, value, shapes.rows)
        else:
            require(weights is None, "weights and state were both given: a state holds its weights, give one of them")
            start = checks.state_of(spec, state, shapes, query, form)
        call = (spec, query, key, value, shaped, gain, start)
        if cu_seqlens is not None:
            y, end = packed(*call, cu_seqlens.tolist(), form, size)
        elif form == "recurrent":
            y, end = recurrent(*call)
        else:
            y, end = chunk(*call, size)
    return y.to(v.dtype), end


def tied_key(spec: Spec, gates: Gates) -> Tensor:
    """The key 1 - alpha of a tied retention."""
    assert isinstance(spec.retention, L2) and spec.retention.tied and gates.log_alpha is not None
    return -torch.expm1(gates.log_alpha)


def packed(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    norm: Norm | None,
    start: AnyState,
    bounds: list[int],
    form: Form,
    size: int,
) -> tuple[Tensor, AnyState]:
    """The sequences of a packed batch, each from its own row of the state: in buckets of rows, or one by one."""
    pairs = k.shape[1] // q.shape[1]
    y = torch.zeros_like(v[:, : q.shape[1]])
    ends: dict[int, AnyState] = {}
    groups = buckets(bounds, size) if form == "chunk" else ([row] for row in range(len(bounds) - 1))
    for rows in groups:
        token, pair = positions(bounds, rows, 1, q.device), positions(bounds, rows, pairs, q.device)
        own = pytree.tree_map_only(Tensor, lambda x, rows=rows: x[rows], start)
        given = (unpacked(q, token), unpacked(k, pair), unpacked(v, pair), unpacked_gates(gates, token, pair), norm, own)
        if form == "recurrent":
            part, end = recurrent(spec, *given)
        else:
            part, end = chunk(spec, *given, size, [bounds[row + 1] - bounds[row] for row in rows])
        y = y.index_put((torch.zeros_like(token[token >= 0]), token[token >= 0]), part[token >= 0])
        ends |= {row: pytree.tree_map_only(Tensor, lambda x, i=i: x[i : i + 1], end) for i, row in enumerate(rows)}
    return y, stacked([ends[row] for row in range(len(bounds) - 1)])


def recall(spec: Spec, state: AnyState, q: Tensor, norm: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Read a memory without writing to it: ``[B,T,H,K] -> [B,T,H,V]``, every query from the same state."""
    dtype = as_tuple(state.weights)[0].dtype
    return read(spec, state, q.to(dtype), None if norm is None else Norm(norm[0].to(dtype), norm[1].to(dtype))).to(q.dtype)


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a spec will run, and why."""

    form: Form
    backend: Backend
    exact: bool
    reason: str

    def __str__(self) -> str:
        return f"form {self.form}, backend {self.backend}, {'exact' if self.exact else 'approximate'}: {self.reason}"


REASONS = {
    "attention": "softmax attention by torch's scaled_dot_product_attention over a cache that grows",
    "newton": "the linear systems of a chunk's tokens are solved at once",
    "delta": "a chunk's errors follow from one triangular system (WY transform)",
    "hebbian": "the write does not depend on what the memory holds, so a chunk is a gated linear attention",
    "scan": "gradients are taken at each chunk's start and the weights move linearly inside it; chunk_size=1 is exact",
}


def explain(spec: Spec, device: torch.device | str = "cpu") -> Explanation:
    """Which form and backend ``memorize`` takes for a spec on a device, whether that is exact, and why.

    >>> from miras import explain, presets
    >>> print(explain(presets.gated_deltanet()))
    form chunk, backend torch, exact: a chunk's errors follow from one triangular system (WY transform); plain PyTorch on cpu
    """
    kind = family(spec)
    where = f"plain PyTorch on {torch.device(device).type}"
    return Explanation(form="chunk", backend="torch", exact=kind != "scan", reason=f"{REASONS[kind]}; {where}")
