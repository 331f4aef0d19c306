"""The one public operation: check the arguments, choose how to run, run.

B batch, T time, H heads, K key channels, V value channels
"""

from __future__ import annotations

import itertools
from typing import Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import checks
from .forms.common import as_tuple, begin, stacked
from .forms.recurrent import read, recurrent
from .retention import L2
from .spec import Spec
from .types import AnyState, Gates, Norm, Weights, require

Form = Literal["recurrent"]


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
    form: Form = "recurrent",
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
        form: "recurrent".

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
    require(form == "recurrent", f"form is 'recurrent', got {form!r}")
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
            start = checks.state_of(spec, state, shapes, query)
        if cu_seqlens is None:
            y, end = recurrent(spec, query, key, value, shaped, gain, start)
        else:
            y, end = packed(spec, query, key, value, shaped, gain, start, cu_seqlens.tolist())
    return y.to(v.dtype), end


def tied_key(spec: Spec, gates: Gates) -> Tensor:
    """The key 1 - alpha of a tied retention."""
    assert isinstance(spec.retention, L2) and spec.retention.tied and gates.log_alpha is not None
    return -torch.expm1(gates.log_alpha)


def packed(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, gates: Gates, norm: Norm | None, start: AnyState, bounds: list[int]
) -> tuple[Tensor, AnyState]:
    """The sequences of a packed batch one by one, each from its own row of the state."""
    outputs, ends = [], []
    pairs = k.shape[1] // q.shape[1]
    for row, (left, right) in enumerate(itertools.pairwise(bounds)):
        token, pair = slice(left, right), slice(left * pairs, right * pairs)
        cuts = {name: pair if name == "eta" else token for name in gates._fields if name != "ridge"}
        own = {
            name: gate[:, cuts[name]] if name in cuts else gate for name, gate in gates._asdict().items() if gate is not None
        }
        one = pytree.tree_map(lambda x, row=row: x[row : row + 1], start)
        y, end = recurrent(spec, q[:, token], k[:, pair], v[:, pair], Gates(**own), norm, one)
        outputs.append(y)
        ends.append(end)
    return torch.cat(outputs, 1), stacked(ends)


def recall(spec: Spec, state: AnyState, q: Tensor, norm: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Read a memory without writing to it: ``[B,T,H,K] -> [B,T,H,V]``, every query from the same state."""
    dtype = as_tuple(state.weights)[0].dtype
    return read(spec, state, q.to(dtype), None if norm is None else Norm(norm[0].to(dtype), norm[1].to(dtype))).to(q.dtype)
