"""The fused 2-layer MLP memory as custom operators, and which specs it runs.

R sequences, B batch, T time, H heads, D channels, E hidden channels, C tokens of a chunk
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..algorithm import GradientDescent
from ..algorithm import Momentum as MomentumDescent
from ..memory import MLP
from ..retention import KL, L2, Keep, Lq, Retention
from ..spec import Spec
from ..types import Gates, Norm, State
from .arguments import Given, Link, Momentum, Result, Rows, Saved, Tokens, Weights
from .biases import Fused, fused
from .deep_backward import backward
from .deep_forward import empty_result, empty_saved, forward
from .launch import INTERPRETED, arrived, given_back, laid
from .lead_tokens import lead_of
from .momentum import factors
from .operators import operator
from .proven import Proven, unproven
from .states import decays_linearly, gain_and_shift, held, laid_out, link_of, opened

# what benchmarks/kernel_numerics.py compares with float64 on a GPU, plain and anchored: chunk sizes and channels a head
PROVEN: Proven = {
    torch.bfloat16: ((16, 32, 64), (48, 64, 96, 128)),
    torch.float16: ((16, 32, 64), (48, 64, 96, 128)),
    # in float32 longer chunks and wider heads do not fit shared memory
    torch.float32: ((16,), (48, 64)),
}
# an anchor and a momentum together need more shared memory than there is beyond this many channels
WIDEST_WITH_BOTH = 64
# what an operator takes by itself: tokens and weights
OWN = len(Tokens._fields) + len(Weights._fields)


def why_not(
    spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int, gates: Gates | None = None
) -> str | None:
    """Why the kernels cannot run a call, or None where they can; without ``gates`` those are taken to fit."""
    memory, kept, algorithm = spec.memory, spec.retention, spec.algorithm
    if not (isinstance(memory, MLP) and memory.depth == 2):
        return f"the kernels fuse the 1- and 2-layer MLP memory, not {memory.label}"
    if not isinstance(algorithm, GradientDescent | MomentumDescent) or algorithm.fixed_eta is not None:
        return f"the kernels fuse gradient descent and momentum with a gate eta, not {algorithm.label}"
    if not retains(kept):
        return (
            f"the kernels fuse Keep, L2(at='previous'), Lq(link='paper') and KL(chunk='lag', slice='column'), not {kept.label}"
        )
    if isinstance(algorithm, MomentumDescent) and not isinstance(kept, Keep | L2):
        return f"the kernels fuse momentum with Keep and L2, not with {kept.label}"
    wide = [] if gates is None or gates.mu is None else [n for n in ("mu", "log_alpha") if _channelwise(getattr(gates, n))]
    if wide:
        return f"the kernels fuse momentum with mu and log_alpha of one number a head, not channel-wise {' and '.join(wide)}"
    both = isinstance(algorithm, MomentumDescent) and kept.anchored
    if device.type == "cuda" and not INTERPRETED and both and channels > WIDEST_WITH_BOTH:
        return f"momentum with anchored retention fits the kernels up to {WIDEST_WITH_BOTH} channels a head, not {channels}"
    return why_not_moved(spec, device, dtype, channels, size)


def why_not_moved(spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int) -> str | None:
    """Why the kernels cannot move and read weights by a spec's bias, in a dtype and shape, or None where they can."""
    bias = fused(spec.bias)
    return bias if isinstance(bias, str) else unproven(PROVEN, device, dtype, channels, size)


def retains(kept: Retention) -> bool:
    """Whether the kernels run all of a retention, its step at a chunk's start or end too."""
    if isinstance(kept, KL):
        return kept.chunk == "lag" and kept.slice == "column"
    return decays_linearly(kept) or (isinstance(kept, Lq) and kept.link == "paper")


def _channelwise(gate: Tensor | None) -> bool:
    return gate is not None and gate.shape[-1] > 1


def _momentum(given: list[Tensor]) -> Momentum | None:
    return Momentum(*given) if given else None


@operator("miras::deep_forward")
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
    slopes: Tensor | None,
    momentum: list[Tensor],
    log_anchors: list[Tensor],
    rows: list[Tensor],
    size: int,
    bias: str,
    p: float,
    power: float,
    floor: float,
    mass1: float,
    mass2: float,
    keeps: bool,
) -> list[Tensor]:
    """y, the outgoing weights, the last open chunk's starting weights, the outgoing momentum, and what the backward pass needs.

    Unless it ``keeps`` that: then what no kernel of this pass reads is left out.
    """
    tokens = Tokens(q, k, v, eta, log_alpha, delta)
    weights = Weights(w1, w2, anchor1, anchor2, gain, shift, slopes)
    link, places = Link(power, floor, mass1, mass2), Rows(*rows)
    own = lead_of(tokens, log_anchors, places, size) if link.mass1 > 0 else None
    result, saved = forward(Given(tokens, weights, _momentum(momentum), own, places, size, Fused(bias, p), link), keeps)
    return [*result, *saved]


@deep_forward.register_fake
def _(q, k, v, eta, log_alpha, delta, *rest):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
    weights, momentum, rows, size = Weights(*rest[:7]), rest[7], Rows(*rest[9]), rest[10]
    saved = empty_saved(q, log_alpha, weights, rows.row.shape[0], size, bool(momentum), Link(*rest[13:-1]), rest[-1])
    return [*empty_result(q, weights, bool(momentum)), *saved]


