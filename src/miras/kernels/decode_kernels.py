"""One token of the 2-layer MLP memory in Triton: it is learned into the state of an open chunk, and read.

Weights are kept E-major, W1' and W2 both [E,D]. A head's hidden channels are shared out among programs; the prediction at the
chunk's start needs all of them, so every program makes it for itself (its weights come from the cache the second time), and
each then advances and reads its own share.

D channels (DP: a power of two), E hidden channels, in blocks of EB for the prediction, in shares of NO blocks of OB for the rest
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .decode_link import sizes, slopes_of
from .tiles import gelu, gelu_slope, one_error, standardise_one


@triton.jit
def gate(ptr, row, head, d, stride_row, stride_head, stride_d, D):
    """One token's gate [DP]; a gate of one number a head stands still along the channels."""
    return tl.load(ptr + row * stride_row + head * stride_head + d * stride_d, mask=d < D, other=0.0).to(tl.float32)


@triton.jit
def towards(ptr, at, inside, scale, SCALED: tl.constexpr, LOGARITHM: tl.constexpr):
    """Where a weight decays to: its anchor, in the space that the weight moves in."""
    anchor = tl.load(ptr + at, mask=inside, other=0.0)
    if LOGARITHM:
        anchor = tl.exp(anchor)
    if SCALED:
        anchor = anchor * scale
    return tl.where(inside, anchor, 0.0)  # exp(0) is 1 where nothing is


