"""Tokens and states at the border of the kernels: what a retention keeps, as the kernels take it and as a state holds it.

R sequences, T tokens of all of them, N chunks, H heads, D channels
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..retention import KL, L2, Keep, Lq, Retention
from ..retention.base import decay
from ..retention.lq import lq_norm, signed_power
from ..spec import Spec
from ..types import Gates, Norm, Progress, State
from .arguments import Link, Rows


def decays_linearly(kept: Retention) -> bool:
    """Whether a retention only keeps, or decays towards zero or an anchor by gates of the value side: what every kernel fuses."""
    if isinstance(kept, L2):
        return kept.at == "previous" and kept.side == "value" and kept.schedule is None
    return isinstance(kept, Keep)


def laid_out(q: Tensor, k: Tensor, v: Tensor, gates: Gates) -> list[Tensor | None]:
    """Tokens and gates of all sequences one behind the other, ``[T,H,D or 1]``, in the order of ``Tokens``."""
    given = (q, k, v, gates.eta, gates.log_alpha, gates.delta)
    return [None if x is None else x.flatten(0, 1).contiguous() for x in given]


def gain_and_shift(norm: Norm | None, q: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the norm, ``[H,D]``; 1 and 0 where it has none."""
    if norm is not None:
        return norm[0].contiguous(), norm[1].contiguous()
    ones = torch.ones(*q.shape[2:], dtype=torch.float32, device=q.device)
    return ones, torch.zeros_like(ones)


def link_of(spec: Spec, channels: int, hidden: int) -> Link:
    """What a spec's retention does to the weights besides moving them linearly."""
    kept = spec.retention
    if isinstance(kept, KL):
        return Link(mass1=float(channels) if kept.c is None else kept.c, mass2=float(hidden) if kept.c is None else kept.c)
    return Link(kept.q, kept.floor) if isinstance(kept, Lq) else Link()


class Known(torch.autograd.Function):
    """max(||A||_q, floor) that a kernel left ``[R,H,1,1]``, as a function of A: dnorm/dA = sign(A) (|A| / norm)^(q-1)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, norm: Tensor, q: float, floor: float) -> Tensor:
        ctx.q, ctx.floor = q, floor
        ctx.save_for_backward(a, norm)
        return norm.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        a, norm = ctx.saved_tensors
        return torch.where(norm > ctx.floor, outer, 0.0) * signed_power(a / norm, ctx.q - 1), None, None, None


def held(spec: Spec, reached: State, anchor: tuple[Tensor, ...], norms: Tensor | None) -> State:
    """A state of what the kernels accumulate, as the retention holds it: read through its link, or as a logarithm.

    ``norms`` ``[R,H,2]`` are those that a link holds, of what each row's chunk started with; None where they are to be made again.
    """
    kept, weights, chunk = spec.retention, reached.weights, reached.chunk
    assert isinstance(weights, tuple)
    if isinstance(kept, Lq):
        if norms is None:
            sizes = [lq_norm(a, kept.q, kept.floor) for a in reached.accumulated]
        else:
            each = zip(reached.accumulated, norms[..., None, None].unbind(2), strict=True)
            sizes = [Known.apply(a, norm, kept.q, kept.floor) for a, norm in each]  # type: ignore[no-untyped-call]
        scales = [size ** (2 - kept.q) for size in sizes]
        weights = tuple(w * scale for w, scale in zip(weights, scales, strict=True))
        if chunk is not None:
            chunk = chunk._replace(start=tuple(w * scale for w, scale in zip(chunk.start, scales, strict=True)))
        return reached._replace(weights=weights, chunk=chunk)
    if isinstance(kept, KL):
        accumulated = tuple(kept.hold(w).accumulated for w in reached.accumulated)
        return reached._replace(accumulated=accumulated, anchor=anchor)
    return reached


def opened(
    rows: Rows,
    reached: State,
    tails: tuple[Tensor, ...],
    log_alpha: Tensor | None,
    size: int,
    lengths: list[int],
    led: bool = False,
) -> State:
    """A state in mid-chunk: beside what was reached, the weights at the chunk's start and what has accumulated since.

    Where chunks are ``led``, their first tokens' decays are in the weights that they start with.
    """
    begun, end = rows.length % size, reached.weights
    assert isinstance(end, tuple)
    start = tuple(torch.where((begun > 0)[:, None, None, None], tail, new) for tail, new in zip(tails, end, strict=True))
    zero = torch.zeros_like(start[0][..., :1, :1])
    # the outer weight decays by its rows, an inner one by its columns
    decays, kept = (zero,) * len(start), start
    if log_alpha is not None:
        # gathered, not added up where they belong: on a GPU that adds in any order
        place = torch.arange(size - 1, device=log_alpha.device)
        late = place < (begun - int(led))[:, None]
        last = ((rows.first + rows.length)[:, None] - 1 - place).clamp_min(0)
        total = torch.where(late[:, :, None, None], log_alpha[last].float(), 0.0).sum(1)
        decays = (total[..., :, None], total[..., None, :])[: len(start)]
        anchors = reached.anchor or (None,) * len(start)
        kept = tuple(decay(w, log, a) for w, log, a in zip(start, decays, anchors, strict=True))
    moved = tuple(a - b for a, b in zip(kept, end, strict=True))
    position = torch.tensor([length % size for length in lengths])
    return reached._replace(accumulated=start, chunk=Progress(start, moved, decays, (zero,) * len(start), position))