@operator("miras::deep_backward")
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
    slopes: Tensor | None,
    momentum: list[Tensor],
    log_anchors: list[Tensor],
    rows: list[Tensor],
    saved: list[Tensor],
    outer: list[Tensor],
    size: int,
    bias: str,
    p: float,
    power: float,
    floor: float,
    mass1: float,
    mass2: float,
) -> list[Tensor]:
    """The gradients of all that can have one, in the order of ``deep_forward``; empty where an argument was None.

    ``saved`` is what the forward pass left, the outgoing weights first.
    """
    tokens = Tokens(q, k, v, eta, log_alpha, delta)
    weights = Weights(w1, w2, anchor1, anchor2, gain, shift, slopes)
    link, places = Link(power, floor, mass1, mass2), Rows(*rows)
    own = lead_of(tokens, log_anchors, places, size) if link.mass1 > 0 else None
    given = Given(tokens, weights, _momentum(momentum), own, places, size, Fused(bias, p), link)
    dtokens, dweights, dmomentum, dlead = backward(given, (saved[0], saved[1]), Saved(*saved[2:]), Result(*laid(outer)))
    own_gradients = given_back(q, (*dtokens, *dweights), (*tokens, *weights))
    return [*own_gradients, *(dmomentum or ()), *([] if dlead is None else dlead[-2:])]


@deep_backward.register_fake
def _(*given):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN202
    return [given[0].new_empty(0) if x is None else torch.empty_like(x) for x in (*given[:OWN], *given[OWN], *given[OWN + 1])]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    own, (momentum, log_anchors, rows), ctx.settings = inputs[:OWN], inputs[OWN : OWN + 3], inputs[OWN + 3 : -1]
    ctx.counts = OWN, len(momentum), len(log_anchors), len(rows)
    ctx.save_for_backward(*own, *momentum, *log_anchors, *rows, *output[1:3], *output[7:])
    # what is kept for the backward pass takes no gradient: zeros for it would be a gigabyte
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads_out: list[Tensor | None]) -> tuple[Tensor | list[Tensor] | list[None] | None, ...]:
    it = iter(ctx.saved_tensors)
    own, momentum, log_anchors, rows = (list(islice(it, count)) for count in ctx.counts)
    saved, split = list(it), OWN + len(momentum)
    outer = _outer(grads_out[:7], own[0], own[6], bool(momentum))
    grads = deep_backward(*own, momentum, log_anchors, rows, saved, outer, *ctx.settings)
    return (
        *(None if x is None else grad for x, grad in zip(own, grads[:OWN], strict=True)),
        grads[OWN:split],
        grads[split:],
        [None] * len(rows),
        *[None] * 8,
    )


def _outer(gradients: list[Tensor | None], q: Tensor, weight: Tensor, moves: bool) -> list[Tensor]:
    """The gradients of the results, zeros where nothing arrived; empty for all states where nothing arrived at any, as in most trainings."""
    dy, *states = gradients
    there: tuple[int, ...] = weight.shape if any(x is not None for x in states) else (0,)
    made = arrived(states, [weight] * 6, [*[there] * 4, *[there if moves else (0,)] * 2])
    return [torch.zeros_like(q) if dy is None else dy, *made]


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
    if gates.mu is not None:
        # a momentum of nearly 1 needs more digits than 16 bits have
        decay = None if gates.log_alpha is None else gates.log_alpha.float()
        gates = gates._replace(mu=gates.mu.float(), log_alpha=decay)
    w1, w2 = state.accumulated if isinstance(spec.retention, Lq) else state.weights
    tokens = laid_out(q, k, v, gates)
    anchor = state.anchor
    log_anchors: list[Tensor] = []
    if isinstance(spec.retention, KL):
        log_anchors = [anchor[0].mT.contiguous(), anchor[1].contiguous()] if anchor else [q.new_empty(0), q.new_empty(0)]
        anchor = tuple(a.exp() for a in anchor)
    anchors = (anchor[0].mT.contiguous(), anchor[1].contiguous()) if anchor else (None, None)
    states = (w1.mT.contiguous(), w2.contiguous(), *anchors, *gain_and_shift(norm, q))
    momentum: list[Tensor] = []
    if gates.mu is not None:
        speed1, speed2 = state.momentum
        made = factors(rows, size, tokens[4], gates.mu.flatten(0, 1))
        momentum = [speed1.mT.contiguous(), speed2.contiguous(), *made]
    link = link_of(spec, q.shape[3], w2.shape[2])
    y, new1, new2, tail1, tail2, *rest = deep_forward(
        *tokens, *states, None, momentum, log_anchors, list(rows), size, bias.name, bias.p, *link, torch.is_grad_enabled()
    )
    end, speed = (new1.mT, new2), (rest[0].mT, rest[1]) if momentum else ()
    reached, norms = State(end, end, anchor, speed), None
    begun = any(length % size for length in lengths)
    if link.q > 0 and not torch.compiler.is_compiling():
        # a link holds the norm that a chunk started with: that of the last state, or of the open chunk's start
        slots = rows.end - (rows.length % size > 0).long() if begun else rows.end
        norms = Saved(*rest[2:]).norms.detach()[slots]
    if begun:
        reached = opened(rows, reached, (tail1.mT, tail2), tokens[4], size, lengths, led=isinstance(spec.retention, KL))
    return y.reshape(q.shape), held(spec, reached, state.anchor, norms)
