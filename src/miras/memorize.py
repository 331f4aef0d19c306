"""The one public operation: check the arguments, choose how to run, run.

B batch, T time, H heads, K key channels, V value channels
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
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
from .types import AnyState, Gates, Norm, State, Weights, require

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
        backend: "auto", "torch" or "triton"; a backend that is named is used or refused, never replaced.

    Returns:
        y ``[B,T,H,V]`` and the state after the last token (one row a packed sequence).

    >>> import torch
    >>> from miras import Gates, memorize, presets
    >>> q, k, v = torch.randn(3, 1, 10, 2, 4)
    >>> y, state = memorize(presets.deltanet(), q, k, v, Gates(eta=torch.full((2,), 0.5)))
    >>> y.shape, state.weights.shape
    (torch.Size([1, 10, 2, 4]), torch.Size([1, 2, 4, 4]))
    """
    if not isinstance(spec, Spec):
        raise ValueError(f"spec must be a Spec (miras.presets.get(name) gives one), got {spec!r}")
    size = checks.how(spec, form, chunk_size, backend, packed=cu_seqlens is not None)
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
        elif choose(spec, q, size, backend) == "triton":
            y, end = fused(*call, size, q.dtype)
        else:
            y, end = chunk(*call, size)
    return y.to(v.dtype), end


def choose(spec: Spec, q: Tensor, size: int, backend: Backend) -> Backend:
    """The backend of a call in chunks: "triton" where it is asked for, or where a GPU can run it."""
    if backend == "torch" or (backend == "auto" and q.device.type != "cuda"):
        return "torch"
    reason = kernels_refuse(spec, q.device, q.dtype, q.shape[3], size)
    require(reason is None or backend == "auto", f"backend 'triton' cannot run {spec}: {reason}")
    return "torch" if reason else "triton"


def kernels_refuse(spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int) -> str | None:
    """Why the fused kernels cannot run a call, or None where they can."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'miras-torch[gpu]'"
    from .kernels.deep_op import why_not

    return why_not(spec, device, dtype, channels, size)


def fused(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, gates: Gates, norm: Norm | None, start: AnyState, size: int, dtype: torch.dtype
) -> tuple[Tensor, AnyState]:
    """Whole chunks by the kernels; what is left of a begun chunk before them, and a tail after them, by plain PyTorch."""
    from .kernels.deep_op import run

    assert isinstance(start, State)
    begun = [0] if start.chunk is None else start.chunk.position.tolist()
    if len(set(begun)) > 1:
        return chunk(spec, q, k, v, gates, norm, start, size)
    head = min(-begun[0] % size, q.shape[1])
    whole = (q.shape[1] - head) // size * size
    outputs: list[Tensor] = []
    state: AnyState = start
    for left, right, kernel in ((0, head, False), (head, head + whole, True), (head + whole, q.shape[1], False)):
        if left == right:
            continue
        cut = slice(left, right)
        own = Gates(*(None if gate is None else gate[:, cut] for gate in gates))
        if kernel:
            assert isinstance(state, State)
            low = [x[:, cut].to(dtype) for x in (q, k, v)]
            y, state = run(spec, low[0], low[1], low[2], own, norm, state, size)
        else:
            y, state = chunk(spec, q[:, cut], k[:, cut], v[:, cut], own, norm, state, size)
        outputs.append(y.to(v.dtype))
    return (torch.cat(outputs, 1) if outputs else torch.zeros_like(v)), state


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
    kind, device = family(spec), torch.device(device)
    exact = kind != "scan"
    refused = kernels_refuse(spec, device, torch.bfloat16, 64, spec.chunk_size) if device.type == "cuda" else None
    if device.type == "cuda" and refused is None:
        reason = f"{REASONS[kind]}; fused kernels for bf16 and 48 or 64 channels a head, plain PyTorch otherwise"
        return Explanation(form="chunk", backend="triton", exact=exact, reason=reason)
    where = f"plain PyTorch on {device.type}" + ("" if refused is None else f", since {refused}")
    return Explanation(form="chunk", backend="torch", exact=exact, reason=f"{REASONS[kind]}; {where}")
