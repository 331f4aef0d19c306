"""The fused 2-layer MLP memory as custom operators, and which specs it runs.

R sequences, B batch, T time, H heads, D channels, E hidden channels, C tokens of a chunk
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ..algorithm import GradientDescent
from ..memory import MLP
from ..retention import L2, Keep
from ..retention.base import decay
from ..spec import Spec
from ..types import Gates, Norm, Progress, State
from . import deep
from .biases import Fused, fused
from .deep import Result, Rows, Saved, Tokens, Weights

# what benchmarks/kernel_numerics.py compares with float64 on a GPU, plain and anchored: chunk sizes and channels a head
PROVEN = {
    torch.bfloat16: ((16, 32, 64), (48, 64, 96, 128)),
    torch.float16: ((16, 32, 64), (48, 64, 96, 128)),
    # in float32 longer chunks and wider heads do not fit shared memory
    torch.float32: ((16,), (48, 64)),
}
# what Triton's interpreter runs
SIZES, NARROWEST, WIDEST = (16, 32, 64), 16, 128


def why_not(spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int) -> str | None:
    """Why the kernels cannot run a call, or None where they can."""
    memory, kept, algorithm = spec.memory, spec.retention, spec.algorithm
    if not (isinstance(memory, MLP) and memory.depth == 2):
        return f"the kernels fuse the 2-layer MLP memory, not {memory.label}"
    if not isinstance(algorithm, GradientDescent) or algorithm.eta is not None:
        return f"the kernels fuse gradient descent with a gate eta, not {algorithm.label}"
    if not (isinstance(kept, Keep) or (isinstance(kept, L2) and kept.at == "previous" and kept.schedule is None)):
        return f"the kernels fuse Keep and L2(at='previous'), not {kept.label}"
    bias = fused(spec.bias)
    if isinstance(bias, str):
        return bias
    if interpreted():
        known = size in SIZES and NARROWEST <= channels <= WIDEST and dtype in deep.DOTS
        return None if known else f"the kernels take chunks of {_listed(SIZES)} tokens, not {size}"
    if device.type != "cuda":
        return f"the kernels need an NVIDIA GPU (or TRITON_INTERPRET=1), not {device.type}"
    sizes, widths = PROVEN.get(dtype, ((), ()))
    if size not in sizes or channels not in widths:
        proven = (
            f"chunks of {_listed(sizes)} tokens and {_listed(widths)} channels a head" if sizes else "16-bit or float32 tokens"
        )
        return f"in {dtype} the kernels are proven for {proven}, not for {size} and {channels}"
    return None


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@torch.library.custom_op("miras::deep_forward", mutates_args=())
def deep_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eta: Tensor,
    log_alpha: Tensor | None,
    delta: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    anchor1: Tensor | None,
    anchor2: Tensor | None,
    gain: Tensor,
    shift: Tensor,
    first: Tensor,
    length: Tensor,
    chunk: Tensor,
    row: Tensor,
    size: int,
    bias: str,
    p: float,
) -> list[Tensor]:
    """y, the outgoing weights, the last open chunk's starting weights, and what the backward pass needs."""
    tokens = Tokens(q, k, v, eta, log_alpha, delta)
    weights = Weights(w1, w2, anchor1, anchor2, gain, shift)
    result, saved = deep.forward(tokens, weights, Rows(first, length, chunk, row), size, Fused(bias, p))
    return [*result, *saved]


@deep_forward.register_fake
def _(q, k, v, eta, log_alpha, delta, w1, w2, anchor1, anchor2, gain, shift, first, length, chunk, row, size, bias, p):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    states = (torch.empty_like(w) for w in (w1, w2, w1, w2))
    return [torch.empty_like(q), *states, *deep.empty_saved(q, row.shape[0], w2.shape[2], size, anchor1 is not None)]


@torch.library.custom_op("miras::deep_backward", mutates_args=())
def deep_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eta: Tensor,
    log_alpha: Tensor | None,
    delta: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    anchor1: Tensor | None,
    anchor2: Tensor | None,
    gain: Tensor,
    shift: Tensor,
    first: Tensor,
    length: Tensor,
    chunk: Tensor,
    row: Tensor,
    saved: list[Tensor],
    outer: list[Tensor],
    size: int,
    bias: str,
    p: float,
) -> list[Tensor]:
    """The gradients of all that can have one, in the order of ``deep_forward``; empty where an argument was None."""
    tokens = Tokens(q, k, v, eta, log_alpha, delta)
    weights = Weights(w1, w2, anchor1, anchor2, gain, shift)
    rows = Rows(first, length, chunk, row)
    dtokens, dweights = deep.backward(tokens, weights, rows, size, Fused(bias, p), Saved(*saved), Result(*outer))
    pairs = zip((*dtokens, *dweights), (*tokens, *weights), strict=True)
    return [q.new_empty(0) if d is None or x is None else d.to(x.dtype) for d, x in pairs]


