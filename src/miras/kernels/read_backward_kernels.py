"""The reads of the 2-layer MLP memory backwards, of all chunks at once.

What the read sends into a chunk's write is affine in the adjoint that arrives from later chunks, so everything that does not depend on
that adjoint is summed here, before the reverse scan. Hidden tiles are [EB,C], hidden channels first, so that most products take their
left side from registers.

C tokens of a chunk, D channels (DP: a power of two), E = 4 D hidden channels in blocks of EB, N chunks, R sequences
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .links import scale_at
from .tiles import (
    chunk_and_head,
    decayed_scores,
    decayed_values,
    gelu_curve,
    gelu_slope,
    halved,
    norm_backprop,
    past,
    place,
    power,
    rows,
    slope_of,
    standardise,
    tile,
    transposed_values,
    weight,
)


@triton.jit
def begin_backward(
    eta_ptr, total_ptr, sizes_ptr, u1_ptr, scores1_ptr, o_ptr, o_anchor_ptr, dy_ptr, gain_ptr,
    do_ptr, late_do_ptr, dscores1_ptr, dx_ptr, dlog_ptr, dgain_ptr, dshift_ptr,
    kappa_ptr, sigma_ptr, o_speed_ptr, dkappa_ptr, dsigma_ptr, norms_ptr, dscale_ptr, slopes_ptr, dslopes_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, MOMENTUM: tl.constexpr, LINK: tl.constexpr, LED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """From dy through the norm and the outer layer's decays: what ``finish`` did, backwards."""
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    square = (number * H + head) * C * C + t[:, None] * C + t[None, :]
    o, dy = tile(o_ptr, token, head, d, H, D, there), tile(dy_ptr, token, head, d, H, D, there)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    unit, inverse = standardise(o, d, D)
    tl.store(dgain_ptr + (number * H + head) * D + d, tl.sum(dy * unit, 0), mask=d < D)
    tl.store(dshift_ptr + (number * H + head) * D + d, tl.sum(dy, 0), mask=d < D)
    do = norm_backprop(gain[None, :] * dy, unit, inverse, d, D)
    if LINK > 0:
        last = (t == C - 1) & there
        scale1, _ = scale_at(norms_ptr, (number + row) * H + head, LINK)
        next1, _ = scale_at(norms_ptr, (number + row + 1) * H + head, LINK)
        own1 = tl.where(last, next1, scale1)[:, None]
        o /= own1
        arrived = tl.sum(do * o, 1)
        tl.store(dscale_ptr + (number * H + head) * 5, tl.sum(tl.where(last, 0.0, arrived), 0))
        tl.store(dscale_ptr + (number * H + head) * 5 + 1, tl.sum(tl.where(last, arrived, 0.0), 0))
        do *= own1
    if ANCHORED or MOMENTUM:
        tl.store(do_ptr + out, do, mask=there_d)
    x = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there & (t >= LED), D) * tile(u1_ptr, token, head, d, H, D, there)
    if slopes_ptr is not None:
        bare, slope = x, slope_of(slopes_ptr, row, head, H, 0)
        x *= slope
    s1 = tl.load(scores1_ptr + square).to(tl.float32)
    if MOMENTUM:
        # the writes and the momentum leave the norm's input, what decays remains
        kappa, carried = tl.load(kappa_ptr + square), tl.load(sigma_ptr + (number * H + head) * C + t)
        o_speed = tile(o_speed_ptr, token, head, d, H, D, there)
        pairs = tl.dot(do.to(DOT), tl.trans(x.to(DOT)), input_precision=PRECISION)
        mixed = (s1 * kappa).to(DOT)
        dx = -tl.dot(tl.trans(mixed), do.to(DOT), input_precision=PRECISION)
        o += tl.dot(mixed, x.to(DOT), input_precision=PRECISION) - carried[:, None] * o_speed
        ds1 = -pairs * kappa
        tl.store(dkappa_ptr + square, -pairs * s1)
        tl.store(dsigma_ptr + (number * H + head) * C + t, tl.sum(do * o_speed, 1))
    if HAS_ALPHA:
        decayed = o
        if ANCHORED:
            decayed = o - tile(o_anchor_ptr, token, head, d, H, D, there)
        tl.store(dlog_ptr + out, do * decayed, mask=there_d)
        total, end = past(total_ptr, number, row_ptr, first_ptr, length_ptr, chunk_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D, C)
        if MOMENTUM:
            late_do = power(total, FAST) * do
        else:
            size = tl.load(sizes_ptr + number * H + head)
            if size == C:
                near, far, half = halved(total, end, FAST)
                late_do = near * do
                right = late_do.to(DOT)
                ds1 = -tl.dot(right, tl.trans((far * x).to(DOT)), input_precision=PRECISION)
                ds1 = tl.where(t[:, None] >= t[None, :], ds1, 0.0)
                dx = -far * tl.dot(tl.trans(s1.to(DOT)), right, input_precision=PRECISION)
                late_do *= half[None, :]
            else:
                ds1 = -decayed_scores(do, x, total, size, t, DOT, PRECISION, C)
                dx = -transposed_values(s1, do, total, size, t, DOT, PRECISION, C)
                late_do = power(total, FAST) * do
        tl.store(late_do_ptr + out, late_do, mask=there_d)
    else:
        tl.store(late_do_ptr + out, do, mask=there_d)
        if not MOMENTUM:
            ds1 = -tl.dot(do.to(DOT), tl.trans(x.to(DOT)), input_precision=PRECISION)
            ds1 = tl.where(t[:, None] >= t[None, :], ds1, 0.0)
            dx = -tl.dot(tl.trans(s1.to(DOT)), do.to(DOT), input_precision=PRECISION)
    if slopes_ptr is not None:
        tl.store(dslopes_ptr + (number * H + head) * 2, tl.sum(tl.sum(bare * dx, 1), 0))
        dx *= slope
    tl.store(dscores1_ptr + square, ds1)
    tl.store(dx_ptr + out, dx, mask=there_d)


