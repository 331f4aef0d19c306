"""The 2-layer MLP memory forwards: a scan that only advances the state, and a readout parallel over chunks.

Weights are kept E-major, A = W1' and B = W2, both [E,D], so that the large products have E rows. A chunk's gradients are taken at its
starting weights; the scan writes those weights and the errors u1 for the readout.

C tokens of a chunk, D channels (DP: a power of two), E = 4 D hidden channels in blocks of EB, N chunks, R sequences
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .lead import lead
from .links import norm_of, scale_at, scale_of, sum_powers
from .tiles import (
    LARGE,
    LOWEST,
    chunk_and_head,
    decayed_scores,
    decayed_values,
    decays,
    gelu,
    gelu_slope,
    halved,
    past,
    place,
    power,
    rows,
    slope_of,
    spacing,
    standardise,
    stretch,
    tile,
    weight,
)


@triton.jit
def accumulate(
    log_alpha_ptr, total_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr, W: tl.constexpr, C: tl.constexpr, WB: tl.constexpr, LED: tl.constexpr,
):
    """L_t = log alpha_1 + ... + log alpha_t of every chunk, along W columns, one a head or channel; a program has WB of them.

    Where a chunk's first token has a step of its own (LED = 1), its decay is not among them.
    """
    block: tl.constexpr = (W + WB - 1) // WB
    number = tl.program_id(0).to(tl.int64) // block
    c = tl.program_id(0) % block * WB + tl.arange(0, WB)
    first, count = stretch(number, row_ptr, first_ptr, length_ptr, chunk_ptr, C)
    inside = c < W
    total = tl.zeros([WB], tl.float32)
    for t in range(0, C, 4):
        # four at once: a load does not pass a store before it, and would wait for memory each time
        at, slot = (first + t) * W + c, c * 0 + t
        a = tl.load(log_alpha_ptr + at, mask=inside & (slot >= LED) & (slot < count), other=0.0).to(tl.float32)
        b = tl.load(log_alpha_ptr + at + W, mask=inside & (slot + 1 < count), other=0.0).to(tl.float32)
        e = tl.load(log_alpha_ptr + at + 2 * W, mask=inside & (slot + 2 < count), other=0.0).to(tl.float32)
        f = tl.load(log_alpha_ptr + at + 3 * W, mask=inside & (slot + 3 < count), other=0.0).to(tl.float32)
        a = total + tl.maximum(a, LOWEST)
        b = a + tl.maximum(b, LOWEST)
        e = b + tl.maximum(e, LOWEST)
        total = e + tl.maximum(f, LOWEST)
        tl.store(total_ptr + at, a, mask=inside & (slot < count))
        tl.store(total_ptr + at + W, b, mask=inside & (slot + 1 < count))
        tl.store(total_ptr + at + 2 * W, e, mask=inside & (slot + 2 < count))
        tl.store(total_ptr + at + 3 * W, total, mask=inside & (slot + 3 < count))


@triton.jit
def prepare(
    q_ptr, k_ptr, eta_ptr, log_alpha_ptr, scores2_ptr, late_q_ptr, late_ptr, late_k_ptr, kept_ptr, total_ptr, sizes_ptr,
    kappa_ptr, grown_ptr, slow_ptr, slow_k_ptr, slopes_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    HAS_ALPHA: tl.constexpr, MOMENTUM: tl.constexpr, LED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """What no weight enters: the inner layer's scores q_t . (b_t/b_i) eta_i k_i, b_t q_t, each write's step at the chunk's
    end, bare and times -k, b_C, and over how many tokens differences of log b_t may be split. With momentum the pair factors are
    ``kappa``, and ``slow`` is each write's step in the momentum. Where a chunk's first token has a step of its own (LED = 1), it
    has none here. Where there are ``slopes``, what is written moves what the chunk's own tokens read by so much.
    """
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    q, k = tile(q_ptr, token, head, d, H, D, there), tile(k_ptr, token, head, d, H, D, there)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there & (t >= LED), D)
    seen = t[:, None] >= t[None, :]
    late_q, late, kept = q, eta, tl.full([DP], 1.0, tl.float32)
    if HAS_ALPHA:
        total, end = past(total_ptr, number, row_ptr, first_ptr, length_ptr, chunk_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D, C)
        kept = power(end, FAST)
    if MOMENTUM:
        factors = kappa_ptr + (number * H + head) * C * C
        scores = tl.dot(q.to(DOT), tl.trans((eta * k).to(DOT)), input_precision=PRECISION)
        scores *= tl.load(factors + t[:, None] * C + t[None, :])
        late = eta * tl.load(factors + (C - 1) * C + t)[:, None]
        if HAS_ALPHA:
            late_q = q * power(total, FAST)
    elif HAS_ALPHA:
        size = C
        if tl.min(end, 0) <= LARGE:
            log_alpha = decays(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there & (t >= LED), D)
            size = spacing(log_alpha, end, C, BLOCK)
        tl.store(sizes_ptr + number * H + head, size)
        if size == C:
            near, far, half = halved(total, end, FAST)
            late_q, late = q * near, eta * far
            scores = tl.dot(late_q.to(DOT), tl.trans((late * k).to(DOT)), input_precision=PRECISION)
            scores, late_q, late = tl.where(seen, scores, 0.0), late_q * half[None, :], late * half[None, :]
        else:
            scores = decayed_scores(q, eta * k, total, size, t, DOT, PRECISION, C)
            late_q, late = q * power(total, FAST), eta * power(end[None, :] - total, FAST)
    else:
        scores = tl.dot(q.to(DOT), tl.trans((eta * k).to(DOT)), input_precision=PRECISION)
        scores = tl.where(seen, scores, 0.0)
    if slopes_ptr is not None:
        scores *= slope_of(slopes_ptr, row, head, H, 1)
    tl.store(scores2_ptr + (number * H + head) * C * C + t[:, None] * C + t[None, :], scores)
    out = token[:, None] * H * D + head * D + d[None, :]
    tl.store(late_q_ptr + out, late_q, mask=there[:, None] & (d[None, :] < D))
    tl.store(late_ptr + out, late, mask=there[:, None] & (d[None, :] < D))
    tl.store(late_k_ptr + out, -late * k, mask=there[:, None] & (d[None, :] < D))
    if MOMENTUM:
        slow = eta * tl.load(grown_ptr + (number * H + head) * C + t)[:, None]
        tl.store(slow_ptr + out, slow, mask=there[:, None] & (d[None, :] < D))
        tl.store(slow_k_ptr + out, -slow * k, mask=there[:, None] & (d[None, :] < D))
    tl.store(kept_ptr + (number * H + head) * D + d, kept, mask=d < D)


@triton.jit
def surprise(o, k, v, delta, gain, shift, there, d, D, BIAS: tl.constexpr, P: tl.constexpr):
    """The error at the outer layer's input, u1 = LN'(O)[gain c(e)], e = k + gain unit + shift - v."""
    unit, inverse = standardise(o, d, D)
    error = k + gain[None, :] * unit + shift[None, :] - v
    c = tl.where((d[None, :] < D) & there[:, None], gain[None, :] * BIAS(error, delta, P), 0.0)
    along = tl.sum(c * unit, 1) / D
    u1 = inverse[:, None] * (c - (tl.sum(c, 1) / D)[:, None] - unit * along[:, None])
    return tl.where(d[None, :] < D, u1, 0.0)


@triton.jit
def scan(
    k_ptr, v_ptr, late_ptr, late_k_ptr, kept_ptr, delta_ptr, w1_ptr, w2_ptr, anchor1_ptr, anchor2_ptr, gain_ptr, shift_ptr,
    starts1_ptr, starts2_ptr, u1_ptr, late_u1_ptr, o_ptr, end1_ptr, end2_ptr, tail1_ptr, tail2_ptr,
    slow_ptr, slow_k_ptr, slow_u1_ptr, sigma_ptr, grown_end_ptr, speed1_ptr, speed2_ptr, speeds1_ptr, speeds2_ptr, last1_ptr, last2_ptr, norms_ptr,
    lead_k_ptr, lead_v_ptr, lead_eta_ptr, lead_log_ptr, lead_delta_ptr, log_anchor1_ptr, log_anchor2_ptr, lead_o_ptr, before1_ptr, before2_ptr,
    first_ptr, length_ptr, chunk_ptr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, delta_token, delta_head, delta_d,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr, BIAS: tl.constexpr, P: tl.constexpr,
    HAS_DELTA: tl.constexpr, ANCHORED: tl.constexpr, MOMENTUM: tl.constexpr, LINK: tl.constexpr, FLOOR: tl.constexpr, MASS1: tl.constexpr, MASS2: tl.constexpr, LB: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """One program a sequence and head: read every chunk's keys and values, advance the weights.

    Products read the copy that is kept for the readout; the sums live in ``end1``, ``end2``, in float32.
    A momentum goes along in the same way: ``speed``, ``speeds`` at each chunk's start, the sums in ``last``.
    With a link W = s A the weights here are A, and ``norms`` holds the norm of every state, from which s follows.
    With a mass (of each column of W1 and W2) a chunk's first token takes a step by itself; ``before`` is what it found.
    What only the backward pass reads is left out where it has no place: ``o``, ``late_u1``, ``slow_u1``, ``lead_o``, ``before``.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, length, chunk0 = tl.load(first_ptr + row), tl.load(length_ptr + row), tl.load(chunk_ptr + row)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    base = (row * H + head) * E * D
    chunks = (length + C - 1) // C
    if LINK > 0:
        most1, most2 = tl.full([EB], FLOOR, tl.float32), tl.full([EB], FLOOR, tl.float32)
        total1, total2 = tl.zeros([EB], tl.float32), tl.zeros([EB], tl.float32)
    for i in range(NE):
        at = (i * EB + e)[:, None] * D + d[None, :]
        inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
        w1, w2 = weight(w1_ptr + base, at, inside), weight(w2_ptr + base, at, inside)
        tl.store(end1_ptr + base + at, w1, mask=inside)
        tl.store(end2_ptr + base + at, w2, mask=inside)
        if chunks > 0:
            tl.store(starts1_ptr + (chunk0 * H + head) * E * D + at, w1, mask=inside)
            tl.store(starts2_ptr + (chunk0 * H + head) * E * D + at, w2, mask=inside)
        if MOMENTUM:
            s1, s2 = weight(speed1_ptr + base, at, inside), weight(speed2_ptr + base, at, inside)
            tl.store(last1_ptr + base + at, s1, mask=inside)
            tl.store(last2_ptr + base + at, s2, mask=inside)
            if chunks > 0:
                tl.store(speeds1_ptr + (chunk0 * H + head) * E * D + at, s1, mask=inside)
                tl.store(speeds2_ptr + (chunk0 * H + head) * E * D + at, s2, mask=inside)
        if LINK > 0:
            most1, total1 = sum_powers(most1, total1, w1, LINK)
            most2, total2 = sum_powers(most2, total2, w2, LINK)
    if LINK > 0:
        norm1, norm2 = norm_of(most1, total1, LINK), norm_of(most2, total2, LINK)
        tl.store(norms_ptr + ((chunk0 + row) * H + head) * 2, norm1)
        tl.store(norms_ptr + ((chunk0 + row) * H + head) * 2 + 1, norm2)
    tl.debug_barrier()
    for n in range(chunks):
        number = chunk0 + n
        token = first + n * C + t
        there = n * C + t < length
        there_d = there[:, None] & (d[None, :] < D)
        out = token[:, None] * H * D + head * D + d[None, :]
        if MASS1 > 0:
            one, own = (number * H + head) * D, (number * H + head) * E * D
            lead(
                lead_k_ptr + one, lead_v_ptr + one, lead_eta_ptr + one, lead_log_ptr + one, lead_delta_ptr + one, log_anchor1_ptr + base,
                log_anchor2_ptr + base, gain, shift, lead_o_ptr, end1_ptr + base, end2_ptr + base, before1_ptr, before2_ptr,
                starts1_ptr + own, starts2_ptr + own, one, own, d, D, E, DP, LB, BIAS, P, HAS_DELTA, ANCHORED, MASS1, MASS2, FAST,
            )
        k, v = tile(k_ptr, token, head, d, H, D, there), tile(v_ptr, token, head, d, H, D, there)
        key = k.to(DOT)
        save = (number * H + head) * E * D
        o = tl.zeros([C, DP], tl.float32)
        if LINK > 0:
            scale1, scale2 = scale_of(norm1, LINK), scale_of(norm2, LINK)
            most1, most2 = tl.full([EB], FLOOR, tl.float32), tl.full([EB], FLOOR, tl.float32)
            total1, total2 = tl.zeros([EB], tl.float32), tl.zeros([EB], tl.float32)
        for i in range(NE):
            at = (i * EB + e)[:, None] * D + d[None, :]
            inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
            w2 = weight(starts2_ptr + save, at, inside)
            h = tl.dot(w2, tl.trans(key), input_precision=PRECISION)
            if LINK > 0:
                h *= scale2
            o += tl.dot(tl.trans(gelu(h, FAST).to(DOT)), weight(starts1_ptr + save, at, inside), input_precision=PRECISION)
        if LINK > 0:
            o *= scale1
        delta = o
        if HAS_DELTA:
            delta = rows(delta_ptr, token, head, d, delta_token, delta_head, delta_d, there, D)
        u1 = surprise(o, k, v, delta, gain, shift, there, d, D, BIAS, P)
        tl.store(u1_ptr + out, u1, mask=there_d)
        late_u1 = (-tile(late_ptr, token, head, d, H, D, there) * u1).to(DOT)
        if o_ptr is not None:
            tl.store(o_ptr + out, o, mask=there_d)
            tl.store(late_u1_ptr + out, late_u1, mask=there_d)
        late_k = tile(late_k_ptr, token, head, d, H, D, there).to(DOT)
        kept = tl.load(kept_ptr + (number * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        u1_t = tl.trans(u1.to(DOT))
        if MOMENTUM:
            slow_u1 = (-tile(slow_ptr, token, head, d, H, D, there) * u1).to(DOT)
            if slow_u1_ptr is not None:
                tl.store(slow_u1_ptr + out, slow_u1, mask=there_d)
            slow_k = tile(slow_k_ptr, token, head, d, H, D, there).to(DOT)
            carried = tl.load(sigma_ptr + (number * H + head) * C + C - 1)
            grown = tl.load(grown_end_ptr + number * H + head)
        for i in range(NE):
            at = (i * EB + e)[:, None] * D + d[None, :]
            inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
            h = tl.dot(weight(starts2_ptr + save, at, inside), tl.trans(key), input_precision=PRECISION)
            if LINK > 0:
                h *= scale2
            z, slope = gelu_slope(h, FAST)
            u2 = slope * tl.dot(weight(starts1_ptr + save, at, inside), u1_t, input_precision=PRECISION)
            if LINK > 0:
                u2 *= scale1
            w1, w2 = weight(end1_ptr + base, at, inside), weight(end2_ptr + base, at, inside)
            if (n + 1) * C > length:
                tl.store(tail1_ptr + base + at, w1, mask=inside)
                tl.store(tail2_ptr + base + at, w2, mask=inside)
            w1, w2 = kept * w1, kept * w2
            if ANCHORED:
                w1 += (1 - kept) * weight(anchor1_ptr + base, at, inside)
                w2 += (1 - kept) * weight(anchor2_ptr + base, at, inside)
            if MOMENTUM:
                s1, s2 = weight(last1_ptr + base, at, inside), weight(last2_ptr + base, at, inside)
                w1 += carried * s1
                w2 += carried * s2
                s1 = grown * s1 + tl.dot(z.to(DOT), slow_u1, input_precision=PRECISION)
                s2 = grown * s2 + tl.dot(u2.to(DOT), slow_k, input_precision=PRECISION)
                tl.store(last1_ptr + base + at, s1, mask=inside)
                tl.store(last2_ptr + base + at, s2, mask=inside)
                if n + 1 < chunks:
                    tl.store(speeds1_ptr + save + H * E * D + at, s1, mask=inside)
                    tl.store(speeds2_ptr + save + H * E * D + at, s2, mask=inside)
            w1 += tl.dot(z.to(DOT), late_u1, input_precision=PRECISION)
            w2 += tl.dot(u2.to(DOT), late_k, input_precision=PRECISION)
            tl.store(end1_ptr + base + at, w1, mask=inside)
            tl.store(end2_ptr + base + at, w2, mask=inside)
            if n + 1 < chunks:
                tl.store(starts1_ptr + save + H * E * D + at, w1, mask=inside)
                tl.store(starts2_ptr + save + H * E * D + at, w2, mask=inside)
            if LINK > 0:
                most1, total1 = sum_powers(most1, total1, w1, LINK)
                most2, total2 = sum_powers(most2, total2, w2, LINK)
        if LINK > 0:
            norm1, norm2 = norm_of(most1, total1, LINK), norm_of(most2, total2, LINK)
            tl.store(norms_ptr + ((number + row + 1) * H + head) * 2, norm1)
            tl.store(norms_ptr + ((number + row + 1) * H + head) * 2 + 1, norm2)
        # the next chunk's threads read what this one's have written
        tl.debug_barrier()


@triton.jit
def readout(
    q_ptr, late_q_ptr, k_ptr, u1_ptr, scores2_ptr, scores1_ptr, o_ptr, o_anchor_ptr, starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr,
    sigma_ptr, speeds1_ptr, speeds2_ptr, o_speed_ptr, norms_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr, ANCHORED: tl.constexpr, MOMENTUM: tl.constexpr, LINK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """One program a chunk and head: the products with the weights; ``finish`` adds the outer layer's decays and the norm."""
    number, head = chunk_and_head(H)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    late = tile(late_q_ptr, token, head, d, H, D, there)
    towards = (tile(q_ptr, token, head, d, H, D, there) - late).to(DOT) if ANCHORED else late
    if MOMENTUM:
        carried = tl.load(sigma_ptr + (number * H + head) * C + t)[:, None]
        onward = (carried * tile(q_ptr, token, head, d, H, D, there)).to(DOT)
        o_speed = tl.zeros([C, DP], tl.float32)
    late = late.to(DOT)
    key, u1 = tile(k_ptr, token, head, d, H, D, there).to(DOT), tile(u1_ptr, token, head, d, H, D, there).to(DOT)
    square = (number * H + head) * C * C + t[:, None] * C + t[None, :]
    s2 = tl.load(scores2_ptr + square).to(DOT)
    o, o_anchor = tl.zeros([C, DP], tl.float32), tl.zeros([C, DP], tl.float32)
    scores1 = tl.zeros([C, C], tl.float32)
    if LINK > 0:
        # the last token of a full chunk reads the mapped state
        scale1, scale2 = scale_at(norms_ptr, (number + row) * H + head, LINK)
        _, next2 = scale_at(norms_ptr, (number + row + 1) * H + head, LINK)
        own2 = tl.where((t == C - 1) & there, next2, scale2)[:, None]
    base, save = (row * H + head) * E * D, (number * H + head) * E * D
    for i in range(NE):
        at = (i * EB + e)[:, None] * D + d[None, :]
        inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
        w1, w2 = weight(starts1_ptr + save, at, inside), weight(starts2_ptr + save, at, inside)
        h = tl.dot(key, tl.trans(w2), input_precision=PRECISION)
        if LINK > 0:
            h *= scale2
        z, slope = gelu_slope(h, FAST)
        u2 = slope * tl.dot(u1, tl.trans(w1), input_precision=PRECISION)
        if LINK > 0:
            u2 *= scale1
        h_q = tl.dot(late, tl.trans(w2), input_precision=PRECISION)
        if ANCHORED:
            h_q += tl.dot(towards, tl.trans(weight(anchor2_ptr + base, at, inside).to(DOT)), input_precision=PRECISION)
        if MOMENTUM:
            h_q += tl.dot(onward, tl.trans(weight(speeds2_ptr + save, at, inside)), input_precision=PRECISION)
        h_q -= tl.dot(s2, u2.to(DOT), input_precision=PRECISION)
        if LINK > 0:
            h_q *= own2
        z_q = gelu(h_q, FAST).to(DOT)
        scores1 += tl.dot(z_q, tl.trans(z.to(DOT)), input_precision=PRECISION)
        o += tl.dot(z_q, w1, input_precision=PRECISION)
        if ANCHORED:
            o_anchor += tl.dot(z_q, weight(anchor1_ptr + base, at, inside).to(DOT), input_precision=PRECISION)
        if MOMENTUM:
            o_speed += tl.dot(z_q, weight(speeds1_ptr + save, at, inside), input_precision=PRECISION)
    tl.store(scores1_ptr + square, tl.where(t[:, None] >= t[None, :], scores1, 0.0))
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    tl.store(o_ptr + out, o, mask=there_d)
    if ANCHORED:
        tl.store(o_anchor_ptr + out, o_anchor, mask=there_d)
    if MOMENTUM:
        tl.store(o_speed_ptr + out, o_speed, mask=there_d)


@triton.jit
def finish(
    q_ptr, eta_ptr, total_ptr, sizes_ptr, u1_ptr, scores1_ptr, o_ptr, o_anchor_ptr, y_ptr, gain_ptr, shift_ptr,
    kappa_ptr, sigma_ptr, o_speed_ptr, norms_ptr, slopes_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, MOMENTUM: tl.constexpr, LINK: tl.constexpr, LED: tl.constexpr,
    KEEPS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """The outer layer's decays, norm and residual; the norm's input takes the place of the bare product where it is kept."""
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    x = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there & (t >= LED), D) * tile(u1_ptr, token, head, d, H, D, there)
    if slopes_ptr is not None:
        x *= slope_of(slopes_ptr, row, head, H, 0)
    s1 = tl.load(scores1_ptr + (number * H + head) * C * C + t[:, None] * C + t[None, :]).to(tl.float32)
    o = tile(o_ptr, token, head, d, H, D, there)
    if HAS_ALPHA:
        total, end = past(total_ptr, number, row_ptr, first_ptr, length_ptr, chunk_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D, C)
        if MOMENTUM:
            kept = power(total, FAST)
            o = kept * o
        else:
            size = tl.load(sizes_ptr + number * H + head)
            if size == C:
                near, far, half = halved(total, end, FAST)
                o = near * (half[None, :] * o - tl.dot(s1.to(DOT), (x * far).to(DOT), input_precision=PRECISION))
                kept = near * half[None, :]
            else:
                kept = power(total, FAST)
                o = kept * o - decayed_values(s1, x, total, size, t, DOT, PRECISION, C)
        if ANCHORED:
            o += (1 - kept) * tile(o_anchor_ptr, token, head, d, H, D, there)
    if MOMENTUM:
        s1 *= tl.load(kappa_ptr + (number * H + head) * C * C + t[:, None] * C + t[None, :])
        o += tl.load(sigma_ptr + (number * H + head) * C + t)[:, None] * tile(o_speed_ptr, token, head, d, H, D, there)
        o -= tl.dot(s1.to(DOT), x.to(DOT), input_precision=PRECISION)
    elif not HAS_ALPHA:
        o -= tl.dot(s1.to(DOT), x.to(DOT), input_precision=PRECISION)
    if LINK > 0:
        scale1, _ = scale_at(norms_ptr, (number + row) * H + head, LINK)
        next1, _ = scale_at(norms_ptr, (number + row + 1) * H + head, LINK)
        o *= tl.where((t == C - 1) & there, next1, scale1)[:, None]
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    if KEEPS:
        tl.store(o_ptr + out, o, mask=there_d)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    unit, _ = standardise(o, d, D)
    tl.store(y_ptr + out, tile(q_ptr, token, head, d, H, D, there) + gain[None, :] * unit + shift[None, :], mask=there_d)