@deep_backward.register_fake
def _(q, k, v, eta, log_alpha, delta, w1, w2, anchor1, anchor2, gain, shift, *rest):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
    given = (q, k, v, eta, log_alpha, delta, w1, w2, anchor1, anchor2, gain, shift)
    return [q.new_empty(0) if x is None else torch.empty_like(x) for x in given]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *tensors, ctx.size, ctx.bias, ctx.p = inputs
    ctx.save_for_backward(*tensors, *output[5:])
    # what is kept for the backward pass takes no gradient: zeros for it would be a gigabyte
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads_out: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    tensors, saved = ctx.saved_tensors[:16], ctx.saved_tensors[16:]
    results = (tensors[0], tensors[6], tensors[7], tensors[6], tensors[7])
    outer = [torch.zeros_like(x) if g is None else g.contiguous() for g, x in zip(grads_out[:5], results, strict=True)]
    grads = deep_backward(*tensors, list(saved), outer, ctx.size, ctx.bias, ctx.p)
    own = [None if x is None else grad for x, grad in zip(tensors[:12], grads, strict=True)]
    return (*own, *[None] * 7)


deep_forward.register_autograd(_backward, setup_context=_remember)


def run(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    norm: Norm | None,
    state: State,
    size: int,
    lengths: list[int],
) -> tuple[Tensor, State]:
    """Tokens ``[B,T,H,D]`` in the dtype of the products, by the kernels, each row from a chunk's start.

    ``lengths`` are those of the sequences, which lie one behind the other: B times T, or those packed in a batch of 1.
    """
    bias = fused(spec.bias)
    assert isinstance(bias, Fused) and gates.eta is not None and isinstance(state.weights, tuple)
    rows = Rows.of(lengths, size, q.device)
    w1, w2 = state.weights
    anchors = (state.anchor[0].mT.contiguous(), state.anchor[1].contiguous()) if state.anchor else (None, None)
    ones = torch.ones(*q.shape[2:], dtype=torch.float32, device=q.device)
    gain, shift = (ones, torch.zeros_like(ones)) if norm is None else norm
    given = (q, k, v, gates.eta, gates.log_alpha, gates.delta)
    flat = [None if x is None else x.flatten(0, 1).contiguous() for x in given]
    states = (w1.mT.contiguous(), w2.contiguous(), *anchors, gain.contiguous(), shift.contiguous())
    y, new1, new2, tail1, tail2, *_ = deep_forward(*flat, *states, *rows, size, bias.name, bias.p)
    end = (new1.mT, new2)
    if any(length % size for length in lengths):
        reached = State(end, *_open(rows, end, (tail1.mT, tail2), flat[4], state, size, lengths))
    else:
        reached = State(end, end, state.anchor, ())
    return y.reshape(q.shape), reached


def _open(
    rows: Rows,
    end: tuple[Tensor, Tensor],
    tails: tuple[Tensor, Tensor],
    log_alpha: Tensor | None,
    state: State,
    size: int,
    lengths: list[int],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...], Progress]:
    """What a state in mid-chunk holds besides its weights: those at the chunk's start, and what has accumulated since."""
    begun = rows.length % size
    start = tuple(torch.where((begun > 0)[:, None, None, None], tail, new) for tail, new in zip(tails, end, strict=True))
    zero = torch.zeros_like(start[0][..., :1, :1])
    decays, kept = (zero, zero), start
    if log_alpha is not None:
        token = torch.arange(log_alpha.shape[0], device=log_alpha.device)
        row = torch.bucketize(token, rows.first + rows.length, right=True)
        late = token >= (rows.first + rows.length - begun)[row]
        total = log_alpha.new_zeros(len(lengths), *log_alpha.shape[1:]).index_add(0, row, log_alpha * late[:, None, None])
        decays = (total[..., :, None], total[..., None, :])
        kept = tuple(
            decay(weight, log, anchor) for weight, log, anchor in zip(start, decays, state.anchor or (None, None), strict=True)
        )
    moved = tuple(a - b for a, b in zip(kept, end, strict=True))
    position = torch.tensor([length % size for length in lengths])
    return start, state.anchor, (), Progress(start, moved, decays, (zero, zero), position)