@triton.jit
def read_backward(
    q_ptr, late_q_ptr, k_ptr, eta_ptr, u1_ptr, do_ptr, late_do_ptr, scores2_ptr, dscores1_ptr, dscores2_ptr,
    starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr,
    dq_ptr, dq_anchor_ptr, dk_ptr, dx_ptr, du1_ptr, z_ptr, slope_ptr, curve_ptr, move1_ptr, move2_ptr, danchor1_ptr, danchor2_ptr,
    sigma_ptr, speeds1_ptr, speeds2_ptr, dq_speed_ptr, push1_ptr, push2_ptr, norms_ptr, dscale_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, eta_token, eta_head, eta_d,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr,
    ANCHORED: tl.constexpr, MOMENTUM: tl.constexpr, LINK: tl.constexpr, LED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """One program a chunk and head: through both reads, and what they send into the chunk's own gradients.

    ``move1``, ``move2`` receive what this chunk adds to the adjoint of its starting weights, each sequence's
    chunks followed by one place for the outgoing state's own; ``du1`` and ``dk`` the read's share of theirs;
    ``push1``, ``push2`` are the momentum's ``move1``, ``move2``, and ``dscale`` what arrives at a link's s, at the chunk's start and end.
    """
    number, head = chunk_and_head(H)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    square = (number * H + head) * C * C + t[:, None] * C + t[None, :]
    late, late_do = tile(late_q_ptr, token, head, d, H, D, there), tile(late_do_ptr, token, head, d, H, D, there)
    towards, towards_do = late, late_do
    if ANCHORED:
        towards = (tile(q_ptr, token, head, d, H, D, there) - late).to(DOT)
        towards_do = (tile(do_ptr, token, head, d, H, D, there) - late_do).to(DOT)
    if MOMENTUM:
        carried = tl.load(sigma_ptr + (number * H + head) * C + t)[:, None]
        onward = (carried * tile(q_ptr, token, head, d, H, D, there)).to(DOT)
        onward_do = (carried * tile(do_ptr, token, head, d, H, D, there)).to(DOT)
        dq_speed = tl.zeros([C, DP], tl.float32)
    late, late_do = late.to(DOT), late_do.to(DOT)
    key, u1 = tile(k_ptr, token, head, d, H, D, there).to(DOT), tile(u1_ptr, token, head, d, H, D, there).to(DOT)
    s2, ds1 = tl.load(scores2_ptr + square).to(DOT), tl.load(dscores1_ptr + square).to(DOT)
    dq, dq_anchor = tl.zeros([C, DP], tl.float32), tl.zeros([C, DP], tl.float32)
    dk, du1 = tl.zeros([C, DP], tl.float32), tl.zeros([C, DP], tl.float32)
    ds2 = tl.zeros([C, C], tl.float32)
    base, save, wide = (row * H + head) * E * D, (number * H + head) * E * D, (number * H + head) * E * C
    slot = ((number + row) * H + head) * E * D
    if LINK > 0:
        last = (t == C - 1) & there
        scale1, scale2 = scale_at(norms_ptr, (number + row) * H + head, LINK)
        _, next2 = scale_at(norms_ptr, (number + row + 1) * H + head, LINK)
        own2 = tl.where(last, next2, scale2)[None, :]
        dscale1, dscale2, dread = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    for i in range(NE):
        hidden = (i * EB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        over, within = wide + hidden * C + t[None, :], (hidden < E) & (t[None, :] < C)
        w1, w2 = weight(starts1_ptr + save, at, inside), weight(starts2_ptr + save, at, inside)
        h = tl.dot(w2, tl.trans(key), input_precision=PRECISION)
        if LINK > 0:
            h *= scale2
        z, slope, curve = gelu_curve(h, FAST)
        a = tl.dot(w1, tl.trans(u1), input_precision=PRECISION)
        if LINK > 0:
            a *= scale1
        u2, z, curve = (slope * a).to(DOT), z.to(DOT), curve * a
        tl.store(z_ptr + over, z, mask=within)
        tl.store(slope_ptr + over, slope, mask=within)
        tl.store(curve_ptr + over, curve, mask=within)
        h_q = tl.dot(w2, tl.trans(late), input_precision=PRECISION)
        h_q -= tl.dot(u2, tl.trans(s2), input_precision=PRECISION)
        dz_q = tl.dot(w1, tl.trans(late_do), input_precision=PRECISION)
        dz_q += tl.dot(z, tl.trans(ds1), input_precision=PRECISION)
        if ANCHORED:
            a1, a2 = weight(anchor1_ptr + base, at, inside).to(DOT), weight(anchor2_ptr + base, at, inside).to(DOT)
            h_q += tl.dot(a2, tl.trans(towards), input_precision=PRECISION)
            dz_q += tl.dot(a1, tl.trans(towards_do), input_precision=PRECISION)
        if MOMENTUM:
            speed1, speed2 = weight(speeds1_ptr + save, at, inside), weight(speeds2_ptr + save, at, inside)
            h_q += tl.dot(speed2, tl.trans(onward), input_precision=PRECISION)
            dz_q += tl.dot(speed1, tl.trans(onward_do), input_precision=PRECISION)
        if LINK > 0:
            bare = h_q
            h_q = own2 * bare
        z_q, slope_q = gelu_slope(h_q, FAST)
        dh_q = slope_q * dz_q
        if LINK > 0:
            dread += tl.sum(dh_q * bare, 0)
            dh_q *= own2
        z_q, dh_q = z_q.to(DOT), dh_q.to(DOT)
        dq += tl.dot(tl.trans(dh_q), w2, input_precision=PRECISION)
        ds2 -= tl.dot(tl.trans(dh_q), u2, input_precision=PRECISION)
        if ANCHORED:
            dq_anchor += tl.dot(tl.trans(dh_q), a2, input_precision=PRECISION)
            tl.store(danchor1_ptr + save + at, tl.dot(z_q, towards_do, input_precision=PRECISION), mask=inside)
            tl.store(danchor2_ptr + save + at, tl.dot(dh_q, towards, input_precision=PRECISION), mask=inside)
        if MOMENTUM:
            dq_speed += tl.dot(tl.trans(dh_q), speed2, input_precision=PRECISION)
            tl.store(push1_ptr + slot + at, tl.dot(z_q, onward_do, input_precision=PRECISION), mask=inside)
            tl.store(push2_ptr + slot + at, tl.dot(dh_q, onward, input_precision=PRECISION), mask=inside)
        move1 = tl.dot(z_q, late_do, input_precision=PRECISION)
        move2 = tl.dot(dh_q, late, input_precision=PRECISION)
        du2 = -tl.dot(dh_q, s2, input_precision=PRECISION)
        da = slope * du2
        dh = curve * du2 + slope * tl.dot(z_q, ds1, input_precision=PRECISION)
        if LINK > 0:
            dscale1 += tl.sum(da * a, 0)
            dscale2 += tl.sum(dh * h, 0)
            da, dh = scale1 * da, scale2 * dh
        da, dh = da.to(DOT), dh.to(DOT)
        tl.store(move1_ptr + slot + at, move1 + tl.dot(da, u1, input_precision=PRECISION), mask=inside)
        tl.store(move2_ptr + slot + at, move2 + tl.dot(dh, key, input_precision=PRECISION), mask=inside)
        du1 += tl.dot(tl.trans(da), w1, input_precision=PRECISION)
        dk += tl.dot(tl.trans(dh), w2, input_precision=PRECISION)
    tl.store(dscores2_ptr + square, tl.where(t[:, None] >= t[None, :], ds2, 0.0))
    tl.store(dq_ptr + out, dq, mask=there_d)
    tl.store(dk_ptr + out, dk, mask=there_d)
    if LINK > 0:
        at_scale = dscale_ptr + (number * H + head) * 5
        tl.store(at_scale + 2, tl.sum(dscale1, 0) / scale1)
        tl.store(at_scale + 3, tl.sum(dscale2, 0) / scale2 + tl.sum(tl.where(last, 0.0, dread), 0))
        tl.store(at_scale + 4, tl.sum(tl.where(last, dread, 0.0), 0))
    if MOMENTUM:
        tl.store(dq_speed_ptr + out, dq_speed, mask=there_d)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there & (t >= LED), D)
    tl.store(du1_ptr + out, eta * tile(dx_ptr, token, head, d, H, D, there) + du1, mask=there_d)
    if ANCHORED:
        tl.store(dq_anchor_ptr + out, dq_anchor, mask=there_d)


@triton.jit
def finish_backward(
    q_ptr, k_ptr, eta_ptr, total_ptr, sizes_ptr, dy_ptr, dscores2_ptr, dread_ptr, dq_anchor_ptr, dq_ptr, dwrite_ptr, dlog_ptr,
    kappa_ptr, sigma_ptr, dq_speed_ptr, dkappa_ptr, dsigma_ptr, slopes_ptr, dslopes_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, MOMENTUM: tl.constexpr, LED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """The inner layer's scores backwards: dq whole, and what arrives at the writes eta_i k_i; ``dread`` is what arrives at b_t q_t."""
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    square = (number * H + head) * C * C + t[:, None] * C + t[None, :]
    ds2 = tl.load(dscores2_ptr + square).to(tl.float32)
    q, dq = tile(q_ptr, token, head, d, H, D, there), tile(dread_ptr, token, head, d, H, D, there)
    write = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there & (t >= LED), D) * tile(k_ptr, token, head, d, H, D, there)
    moving = write
    if slopes_ptr is not None:
        slope = slope_of(slopes_ptr, row, head, H, 1)
        moving = slope * write
    if HAS_ALPHA:
        total, end = past(total_ptr, number, row_ptr, first_ptr, length_ptr, chunk_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D, C)
        dlog = tile(dlog_ptr, token, head, d, H, D, there)
        if MOMENTUM:
            kept = power(total, FAST)
            dq = kept * dq
        else:
            size = tl.load(sizes_ptr + number * H + head)
            if size == C:
                near, far, half = halved(total, end, FAST)
                dq = near * (half[None, :] * dq + tl.dot(ds2.to(DOT), (far * moving).to(DOT), input_precision=PRECISION))
                dwrite = far * tl.dot(tl.trans(ds2.to(DOT)), (near * q).to(DOT), input_precision=PRECISION)
                kept = near * half[None, :]
            else:
                kept = power(total, FAST)
                dq = kept * dq + decayed_values(ds2, moving, total, size, t, DOT, PRECISION, C)
                dwrite = transposed_values(ds2, q, total, size, t, DOT, PRECISION, C)
            dlog -= moving * dwrite
        dlog += q * dq
        if ANCHORED:
            dq_anchor = tile(dq_anchor_ptr, token, head, d, H, D, there)
            pulled = kept * dq_anchor
            dlog -= q * pulled
            dq += dq_anchor - pulled
        tl.store(dlog_ptr + out, dlog, mask=there_d)
    elif not MOMENTUM:
        dq += tl.dot(ds2.to(DOT), moving.to(DOT), input_precision=PRECISION)
        dwrite = tl.dot(tl.trans(ds2.to(DOT)), q.to(DOT), input_precision=PRECISION)
    if slopes_ptr is not None:
        tl.store(dslopes_ptr + (number * H + head) * 2 + 1, tl.sum(tl.sum(write * dwrite, 1), 0))
        dwrite *= slope
    if MOMENTUM:
        each = (number * H + head) * C + t
        dkappa = tl.load(dkappa_ptr + square) + ds2 * tl.dot(q.to(DOT), tl.trans(write.to(DOT)), input_precision=PRECISION)
        tl.store(dkappa_ptr + square, dkappa)
        ds2 = (ds2 * tl.load(kappa_ptr + square)).to(DOT)
        dq_speed = tile(dq_speed_ptr, token, head, d, H, D, there)
        dq += tl.dot(ds2, write.to(DOT), input_precision=PRECISION) + tl.load(sigma_ptr + each)[:, None] * dq_speed
        dwrite = tl.dot(tl.trans(ds2), q.to(DOT), input_precision=PRECISION)
        tl.store(dsigma_ptr + each, tl.load(dsigma_ptr + each) + tl.sum(q * dq_speed, 1))
    tl.store(dq_ptr + out, dq + tile(dy_ptr, token, head, d, H, D, there), mask=there_d)
    tl.store(dwrite_ptr + out, dwrite, mask=there_d)
