"""The forward pass of the 2-layer MLP memory: its kernels in a row.

R sequences, B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .arguments import NO_LEAD, NO_MOMENTUM, Given, Link, Result, Saved, Weights
from .biases import DEVICE
from .forward_kernels import accumulate, finish, prepare, readout, scan
from .launch import FULL, options, rounded, strides

# how many columns of the decays a program sums up: rows of 512 bytes
COLUMNS = 256


def forward(given: Given, keeps: bool = True) -> tuple[Result, Saved]:
    """What no weight enters, the scan over chunks, then the readout of all of them; it ``keeps`` what the backward pass needs."""
    tokens, weights, momentum, lead, rows, size, bias, link = given
    q, k, v, eta, log_alpha, delta = tokens
    heads, channels = q.shape[1:]
    hidden, chunks = weights.w2.shape[2], rows.row.shape[0]
    moves = momentum is not None
    saved = empty_saved(q, log_alpha, weights, chunks, size, moves, link, keeps)
    # where nothing is kept, kernels are given no place for it
    late_u1, o, slow_u1, lead_o, before1, before2 = (
        x if keeps else None for x in (saved.late_u1, saved.o, saved.slow_u1, saved.lead_o, saved.before1, saved.before2)
    )
    result = empty_result(q, weights, moves)
    speed1, speed2, kappa, sigma, grown, grown_end = momentum or NO_MOMENTUM
    anchors, norm = (weights.anchor1, weights.anchor2), (weights.gain, weights.shift)
    places = (rows.first, rows.length, rows.chunk)
    steps, decays = strides(eta), strides(log_alpha)
    say = options(q, size, hidden, tokens.log_alpha is not None, weights.anchor1 is not None, moves, link)
    grid = (chunks * heads,)
    if log_alpha is not None:
        columns = log_alpha[0].numel()
        accumulate[(chunks * triton.cdiv(columns, COLUMNS),)](
            log_alpha, saved.total, *places, rows.row, columns, C=size, WB=COLUMNS, **say.led, num_warps=4
        )
    prepare[grid](
        q, k, eta, log_alpha, saved.scores2, saved.late_q, saved.late, saved.late_k, saved.kept, saved.total, saved.sizes,
        kappa, grown, saved.slow, saved.slow_k, weights.slopes,
        *places, rows.row, heads, channels, *steps, *decays, BLOCK=min(16, size), **say.pairs,
    )  # fmt: skip
    states = (
        weights.w1, weights.w2, *anchors, *norm, saved.starts1, saved.starts2, saved.u1, late_u1, o, *result[1:5],
    )  # fmt: skip
    where = (*places, heads, channels, hidden)
    besides = (
        saved.slow, saved.slow_k, slow_u1, sigma, grown_end, speed1, speed2, saved.speeds1, saved.speeds2, *result[5:], saved.norms,
        *(lead or NO_LEAD), lead_o, before1, before2,
    )  # fmt: skip
    device = {"BIAS": DEVICE[bias.name].gradient, "P": bias.p, "HAS_DELTA": delta is not None, "ANCHORED": say.anchored}
    programs = (rows.first.shape[0], heads)
    if say.scan_resident:
        from .resident_kernels import scan_resident

        whole = None if delta is None else delta.expand_as(q).contiguous()
        scan_resident[programs](
            k, v, saved.late, saved.late_k, saved.kept, whole, *states, *besides, *where, **device, **say.moved, num_warps=8,
        )  # fmt: skip
    else:
        scan[programs](
            k, v, saved.late, saved.late_k, saved.kept, delta, *states, *besides, *where, *strides(delta), **device, **say.scan,
        )  # fmt: skip
    read = (saved.scores2, saved.scores1, saved.o_q)
    if say.reads_resident:
        from .resident_reads import readout_resident

        readout_resident[grid](
            q, saved.late_q, k, saved.u1, *read, saved.o_speed if moves else saved.o_anchor, saved.starts1, saved.starts2,
            *((saved.speeds1, saved.speeds2) if moves else rounded(anchors, q)), sigma, saved.norms,
            *places, rows.row, heads, channels, hidden, ANCHORED=say.anchored, MOMENTUM=moves, LINK=link.q, **FULL,
        )  # fmt: skip
    else:
        readout[grid](
            q, saved.late_q, k, saved.u1, *read, saved.o_anchor, saved.starts1, saved.starts2, *anchors,
            sigma, saved.speeds1, saved.speeds2, saved.o_speed, saved.norms, *places, rows.row, heads, channels, hidden,
            ANCHORED=say.anchored, **say.read,
        )  # fmt: skip
    finish[grid](
        q, eta, saved.total, saved.sizes, saved.u1, saved.scores1, saved.o_q, saved.o_anchor, result.y, *norm, kappa, sigma, saved.o_speed, saved.norms, weights.slopes,
        *places, rows.row, heads, channels, *steps, *decays, ANCHORED=say.anchored, LINK=link.q, KEEPS=keeps, **say.pairs,
    )  # fmt: skip
    return result, saved


def empty_result(q: Tensor, weights: Weights, moves: bool) -> Result:
    """Room for the results."""
    speeds = (torch.empty_like(weights.w1) if moves else weights.w1.new_empty(0) for _ in range(2))
    return Result(torch.empty_like(q), *(torch.empty_like(weights.w1) for _ in range(4)), *speeds)


def empty_saved(
    q: Tensor, log_alpha: Tensor | None, weights: Weights, chunks: int, size: int, moves: bool, link: Link, keeps: bool
) -> Saved:
    """Room for what the backward pass needs, or, unless it ``keeps`` that, for what the forward pass itself reads again.

    The read's norm inputs are float32 where small differences of large numbers matter: under an anchor, a momentum, or weights
    that are all positive. So they are for float16, which has too few digits for the little that a strong decay leaves.
    """
    rows, heads, hidden, channels = weights.w2.shape
    starts1, starts2 = (q.new_empty(chunks, heads, hidden, channels) for _ in range(2))
    scores1, scores2 = (q.new_empty(chunks, heads, size, size) for _ in range(2))
    exact = weights.anchor1 is not None or moves or link.mass1 > 0 or q.dtype == torch.float16
    o_q = torch.empty_like(q, dtype=torch.float32 if exact else q.dtype)
    o_anchor = torch.empty_like(o_q) if weights.anchor1 is not None else o_q.new_empty(0)

    def room(like: Tensor, wanted: bool) -> Tensor:
        return torch.empty_like(like) if wanted else like.new_empty(0)

    u1, late_q, late, late_k = (torch.empty_like(q) for _ in range(4))
    o, late_u1 = room(q, keeps), room(q, keeps)
    kept = weights.w2.new_empty(chunks, heads, channels)
    total = kept.new_empty(0) if log_alpha is None else torch.empty_like(log_alpha, dtype=torch.float32)
    sizes = torch.empty(chunks, heads, dtype=torch.int32, device=q.device)
    plain = (starts1, starts2, u1, o, o_q, o_anchor, scores1, scores2, late_q, late, late_k, late_u1, kept, total, sizes)
    own = [*(room(x, moves) for x in (starts1, starts2, o_q, q, q)), room(q, moves and keeps)]
    own.append(kept.new_empty((chunks + rows, heads, 2) if link.q > 0 else 0))
    own += [room(x, link.mass1 > 0 and keeps) for x in (starts1, starts2, kept)]
    return Saved(*plain, *own)