@triton.jit
def step(
    q_ptr, k_ptr, v_ptr, eta_ptr, log_alpha_ptr, delta_ptr, mu_ptr,
    start1_ptr, start2_ptr, moved1_ptr, moved2_ptr, anchor1_ptr, anchor2_ptr, momentum1_ptr, momentum2_ptr,
    accumulated1_ptr, accumulated2_ptr, log_decay_ptr, gain_ptr, shift_ptr, closes_ptr,
    y_ptr, weight1_ptr, weight2_ptr, new_moved1_ptr, new_moved2_ptr, new_momentum1_ptr, new_momentum2_ptr,
    new_start1_ptr, new_start2_ptr, new_log_decay_ptr, new_accumulated1_ptr, new_accumulated2_ptr, part_ptr,
    H, D, E,
    eta_row, eta_head, eta_d, alpha_row, alpha_head, alpha_d, delta_row, delta_head, delta_d, mu_row, mu_head, mu_d,
    BIAS: tl.constexpr, P: tl.constexpr, FLOOR: tl.constexpr, SLOPE_AT_FLOOR: tl.constexpr,
    HAS_ALPHA: tl.constexpr, HAS_DELTA: tl.constexpr, HAS_MU: tl.constexpr, HAS_NORM: tl.constexpr,
    DECAY_WIDE: tl.constexpr, NEW_DECAY_WIDE: tl.constexpr,
    BEGUN: tl.constexpr, STAYS: tl.constexpr, MIXED: tl.constexpr,
    ANCHORED: tl.constexpr, LOGARITHM: tl.constexpr, SLOPED: tl.constexpr, MAPS: tl.constexpr,
    DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr, OB: tl.constexpr, NO: tl.constexpr, SHARES: tl.constexpr,
):
    """One program a row, head and share of the hidden channels.

    ``BEGUN``: the chunk has moved before this token. ``STAYS``: it is not over after it, in some row at least. ``MIXED``: it is
    over in the rows that ``closes`` marks and goes on in the others. ``SLOPED``: weights are ``accumulated`` times one number a
    matrix, which the steps are scaled by as well. ``MAPS``: where the chunk is over ``accumulated`` itself moves, and ``close``
    has yet to make and read its weights.
    """
    pair, share = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, head = pair // H, pair % H
    d = tl.arange(0, DP)
    there = d < D
    token = pair * D + d
    k = tl.load(k_ptr + token, mask=there, other=0.0).to(tl.float32)
    q = tl.load(q_ptr + token, mask=there, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + token, mask=there, other=0.0).to(tl.float32)
    eta = gate(eta_ptr, row, head, d, eta_row, eta_head, eta_d, D)
    alpha = tl.full([DP], 1.0, tl.float32)
    kept = alpha
    if HAS_ALPHA:
        log_alpha = gate(log_alpha_ptr, row, head, d, alpha_row, alpha_head, alpha_d, D)
        alpha = tl.exp(log_alpha)
        total = log_alpha
        if BEGUN:
            if DECAY_WIDE:
                total += tl.load(log_decay_ptr + token, mask=there, other=0.0)
            else:
                total += tl.load(log_decay_ptr + pair)
        kept = tl.exp(total)
        if STAYS:
            left = total
            if MIXED:
                left = tl.where(tl.load(closes_ptr + row) != 0, 0.0, total)
            if share == 0:
                if NEW_DECAY_WIDE:
                    tl.store(new_log_decay_ptr + token, left, mask=there)
                else:
                    tl.store(new_log_decay_ptr + pair + d, left, mask=d == 0)
    gain = tl.full([DP], 1.0, tl.float32)
    shift = tl.zeros([DP], tl.float32)
    if HAS_NORM:
        gain = tl.load(gain_ptr + head * D + d, mask=there, other=0.0)
        shift = tl.load(shift_ptr + head * D + d, mask=there, other=0.0)

    # the prediction at the chunk's start
    base = pair * E * D
    o = tl.zeros([DP], tl.float32)
    if SLOPED:
        # asked for here and added up below, so that nothing waits for it
        first_w1, first_a1 = sizes(start1_ptr, accumulated1_ptr, base + d, there)
        first_w2, first_a2 = sizes(start2_ptr, accumulated2_ptr, base + d, there)
    for i in range(NE):
        e = i * EB + tl.arange(0, EB)
        at = base + e[:, None] * D + d[None, :]
        inside = (e[:, None] < E) & there[None, :]
        w2 = tl.load(start2_ptr + at, mask=inside, other=0.0)
        w1 = tl.load(start1_ptr + at, mask=inside, other=0.0)
        o += tl.sum(w1 * gelu(tl.sum(w2 * k[None, :], 1), False)[:, None], 0)
    slope1 = 1.0
    slope2 = 1.0
    if SLOPED:
        slope1, slope2 = slopes_of(
            first_w1, first_a1, first_w2, first_a2, start1_ptr, accumulated1_ptr, start2_ptr, accumulated2_ptr, base, d, D, E,
            FLOOR, SLOPE_AT_FLOOR, DP, EB * NE,
        )
    closes = tl.full([], 1, tl.int1)
    if MIXED:
        closes = tl.load(closes_ptr + row) != 0
    if MAPS:
        slope1 = tl.where(closes, 1.0, slope1)
        slope2 = tl.where(closes, 1.0, slope2)

    # its error at W1's output
    delta = o
    if HAS_DELTA:
        delta = gate(delta_ptr, row, head, d, delta_row, delta_head, delta_d, D)
    u1, _, _, _, _ = one_error(o, k, v, delta, gain, shift, d, D, BIAS, P)
    step1, step2 = eta * u1, eta * k
    mu = alpha
    if HAS_MU:
        mu = gate(mu_ptr, row, head, d, mu_row, mu_head, mu_d, D)

    # this program's share: advance it, then read it
    read = tl.zeros([DP], tl.float32)
    for j in range(NO):
        e = (share * NO + j) * OB + tl.arange(0, OB)
        at = base + e[:, None] * D + d[None, :]
        inside = (e[:, None] < E) & there[None, :]
        w1 = tl.load(start1_ptr + at, mask=inside, other=0.0)
        w2 = tl.load(start2_ptr + at, mask=inside, other=0.0)
        z, slope = gelu_slope(tl.sum(w2 * k[None, :], 1), False)
        move1 = z[:, None] * step1[None, :]
        move2 = (slope * tl.sum(w1 * u1[None, :], 1))[:, None] * step2[None, :]
        if HAS_MU:
            move1 -= mu[None, :] * tl.load(momentum1_ptr + at, mask=inside, other=0.0)
            move2 -= mu[None, :] * tl.load(momentum2_ptr + at, mask=inside, other=0.0)
            tl.store(new_momentum1_ptr + at, -move1, mask=inside)
            tl.store(new_momentum2_ptr + at, -move2, mask=inside)
        if BEGUN:
            move1 += alpha[None, :] * tl.load(moved1_ptr + at, mask=inside, other=0.0)
            move2 += alpha[None, :] * tl.load(moved2_ptr + at, mask=inside, other=0.0)
        from1 = w1
        from2 = w2
        if MAPS:
            a1 = tl.load(accumulated1_ptr + at, mask=inside, other=0.0)
            a2 = tl.load(accumulated2_ptr + at, mask=inside, other=0.0)
            from1 = tl.where(closes, a1, w1)
            from2 = tl.where(closes, a2, w2)
        if ANCHORED:
            far1 = towards(anchor1_ptr, at, inside, slope1, SLOPED, LOGARITHM)
            far2 = towards(anchor2_ptr, at, inside, slope2, SLOPED, LOGARITHM)
            new1 = far1 + kept[None, :] * (from1 - far1) - slope1 * move1
            new2 = far2 + kept[None, :] * (from2 - far2) - slope2 * move2
        else:
            new1 = kept[None, :] * from1 - slope1 * move1
            new2 = kept[None, :] * from2 - slope2 * move2
        if MAPS:
            tl.store(new_accumulated1_ptr + at, tl.where(closes, new1, a1), mask=inside)
            tl.store(new_accumulated2_ptr + at, tl.where(closes, new2, a2), mask=inside)
        if MIXED or not MAPS:
            tl.store(weight1_ptr + at, new1, mask=inside)
            tl.store(weight2_ptr + at, new2, mask=inside)
        if MIXED:
            move1 = tl.where(closes, 0.0, move1)
            move2 = tl.where(closes, 0.0, move2)
            tl.store(new_start1_ptr + at, tl.where(closes, new1, w1), mask=inside)
            tl.store(new_start2_ptr + at, tl.where(closes, new2, w2), mask=inside)
        if STAYS:
            tl.store(new_moved1_ptr + at, move1, mask=inside)
            tl.store(new_moved2_ptr + at, move2, mask=inside)
        hidden = gelu(tl.sum(new2 * q[None, :], 1), False)
        read += tl.sum(new1 * hidden[:, None], 0)
    if SHARES == 1:
        tl.store(y_ptr + token, q + gain * standardise_one(read, d, D)[0] + shift, mask=there)
    else:
        tl.store(part_ptr + (pair * SHARES + share) * D + d, read, mask=there)


@triton.jit
def finish(
    q_ptr, part_ptr, gain_ptr, shift_ptr, y_ptr, H, D,
    HAS_NORM: tl.constexpr, DP: tl.constexpr, SP: tl.constexpr, SHARES: tl.constexpr,
):
    """y = q + LN(sum of the shares), one program a row and head; the shares are summed in one order."""
    pair = tl.program_id(0).to(tl.int64)
    d, s = tl.arange(0, DP), tl.arange(0, SP)
    there = d < D
    parts = tl.load(
        part_ptr + (pair * SHARES + s[:, None]) * D + d[None, :], mask=(s[:, None] < SHARES) & there[None, :], other=0.0
    )
    unit = standardise_one(tl.sum(parts, 0), d, D)[0]
    if HAS_NORM:
        head = pair % H
        gain = tl.load(gain_ptr + head * D + d, mask=there, other=0.0)
        unit = gain * unit + tl.load(shift_ptr + head * D + d, mask=there, other=0.0)
    q = tl.load(q_ptr + pair * D + d, mask=there, other=0.0).to(tl.float32)
    tl.store(y_ptr + pair * D + d, q + unit, mask=there)
