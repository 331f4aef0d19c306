"""What Moneta's link W = s A adds to a decoding step in Triton: the number s in mid-chunk, and the map at a chunk's end.

s = max(||A||_q, floor)^(2-q) is one number a weight and stands still inside a chunk. There every entry of W is s times that of A, to
one rounding, so any entries that are not too small tell it: one hidden channel is read, not the weights.

D channels (DP: a power of two), E hidden channels, in blocks of EB for the norm, in shares of NO blocks of OB for the rest
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .links import norm_of, scale_of, sum_powers
from .tiles import gelu, standardise_one, weight


@triton.jit
def sizes(w_ptr, a_ptr, at, inside):
    """|W| and |A|."""
    return tl.abs(weight(w_ptr, at, inside)), tl.abs(weight(a_ptr, at, inside))


@triton.jit
def add4(a, b, c, d, e, f, g, h):
    """Four sums at once."""
    return a + e, b + f, c + g, d + h


@triton.jit
def ratio(w, a, FLOOR: tl.constexpr, SLOPE_AT_FLOOR: tl.constexpr):
    """s, given the sums of all |W| and |A|: ||A||_q is at most the latter, so where that is within the floor the floor is the norm."""
    return tl.where(a > FLOOR, w / tl.maximum(a, FLOOR), SLOPE_AT_FLOOR)


@triton.jit
def slopes_of(
    first_w1, first_a1, first_w2, first_a2, w1_ptr, a1_ptr, w2_ptr, a2_ptr, base, d, D, E,
    FLOOR: tl.constexpr, SLOPE_AT_FLOOR: tl.constexpr, DP: tl.constexpr, MOST: tl.constexpr,
):
    """Both weights' s = sum|W| / sum|A| over the first hidden channel, or, where one is too small to tell, over all of them.

    No squares are taken, so sums neither under- nor overflow before the weights do; of what is more than 1e-30 the largest entry
    has all its digits. ``MOST`` is E with its padding.
    """
    w1, a1, w2, a2 = tl.reduce((first_w1, first_a1, first_w2, first_a2), 0, add4)
    slope1, slope2 = w1 / tl.maximum(a1, 1e-30), w2 / tl.maximum(a2, 1e-30)
    if tl.minimum(tl.minimum(w1, a1), tl.minimum(w2, a2)) < 1e-30:
        each_w1, each_a1 = tl.zeros([16, DP], tl.float32), tl.zeros([16, DP], tl.float32)
        each_w2, each_a2 = tl.zeros([16, DP], tl.float32), tl.zeros([16, DP], tl.float32)
        for i in range((MOST + 15) // 16):
            e = i * 16 + tl.arange(0, 16)
            at = base + e[:, None] * D + d[None, :]
            inside = (e[:, None] < E) & (d[None, :] < D)
            new_w1, new_a1 = sizes(w1_ptr, a1_ptr, at, inside)
            new_w2, new_a2 = sizes(w2_ptr, a2_ptr, at, inside)
            each_w1 += new_w1
            each_a1 += new_a1
            each_w2 += new_w2
            each_a2 += new_a2
        w1, a1, w2, a2 = tl.reduce(tl.reduce((each_w1, each_a1, each_w2, each_a2), 1, add4), 0, add4)
        slope1, slope2 = ratio(w1, a1, FLOOR, SLOPE_AT_FLOOR), ratio(w2, a2, FLOOR, SLOPE_AT_FLOOR)
    return slope1, slope2


@triton.jit
def close(
    q_ptr, accumulated1_ptr, accumulated2_ptr, gain_ptr, shift_ptr, closes_ptr,
    y_ptr, weight1_ptr, weight2_ptr, start1_ptr, start2_ptr, part_ptr,
    H, D, E,
    Q: tl.constexpr, FLOOR: tl.constexpr, HAS_NORM: tl.constexpr, MIXED: tl.constexpr,
    DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr, OB: tl.constexpr, NO: tl.constexpr, SHARES: tl.constexpr,
):
    """The end of a chunk, after ``step``: W = s A with the norm of the new A, then W is read; a program a row, head and share.

    The norm needs all hidden channels, and every program takes it for itself. Where rows are ``MIXED``, only those that
    ``closes`` marks are mapped, and the others stay as ``step`` has left them.
    """
    pair, share = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    ends = tl.full([], 1, tl.int1)
    if MIXED:
        ends = tl.load(closes_ptr + pair // H) != 0
    if ends:
        d = tl.arange(0, DP)
        there = d < D
        base = pair * E * D
        most1, most2 = tl.full([EB], FLOOR, tl.float32), tl.full([EB], FLOOR, tl.float32)
        total1, total2 = tl.zeros([EB], tl.float32), tl.zeros([EB], tl.float32)
        for i in range(NE):
            e = i * EB + tl.arange(0, EB)
            at = base + e[:, None] * D + d[None, :]
            inside = (e[:, None] < E) & there[None, :]
            a1, a2 = weight(accumulated1_ptr, at, inside), weight(accumulated2_ptr, at, inside)
            most1, total1 = sum_powers(most1, total1, a1, Q)
            most2, total2 = sum_powers(most2, total2, a2, Q)
        scale1 = scale_of(norm_of(most1, total1, Q), Q)
        scale2 = scale_of(norm_of(most2, total2, Q), Q)

        token = pair * D + d
        q = tl.load(q_ptr + token, mask=there, other=0.0).to(tl.float32)
        read = tl.zeros([DP], tl.float32)
        for j in range(NO):
            e = (share * NO + j) * OB + tl.arange(0, OB)
            at = base + e[:, None] * D + d[None, :]
            inside = (e[:, None] < E) & there[None, :]
            new1 = scale1 * weight(accumulated1_ptr, at, inside)
            new2 = scale2 * weight(accumulated2_ptr, at, inside)
            tl.store(weight1_ptr + at, new1, mask=inside)
            tl.store(weight2_ptr + at, new2, mask=inside)
            if MIXED:
                tl.store(start1_ptr + at, new1, mask=inside)
                tl.store(start2_ptr + at, new2, mask=inside)
            read += tl.sum(new1 * gelu(tl.sum(new2 * q[None, :], 1), False)[:, None], 0)
        if SHARES == 1:
            unit = standardise_one(read, d, D)[0]
            if HAS_NORM:
                head = pair % H
                gain = tl.load(gain_ptr + head * D + d, mask=there, other=0.0)
                unit = gain * unit + tl.load(shift_ptr + head * D + d, mask=there, other=0.0)
            tl.store(y_ptr + token, q + unit, mask=there)
        else:
            tl.store(part_ptr + (pair * SHARES + share) * D + d, read, mask=there)
