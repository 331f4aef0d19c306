"""The fused 1-layer MLP memory as custom operators, and which specs it runs.

R sequences, B batch, T time, H heads, D channels, N chunks
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..algorithm import GradientDescent
from ..memory import MLP
from ..spec import Spec
from ..types import Gates, Norm, State
from .arguments import Rows, Tokens
from .biases import Fused, fused
from .launch import arrived, given_back, laid
from .linear_passes import Result, Saved, Weight, backward, empty_result, empty_saved, forward
from .operators import operator
from .proven import Proven, unproven
from .states import decays_linearly, gain_and_shift, laid_out, opened

# what benchmarks/kernel_numerics.py has compared with float64 on a GPU, plain and anchored: chunk sizes and channels a head
PROVEN: Proven = {
    torch.bfloat16: ((16, 32, 64), (48, 64, 96, 128)),
    torch.float16: ((16, 32, 64), (48, 64, 96, 128)),
    torch.float32: ((16,), (48, 64)),
}

# q, k, v, eta, log_alpha, delta, then W', its anchor, gain and shift
TOKENS, OWN, RESULTS = len(Tokens._fields), len(Tokens._fields) + len(Weight._fields), len(Result._fields)
ROWS = len(Rows._fields)


def why_not(spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int) -> str | None:
    """Why the kernels cannot run a call, or None where they can."""
    memory, algorithm = spec.memory, spec.algorithm
    if not (isinstance(memory, MLP) and memory.depth == 1):
        return f"these kernels fuse the 1-layer MLP memory, not {memory.label}"
    if not isinstance(algorithm, GradientDescent) or algorithm.fixed_eta is not None:
        return f"the kernels of a 1-layer MLP fuse gradient descent with a gate eta, not {algorithm.label}"
    if not decays_linearly(spec.retention):
        return f"the kernels of a 1-layer MLP fuse Keep and L2(at='previous'), not {spec.retention.label}"
    bias = fused(spec.bias)
    if isinstance(bias, str):
        return bias
    return unproven(PROVEN, device, dtype, channels, size)


@operator("miras::linear_forward")
def linear_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eta: Tensor,
    log_alpha: Tensor | None,
    delta: Tensor | None,
    w: Tensor,
    anchor: Tensor | None,
    gain: Tensor,
    shift: Tensor,
    rows: list[Tensor],
    size: int,
    bias: str,
    p: float,
    keeps: bool,
) -> list[Tensor]:
    """y, the outgoing weight, the last open chunk's starting weight, and, where it ``keeps`` that, what the backward pass needs."""
    tokens, weight = Tokens(q, k, v, eta, log_alpha, delta), Weight(w, anchor, gain, shift)
    result, saved = forward(tokens, weight, Rows(*rows), size, Fused(bias, p), keeps)
    return [*result, *saved]


@linear_forward.register_fake
def _(*given):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN202
    q, log_alpha, w, rows = given[0], given[4], given[TOKENS], Rows(*given[OWN])
    return [*empty_result(q, w), *empty_saved(q, rows.row.shape[0], log_alpha is not None, given[-1])]


@operator("miras::linear_backward")
def linear_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eta: Tensor,
    log_alpha: Tensor | None,
    delta: Tensor | None,
    w: Tensor,
    anchor: Tensor | None,
    gain: Tensor,
    shift: Tensor,
    rows: list[Tensor],
    saved: list[Tensor],
    outer: list[Tensor],
    size: int,
    bias: str,
    p: float,
) -> list[Tensor]:
    """The gradients of all that can have one, in the order of ``linear_forward``; empty where an argument was None."""
    tokens, weight = Tokens(q, k, v, eta, log_alpha, delta), Weight(w, anchor, gain, shift)
    dtokens, dweight = backward(tokens, weight, Rows(*rows), size, Fused(bias, p), Saved(*saved), Result(*laid(outer)))
    return given_back(q, (*dtokens, *dweight), (*tokens, *weight))


@linear_backward.register_fake
def _(*given):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN202
    return [given[0].new_empty(0) if x is None else torch.empty_like(x) for x in given[:OWN]]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.settings, ctx.shapes = inputs[OWN + 1 : -1], [x.shape for x in output[:RESULTS]]
    ctx.save_for_backward(*inputs[:OWN], *inputs[OWN], *output[RESULTS:])
    # what is kept for the backward pass takes no gradient
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads_out: list[Tensor | None]) -> tuple[Tensor | list[None] | None, ...]:
    it = iter(ctx.saved_tensors)
    own, rows, saved = list(islice(it, OWN)), list(islice(it, ROWS)), list(it)
    outer = arrived(grads_out[:RESULTS], (own[0], own[TOKENS], own[TOKENS]), ctx.shapes)
    grads = linear_backward(*own, rows, saved, outer, *ctx.settings)
    return (*(None if x is None else grad for x, grad in zip(own, grads, strict=True)), [None] * ROWS, *[None] * 4)


linear_forward.register_autograd(_backward, setup_context=_remember)


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
    assert isinstance(bias, Fused) and gates.eta is not None
    rows = Rows.of(lengths, size, q.device)
    tokens = laid_out(q, k, v, gates)
    weight = [None if x is None else x.mT.contiguous() for x in (state.accumulated[0], *(state.anchor or (None,)))]
    y, end, tail, *_ = linear_forward(
        *tokens, *weight, *gain_and_shift(norm, q), list(rows), size, bias.name, bias.p, torch.is_grad_enabled()
    )
    reached = State((end.mT,), (end.mT,), state.anchor, ())
    if any(length % size for length in lengths):
        reached = opened(rows, reached, (tail.mT,), tokens[4], size, lengths)
    return y.reshape(q.shape), reached._replace(weights=end.mT)
