"""The one public operation: check the arguments, choose how to run, run.

B batch, T time, H heads, K key channels, V value channels
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from . import checks, state_checks
from .algorithm import NonParametric
from .bias import Huber
from .call import Call
from .forms.chunk import chunk
from .forms.common import as_tuple, begin
from .forms.recurrent import read, recurrent
from .retention import Dual
from .sequences import from_any_place, packed
from .spec import Spec
from .stretches import in_stretches
from .torch_modes import UNKNOWN, transformed, uncast
from .types import AnyState, Gates, State, Weights, require

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
    recompute: int | None = None,
    check_gates: bool = True,
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
        backend: "auto", "torch", "triton" or "fla"; a backend that is named is used or refused, never replaced.
        recompute: tokens, at least a chunk of them, after which a state is kept for the backward pass, which computes what lies
            between again: less memory for more time, the same result. None keeps what each backend does by itself.
        check_gates: whether gates outside their ranges are refused. A layer, whose gates lie there by the way they are made,
            lets what is not a number through to its output, as any layer does, so that a training can skip the step.

    Returns:
        y ``[B,T,H,V]`` and the state after the last token (one row a packed sequence).

    >>> import torch
    >>> from miras import Gates, memorize, presets
    >>> q, k, v = torch.randn(3, 1, 10, 2, 4)
    >>> y, state = memorize(presets.deltanet(), q, k, v, Gates(eta=torch.full((2,), 0.5)))
    >>> y.shape, state.weights.shape
    (torch.Size([1, 10, 2, 4]), torch.Size([1, 2, 4, 4]))
    """
    checks.spec_of(spec)
    size = checks.how(spec, form, chunk_size, backend, recompute)
    shapes = checks.tokens(spec, q, k, v, cu_seqlens)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    with uncast(q.device):
        like = torch.empty(0, dtype=dtype, device=q.device)
        shaped = checks.gates_of(spec, Gates() if gates is None else gates, shapes, like, check_gates)
        key = tied_key(spec, shaped.to(dtype)) if k is None else k
        gain = checks.norm_of(spec, norm, shapes, like)
        if state is None:
            sizes = (shapes.rows, shapes.heads, shapes.keys, shapes.values)
            begun = functools.partial(begin, spec, checks.weights_of(spec, weights, shapes, like), *sizes, like)
            start = begun(linked=False)
        else:
            require(weights is None, "weights and state were both given: a state holds its weights, give one of them")
            start = state_checks.state_of(spec, state, shapes, like, form)
        if q.shape[1] == 0:
            # not a token: nothing is learned, and what was known stays
            return v[:, :0], start if state is not None else begun(linked=True)
        call = Call(spec, q, key, v, shaped, gain, start)
        how = "torch" if form == "recurrent" else choose(call, size, backend, packed=cu_seqlens is not None)
        if state is None and how != "triton" and isinstance(spec.retention, Dual):
            # the kernels read through a link themselves
            call = call._replace(state=begun(linked=True))
        if how == "fla" and torch.compiler.is_compiling():
            # compilers do not see into fla's kernels, and some lose named tuples on the way to them: they leave the call whole
            apart: Callable[..., tuple[Tensor, AnyState]] = torch.compiler.disable(memorize)  # type: ignore[no-untyped-call]
            return apart(
                spec, q, k, v, gates, weights=weights, norm=norm, state=state, cu_seqlens=cu_seqlens, form=form,
                chunk_size=chunk_size, backend=backend, recompute=recompute, check_gates=check_gates,
            )  # fmt: skip
        run = functools.partial(run_as, how, form, size, dtype)
        if recompute is None or q.shape[1] <= recompute or not call.backward:
            y, end = run(call, cu_seqlens)
        else:
            y, end = in_stretches(run, call, None if cu_seqlens is None else cu_seqlens.tolist(), size, recompute)
    return y.to(v.dtype), end


def run_as(
    how: How, form: Form, size: int, dtype: torch.dtype, call: Call, cu_seqlens: Tensor | None
) -> tuple[Tensor, AnyState]:
    """A call by the way that was chosen for it; plain PyTorch works in ``dtype``, but for attention."""
    if how != "torch":
        return fused(call._replace(k=call.k.to(call.q.dtype)), how, size, cu_seqlens)
    attends = form == "chunk" and isinstance(call.spec.algorithm, NonParametric)
    return plain(call if attends else call.to(dtype), form, size, None if cu_seqlens is None else cu_seqlens.tolist())


def plain(call: Call, form: Form, size: int, bounds: list[int] | None) -> tuple[Tensor, AnyState]:
    """A call in plain PyTorch."""
    if bounds is not None:
        return packed(call, bounds, form, size)
    return recurrent(*call) if form == "recurrent" else chunk(*call, size)


