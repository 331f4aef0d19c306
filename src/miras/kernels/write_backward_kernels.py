"""The writes of the 2-layer MLP memory backwards: a reverse scan of the state's adjoint, then what it does not need itself, of all chunks at once.

Hidden tiles are [EB,C], as in ``read_backward_kernels``.

C tokens of a chunk, D channels (DP: a power of two), E = 4 D hidden channels in blocks of EB, N chunks, R sequences
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .lead import lead_backward
from .links import scale_at, through_link
from .tiles import chunk_and_head, norm_backprop, place, tile, weight


@triton.jit
def through_norm(g, unit, u1, c, bend, inverse, mean_cx, d, D):
    """dO from g = du1: -s mean(g u1) x + LN'[bend LN'[g] - s (g mean(c x) + c mean(g x))]."""
    mean_gx, mean_gu = tl.sum(g * unit, 1) / D, tl.sum(g * u1, 1) / D
    dc = inverse[:, None] * (g - (tl.sum(g, 1) / D)[:, None] - unit * mean_gx[:, None])
    f = bend * dc - inverse[:, None] * (g * mean_cx[:, None] + c * mean_gx[:, None])
    f = tl.where(d[None, :] < D, f, 0.0)
    return norm_backprop(f, unit, inverse, d, D) - (inverse * mean_gu)[:, None] * unit


@triton.jit
def scan_backward(
    k_ptr, late_ptr, late_k_ptr, kept_ptr, u1_ptr, late_u1_ptr, unit_ptr, pull_ptr, bend_ptr, inverse_ptr, mean_ptr, starts1_ptr,
    z_ptr, slope_ptr, curve_ptr, du1_ptr, do_ptr, move1_ptr, move2_ptr, dw1_ptr, dw2_ptr,
    slow_ptr, slow_k_ptr, slow_u1_ptr, sigma_ptr, grown_end_ptr, push1_ptr, push2_ptr, dspeed1_ptr, dspeed2_ptr,
    starts2_ptr, end1_ptr, end2_ptr, norms_ptr, dscale_ptr,
    lead_k_ptr, lead_v_ptr, lead_eta_ptr, lead_log_ptr, lead_delta_ptr, log_anchor1_ptr, log_anchor2_ptr, lead_o_ptr, before1_ptr, before2_ptr, gain_ptr, shift_ptr,
    dlead_k_ptr, dlead_v_ptr, dlead_eta_ptr, dlead_log_ptr, dlead_delta_ptr, dlog_anchor1_ptr, dlog_anchor2_ptr, dlead_gain_ptr, dlead_shift_ptr,
    first_ptr, length_ptr, chunk_ptr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr, MOMENTUM: tl.constexpr, LINK: tl.constexpr, FLOOR: tl.constexpr, MASS1: tl.constexpr, MASS2: tl.constexpr, LB: tl.constexpr,
    BIAS: tl.constexpr, SLOPE: tl.constexpr, DELTA_SLOPE: tl.constexpr, P: tl.constexpr, HAS_DELTA: tl.constexpr, ANCHORED: tl.constexpr, FAST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a sequence and head: the state's adjoint from the last chunk to the first.

    ``dw1``, ``dw2`` come in as the outgoing state's gradient and leave as the incoming one's; ``du1`` and ``do`` become whole; in ``move1``,
    ``move2`` a chunk's own share is replaced by the adjoint of its starting weights, which ``write_backward`` needs. So do ``dspeed`` and ``push`` for a momentum.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, length, chunk0 = tl.load(first_ptr + row), tl.load(length_ptr + row), tl.load(chunk_ptr + row)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    base = (row * H + head) * E * D
    chunks = (length + C - 1) // C
    if LINK > 0:
        if chunks > 0:
            # the last token of a full chunk has read the outgoing state
            arrived = dscale_ptr + ((chunk0 + chunks - 1) * H + head) * 5
            slot = (chunk0 + chunks + row) * H + head
            through_link(
                tl.load(arrived + 1), tl.load(arrived + 4), norms_ptr + slot * 2, end1_ptr + base, end2_ptr + base, dw1_ptr + base, dw2_ptr + base,
                move1_ptr + slot * E * D, move2_ptr + slot * E * D, e, d, D, E, EB, NE, LINK, FLOOR,
            )
            tl.debug_barrier()
    for back in range(chunks):
        n = chunks - 1 - back
        token = first + n * C + t
        there = n * C + t < length
        there_d = there[:, None] & (d[None, :] < D)
        out = token[:, None] * H * D + head * D + d[None, :]
        late_k = tl.trans(tile(late_k_ptr, token, head, d, H, D, there).to(DOT))
        save, wide = ((chunk0 + n) * H + head) * E * D, ((chunk0 + n) * H + head) * E * C
        slot = ((chunk0 + n + row) * H + head) * E * D
        dy1, g = tl.zeros([C, DP], tl.float32), tl.zeros([C, DP], tl.float32)
        if MOMENTUM:
            slow_k = tl.trans(tile(slow_k_ptr, token, head, d, H, D, there).to(DOT))
            dslow = tl.zeros([C, DP], tl.float32)
            carried = tl.load(sigma_ptr + ((chunk0 + n) * H + head) * C + C - 1)
            grown = tl.load(grown_end_ptr + (chunk0 + n) * H + head)
        for i in range(NE):
            hidden = (i * EB + e)[:, None]
            at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
            over, within = wide + hidden * C + t[None, :], (hidden < E) & (t[None, :] < C)
            dw1, dw2 = weight(dw1_ptr + base, at, inside).to(DOT), weight(dw2_ptr + base, at, inside).to(DOT)
            du2 = tl.dot(dw2, late_k, input_precision=PRECISION)
            if MOMENTUM:
                du2 += tl.dot(weight(dspeed2_ptr + base, at, inside).to(DOT), slow_k, input_precision=PRECISION)
                dspeed1 = weight(dspeed1_ptr + base, at, inside).to(DOT)
                dslow -= tl.dot(tl.trans(weight(z_ptr, over, within)), dspeed1, input_precision=PRECISION)
            da = weight(slope_ptr, over, within).to(tl.float32) * du2
            g += tl.dot(tl.trans(da.to(DOT)), weight(starts1_ptr + save, at, inside), input_precision=PRECISION)
            dy1 -= tl.dot(tl.trans(weight(z_ptr, over, within)), dw1, input_precision=PRECISION)
        if LINK > 0:
            scale1, scale2 = scale_at(norms_ptr, (chunk0 + n + row) * H + head, LINK)
            dscale1, dscale2 = tl.zeros([EB], tl.float32), tl.zeros([EB], tl.float32)
            g *= scale1
        g += tile(du1_ptr, token, head, d, H, D, there) + tile(late_ptr, token, head, d, H, D, there) * dy1
        if MOMENTUM:
            g += tile(slow_ptr, token, head, d, H, D, there) * dslow
        tl.store(du1_ptr + out, g, mask=there_d)
        u1, unit = tile(u1_ptr, token, head, d, H, D, there), tile(unit_ptr, token, head, d, H, D, there)
        c, bend = tile(pull_ptr, token, head, d, H, D, there), tile(bend_ptr, token, head, d, H, D, there)
        inverse = tl.load(inverse_ptr + token * H + head, mask=there, other=0.0)
        mean_cx = tl.load(mean_ptr + token * H + head, mask=there, other=0.0)
        do = through_norm(g, unit, u1, c, bend, inverse, mean_cx, d, D).to(DOT)
        tl.store(do_ptr + out, do, mask=there_d)
        u1, key = u1.to(DOT), tile(k_ptr, token, head, d, H, D, there).to(DOT)
        late_u1 = tl.trans(tile(late_u1_ptr, token, head, d, H, D, there).to(DOT))
        kept = tl.load(kept_ptr + ((chunk0 + n) * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        if MOMENTUM:
            slow_u1 = tl.trans(tile(slow_u1_ptr, token, head, d, H, D, there).to(DOT))
        for i in range(NE):
            hidden = (i * EB + e)[:, None]
            at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
            over, within = wide + hidden * C + t[None, :], (hidden < E) & (t[None, :] < C)
            dw1, dw2 = weight(dw1_ptr + base, at, inside), weight(dw2_ptr + base, at, inside)
            slope = weight(slope_ptr, over, within).to(tl.float32)
            du2 = tl.dot(dw2.to(DOT), late_k, input_precision=PRECISION)
            dz = tl.dot(dw1.to(DOT), late_u1, input_precision=PRECISION)
            w1 = weight(starts1_ptr + save, at, inside)
            if LINK > 0:
                dz += scale1 * tl.dot(w1, tl.trans(do), input_precision=PRECISION)
            else:
                dz += tl.dot(w1, tl.trans(do), input_precision=PRECISION)
            if MOMENTUM:
                dspeed1, dspeed2 = weight(dspeed1_ptr + base, at, inside), weight(dspeed2_ptr + base, at, inside)
                du2 += tl.dot(dspeed2.to(DOT), slow_k, input_precision=PRECISION)
                dz += tl.dot(dspeed1.to(DOT), slow_u1, input_precision=PRECISION)
                new_speed1 = carried * dw1 + grown * dspeed1 + weight(push1_ptr + slot, at, inside).to(tl.float32)
                new_speed2 = carried * dw2 + grown * dspeed2 + weight(push2_ptr + slot, at, inside).to(tl.float32)
            dh = weight(curve_ptr, over, within).to(tl.float32) * du2 + slope * dz
            new1 = kept * dw1 + weight(move1_ptr + slot, at, inside).to(tl.float32)
            new2 = kept * dw2 + weight(move2_ptr + slot, at, inside).to(tl.float32)
            if LINK > 0:
                own1 = tl.dot((slope * du2).to(DOT), u1, input_precision=PRECISION)
                own1 += tl.dot(weight(z_ptr, over, within), do, input_precision=PRECISION)
                own2 = tl.dot(dh.to(DOT), key, input_precision=PRECISION)
                dscale1 += tl.sum(own1 * w1.to(tl.float32), 1)
                dscale2 += tl.sum(own2 * weight(starts2_ptr + save, at, inside).to(tl.float32), 1)
                new1 += scale1 * own1
                new2 += scale2 * own2
            else:
                new1 += tl.dot((slope * du2).to(DOT), u1, input_precision=PRECISION)
                new1 += tl.dot(weight(z_ptr, over, within), do, input_precision=PRECISION)
                new2 += tl.dot(dh.to(DOT), key, input_precision=PRECISION)
            # other threads may still read what is written over
            tl.debug_barrier()
            tl.store(move1_ptr + slot + at, new1, mask=inside)
            tl.store(move2_ptr + slot + at, new2, mask=inside)
            tl.store(dw1_ptr + base + at, new1, mask=inside)
            tl.store(dw2_ptr + base + at, new2, mask=inside)
            if MOMENTUM:
                tl.store(push1_ptr + slot + at, new_speed1, mask=inside)
                tl.store(push2_ptr + slot + at, new_speed2, mask=inside)
                tl.store(dspeed1_ptr + base + at, new_speed1, mask=inside)
                tl.store(dspeed2_ptr + base + at, new_speed2, mask=inside)
        if LINK > 0:
            arrived = dscale_ptr + ((chunk0 + n) * H + head) * 5
            before = arrived - H * 5
            ds1 = tl.sum(dscale1, 0) + tl.load(arrived) + tl.load(arrived + 2) + tl.load(before + 1, mask=n > 0, other=0.0)
            ds2 = tl.sum(dscale2, 0) + tl.load(arrived + 3) + tl.load(before + 4, mask=n > 0, other=0.0)
            tl.debug_barrier()
            through_link(
                ds1, ds2, norms_ptr + ((chunk0 + n + row) * H + head) * 2, starts1_ptr + save, starts2_ptr + save, dw1_ptr + base, dw2_ptr + base,
                move1_ptr + slot, move2_ptr + slot, e, d, D, E, EB, NE, LINK, FLOOR,
            )
        if MASS1 > 0:
            one = ((chunk0 + n) * H + head) * D
            gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
            shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
            tl.debug_barrier()
            lead_backward(
                lead_k_ptr + one, lead_v_ptr + one, lead_eta_ptr + one, lead_log_ptr + one, lead_delta_ptr + one, log_anchor1_ptr + base,
                log_anchor2_ptr + base, gain, shift, lead_o_ptr + one, before1_ptr + save, before2_ptr + save, starts1_ptr + save, starts2_ptr + save,
                dw1_ptr + base, dw2_ptr + base, move1_ptr + slot, move2_ptr + slot, dlead_k_ptr + one, dlead_v_ptr + one, dlead_eta_ptr + one,
                dlead_log_ptr + one, dlead_delta_ptr + one, dlead_gain_ptr + one, dlead_shift_ptr + one, dlog_anchor1_ptr + base, dlog_anchor2_ptr + base,
                d, D, E, DP, LB, BIAS, SLOPE, DELTA_SLOPE, P, HAS_DELTA, ANCHORED, MASS1, MASS2, FAST,
            )
        # the next chunk's threads read what this one's have written
        tl.debug_barrier()


@triton.jit
def write_backward(
    late_k_ptr, u1_ptr, late_u1_ptr, do_ptr, starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr,
    z_ptr, slope_ptr, curve_ptr, move1_ptr, move2_ptr, dk_ptr, dy1_ptr, dy2_ptr, dend_ptr,
    slow_k_ptr, slow_u1_ptr, speeds1_ptr, speeds2_ptr, push1_ptr, push2_ptr, dslow1_ptr, dslow2_ptr, dcarried_ptr, dgrown_ptr, norms_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr,
    ANCHORED: tl.constexpr, MOMENTUM: tl.constexpr, LINK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a chunk and head: the products of the adjoints at its end and of its errors.

    They give the write's share of dk, what arrives at both writes' vectors, -late u1 and -late k, and at the weights' decay.
    """
    number, head = chunk_and_head(H)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    late_k = tl.trans(tile(late_k_ptr, token, head, d, H, D, there).to(DOT))
    late_u1 = tl.trans(tile(late_u1_ptr, token, head, d, H, D, there).to(DOT))
    u1, do = (tl.trans(tile(u1_ptr, token, head, d, H, D, there).to(DOT)), tl.trans(tile(do_ptr, token, head, d, H, D, there).to(DOT)))
    dk, dy1, dy2 = tl.zeros([C, DP], tl.float32), tl.zeros([C, DP], tl.float32), tl.zeros([C, DP], tl.float32)
    dend = tl.zeros([DP], tl.float32)
    if MOMENTUM:
        slow_k = tl.trans(tile(slow_k_ptr, token, head, d, H, D, there).to(DOT))
        slow_u1 = tl.trans(tile(slow_u1_ptr, token, head, d, H, D, there).to(DOT))
        dslow1, dslow2 = tl.zeros([C, DP], tl.float32), tl.zeros([C, DP], tl.float32)
        dcarried, dgrown = tl.zeros([DP], tl.float32), tl.zeros([DP], tl.float32)
    base, save, wide = (row * H + head) * E * D, (number * H + head) * E * D, (number * H + head) * E * C
    slot = ((number + row + 1) * H + head) * E * D
    if LINK > 0:
        scale1, scale2 = scale_at(norms_ptr, (number + row) * H + head, LINK)
    for i in range(NE):
        hidden = (i * EB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        over, within = wide + hidden * C + t[None, :], (hidden < E) & (t[None, :] < C)
        w1, w2 = weight(starts1_ptr + save, at, inside), weight(starts2_ptr + save, at, inside)
        dw1, dw2 = weight(move1_ptr + slot, at, inside), weight(move2_ptr + slot, at, inside)
        away1, away2 = w1.to(tl.float32), w2.to(tl.float32)
        if ANCHORED:
            away1 -= weight(anchor1_ptr + base, at, inside)
            away2 -= weight(anchor2_ptr + base, at, inside)
        dend += tl.sum(away1 * dw1.to(tl.float32) + away2 * dw2.to(tl.float32), 0)
        slope = weight(slope_ptr, over, within).to(tl.float32)
        u2 = slope * tl.dot(w1, u1, input_precision=PRECISION)
        if LINK > 0:
            u2 *= scale1
        dy2 -= tl.dot(tl.trans(u2.to(DOT)), dw2, input_precision=PRECISION)
        dy1 -= tl.dot(tl.trans(weight(z_ptr, over, within)), dw1, input_precision=PRECISION)
        du2 = tl.dot(dw2, late_k, input_precision=PRECISION)
        dz = tl.dot(w1, do, input_precision=PRECISION)
        if LINK > 0:
            dz *= scale1
        dz += tl.dot(dw1, late_u1, input_precision=PRECISION)
        if MOMENTUM:
            speed1, speed2 = weight(speeds1_ptr + save, at, inside).to(tl.float32), weight(speeds2_ptr + save, at, inside).to(tl.float32)
            dspeed1, dspeed2 = weight(push1_ptr + slot, at, inside), weight(push2_ptr + slot, at, inside)
            dcarried += tl.sum(speed1 * dw1.to(tl.float32) + speed2 * dw2.to(tl.float32), 0)
            dgrown += tl.sum(speed1 * dspeed1.to(tl.float32) + speed2 * dspeed2.to(tl.float32), 0)
            dslow1 -= tl.dot(tl.trans(weight(z_ptr, over, within)), dspeed1, input_precision=PRECISION)
            dslow2 -= tl.dot(tl.trans(u2.to(DOT)), dspeed2, input_precision=PRECISION)
            du2 += tl.dot(dspeed2, slow_k, input_precision=PRECISION)
            dz += tl.dot(dspeed1, slow_u1, input_precision=PRECISION)
        dh = weight(curve_ptr, over, within).to(tl.float32) * du2 + slope * dz
        dk += tl.dot(tl.trans(dh.to(DOT)), w2, input_precision=PRECISION)
    if LINK > 0:
        dk *= scale2
    tl.store(dk_ptr + out, tile(dk_ptr, token, head, d, H, D, there) + dk, mask=there_d)
    tl.store(dy1_ptr + out, dy1, mask=there_d)
    tl.store(dy2_ptr + out, dy2, mask=there_d)
    tl.store(dend_ptr + (number * H + head) * D + d, dend, mask=d < D)
    if MOMENTUM:
        tl.store(dslow1_ptr + out, dslow1, mask=there_d)
        tl.store(dslow2_ptr + out, dslow2, mask=there_d)
        tl.store(dcarried_ptr + number * H + head, tl.sum(dcarried, 0))
        tl.store(dgrown_ptr + number * H + head, tl.sum(dgrown, 0))


@triton.jit
def anchor_backward(
    kept_ptr, move1_ptr, move2_ptr, danchor1_ptr, danchor2_ptr, da1_ptr, da2_ptr, length_ptr, chunk_ptr, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr,
):
    """The anchor receives what is not kept of the adjoint, and its own part of the reads, of all chunks in turn."""
    row, head, block = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    d, e = tl.arange(0, DP), tl.arange(0, EB)
    chunks, chunk0 = (tl.load(length_ptr + row) + C - 1) // C, tl.load(chunk_ptr + row)
    hidden = (block * EB + e)[:, None]
    at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
    da1, da2 = tl.zeros([EB, DP], tl.float32), tl.zeros([EB, DP], tl.float32)
    for n in range(chunks):
        save, slot = ((chunk0 + n) * H + head) * E * D, ((chunk0 + n + row + 1) * H + head) * E * D
        lost = 1 - tl.load(kept_ptr + ((chunk0 + n) * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        da1 += lost * weight(move1_ptr + slot, at, inside).to(tl.float32) + weight(danchor1_ptr + save, at, inside).to(tl.float32)
        da2 += lost * weight(move2_ptr + slot, at, inside).to(tl.float32) + weight(danchor2_ptr + save, at, inside).to(tl.float32)
    base = (row * H + head) * E * D
    tl.store(da1_ptr + base + at, da1, mask=inside)
    tl.store(da2_ptr + base + at, da2, mask=inside)