How = Literal["torch", "triton", "decode", "fla"]


def choose(call: Call, size: int, backend: Backend, packed: bool) -> How:
    """How a call in chunks runs: the backend that is asked for, or the one a GPU does best with."""
    spec, q, v = call.spec, call.q, call.v
    named = backend != "auto"
    if backend == "torch" or (not named and q.device.type != "cuda"):
        return "torch"
    if transformed(tuple(call)):
        require(not named, f"backend {backend!r} cannot run {spec}: it has {UNKNOWN}, backend='torch' has both")
        return "torch"
    if backend != "fla":
        if not packed and decodes(call):
            return "decode"
        reason = kernels_refuse(spec, q.device, q.dtype, q.shape[3], size, call.gates, named)
        if reason is None:
            return "triton"
    if backend != "triton":
        from .kernels import matrix_fla

        own = matrix_fla.Call(q.device, q.dtype, (q.shape[3], v.shape[3]), call.gates, call.backward, named)
        reason = matrix_fla.why_not(spec, own)
        if reason is None:
            return "fla"
    require(not named, f"backend {backend!r} cannot run {spec}: {reason}")
    return "torch"


def decodes(call: Call) -> bool:
    """Whether a call is one token without gradients that the decoding step runs."""
    if call.q.shape[1] != 1 or find_spec("triton") is None or not isinstance(call.state, State) or call.backward:
        return False
    from .kernels import decode

    return decode.why_not(call.spec, call.q.device, call.q.dtype, call.q.shape[3]) is None


def fused(call: Call, how: How, size: int, cu_seqlens: Tensor | None) -> tuple[Tensor, AnyState]:
    """A call by kernels, its tokens in their own dtype; its gates in float32, or, fused, in the dtype of the tokens."""
    kept = call.q.dtype if how == "triton" else torch.float32
    bias = call.spec.bias
    if isinstance(bias, Huber) and bias.delta is not None:
        # kernels take every threshold as a gate
        fixed = torch.full((), bias.delta, dtype=kept, device=call.q.device).expand(*call.q.shape[:3], 1)
        call = call._replace(gates=call.gates._replace(delta=fixed))
    call = call._replace(gates=Gates(*(x if x is None or x.dtype == kept else x.to(torch.float32) for x in call.gates)))
    if how == "fla":
        from .kernels import matrix_run

        spec, q, k, v, gates, _, state = call
        packing = None if cu_seqlens is None else cu_seqlens.to(q.device)
        return matrix_run.run(spec, q, k, v, gates, state, packing, call.backward)
    if how == "decode":
        return decoded(call, size)
    from .kernels.mlp import operator

    rows, time = call.q.shape[:2]
    bounds = [time * row for row in range(rows + 1)] if cu_seqlens is None else cu_seqlens.tolist()
    return from_any_place(operator(call.spec), call, bounds, size)


def decoded(call: Call, size: int) -> tuple[Tensor, AnyState]:
    """A token of each row by the fused step; of the rows that take a map of all weights by plain PyTorch."""
    from .kernels import decode
    from .kernels.decode_states import Led

    spec, q, k, v, gates, norm, state = call
    assert isinstance(state, State)
    first = decode.must_map(spec, state)
    if len(first) == len(q):
        return chunk(*call.to(torch.float32), size)
    led = None
    if first:
        y, reached = chunk(*call.begun(first).to(torch.float32), size)
        assert isinstance(reached, State)
        led = Led(first, y, reached)
    return decode.run(spec, q, k, v, gates, norm, state, size, led)


def kernels_refuse(
    spec: Spec,
    device: torch.device,
    dtype: torch.dtype,
    channels: int,
    size: int,
    gates: Gates | None = None,
    named: bool = False,
) -> str | None:
    """Why the fused kernels cannot run a call or, unless they are named, should not, or None where they run it.

    Without ``gates`` those are taken to fit.
    """
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'miras-torch[gpu]'"
    from .kernels.mlp import by_name_alone, why_not

    return why_not(spec, device, dtype, channels, size, gates) or (None if named else by_name_alone(spec, device))


def tied_key(spec: Spec, gates: Gates) -> Tensor:
    """The key 1 - alpha of a tied retention."""
    assert spec.tied and gates.log_alpha is not None
    return -torch.expm1(gates.log_alpha)


def recall(spec: Spec, state: AnyState, q: Tensor, norm: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Read a memory without writing to it: ``[B,T,H,K] -> [B,T,H,V]``, every query from the same state."""
    gain = state_checks.queries(spec, state, q, norm)
    return read(spec, state, q.to(as_tuple(state.weights)[0].dtype), gain).to(q.dtype)
