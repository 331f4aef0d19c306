"""What no product enters backwards: the bias and its norm token by token, the gates channel by channel.

C tokens of a chunk, D channels (DP: a power of two) in blocks of DB
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .tiles import chunk_and_head, norm_backprop, past, place, power, rows, standardise, tile


@triton.jit
def linearise(
    k_ptr, v_ptr, delta_ptr, o_ptr, gain_ptr, shift_ptr, unit_ptr, pull_ptr, bend_ptr, inverse_ptr, mean_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, delta_token, delta_head, delta_d,
    C: tl.constexpr, DP: tl.constexpr, BIAS: tl.constexpr, SLOPE: tl.constexpr, P: tl.constexpr, HAS_DELTA: tl.constexpr,
):
    """The error u1 as a function of O, to first order: x, c = gain bias'(e), gain^2 bias''(e), 1/std and mean(c x)."""
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)[None, :]
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)[None, :]
    unit, inverse = standardise(tile(o_ptr, token, head, d, H, D, there), d, D)
    error = tile(k_ptr, token, head, d, H, D, there) + gain * unit + shift - tile(v_ptr, token, head, d, H, D, there)
    delta = error
    if HAS_DELTA:
        delta = rows(delta_ptr, token, head, d, delta_token, delta_head, delta_d, there, D)
    c = tl.where(there_d, gain * BIAS(error, delta, P), 0.0)
    tl.store(unit_ptr + out, unit, mask=there_d)
    tl.store(pull_ptr + out, c, mask=there_d)
    tl.store(bend_ptr + out, gain * gain * SLOPE(error, delta, P), mask=there_d)
    tl.store(inverse_ptr + token * H + head, inverse, mask=there)
    tl.store(mean_ptr + token * H + head, tl.sum(c * unit, 1) / D, mask=there)


@triton.jit
def bias_backward(
    k_ptr, v_ptr, delta_ptr, o_ptr, gain_ptr, shift_ptr, du1_ptr, dv_ptr, ddelta_ptr, dgain_ptr, dshift_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, delta_token, delta_head, delta_d,
    C: tl.constexpr, DP: tl.constexpr, BIAS: tl.constexpr, SLOPE: tl.constexpr, DELTA_SLOPE: tl.constexpr, P: tl.constexpr, HAS_DELTA: tl.constexpr,
):
    """From du1 through the norm to the bias's arguments: dv = -de, d delta, and the norm's gain and shift."""
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)[None, :]
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)[None, :]
    unit, inverse = standardise(tile(o_ptr, token, head, d, H, D, there), d, D)
    dc = norm_backprop(tile(du1_ptr, token, head, d, H, D, there), unit, inverse, d, D)
    error = tile(k_ptr, token, head, d, H, D, there) + gain * unit + shift - tile(v_ptr, token, head, d, H, D, there)
    delta = error
    if HAS_DELTA:
        delta = rows(delta_ptr, token, head, d, delta_token, delta_head, delta_d, there, D)
        tl.store(ddelta_ptr + out, DELTA_SLOPE(error, delta, P) * gain * dc, mask=there_d)
    derror = tl.where(there_d, SLOPE(error, delta, P) * gain * dc, 0.0)
    tl.store(dv_ptr + out, -derror, mask=there_d)
    pull = tl.where(there_d, BIAS(error, delta, P), 0.0)
    tl.store(dgain_ptr + (number * H + head) * D + d, tl.sum(dc * pull + derror * unit, 0), mask=d < D)
    tl.store(dshift_ptr + (number * H + head) * D + d, tl.sum(derror, 0), mask=d < D)


@triton.jit
def gate_backward(
    k_ptr, eta_ptr, total_ptr, u1_ptr, dv_ptr, dwrite_ptr, dx_ptr, dy1_ptr, dy2_ptr, dend_ptr, dwhole_ptr, dread_ptr, dk_ptr, deta_ptr, dlog_ptr,
    kappa_ptr, grown_ptr, dslow1_ptr, dslow2_ptr, dcarried_ptr, dkappa_ptr, dsigma_ptr, dgrown_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DB: tl.constexpr, HAS_ALPHA: tl.constexpr, MOMENTUM: tl.constexpr, LED: tl.constexpr, FAST: tl.constexpr,
):
    """Channel by channel, from the writes to dk, d eta and d log alpha.

    ``dwhole`` is dk so far, but for the bias's share -dv; ``dread`` is the reads' share of dL. A program has a block of the
    channels, with momentum all of them.
    """
    blocks: tl.constexpr = (D + DB - 1) // DB
    number, head = chunk_and_head(H * blocks)
    d, t = head % blocks * DB + tl.arange(0, DB), tl.arange(0, C)
    head = head // blocks
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    # eta_i k_i and x_i = eta_i u1_i in the chunk, late_i k_i and late_i u1_i at its end
    k, u1 = tile(k_ptr, token, head, d, H, D, there), tile(u1_ptr, token, head, d, H, D, there)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there & (t >= LED), D)
    dwrite, dx = tile(dwrite_ptr, token, head, d, H, D, there), tile(dx_ptr, token, head, d, H, D, there)
    dy2 = tile(dy2_ptr, token, head, d, H, D, there)
    dlate = u1 * tile(dy1_ptr, token, head, d, H, D, there) + k * dy2
    deta = k * dwrite + u1 * dx
    late = eta
    if MOMENTUM:
        last, each = (number * H + head) * C * C + (C - 1) * C + t, (number * H + head) * C + t
        dslow2 = tile(dslow2_ptr, token, head, d, H, D, there)
        dslow = u1 * tile(dslow1_ptr, token, head, d, H, D, there) + k * dslow2
        left, grown = tl.load(kappa_ptr + last)[:, None], tl.load(grown_ptr + each)[:, None]
        late = eta * left
        deta += left * dlate + grown * dslow
        tl.store(dkappa_ptr + last, tl.load(dkappa_ptr + last) + tl.sum(eta * dlate, 1))
        tl.store(dgrown_ptr + each, tl.sum(eta * dslow, 1))
        end_carry = tl.where(t == C - 1, tl.load(dcarried_ptr + number * H + head), 0.0)
        tl.store(dsigma_ptr + each, tl.load(dsigma_ptr + each) + end_carry)
    if HAS_ALPHA:
        total, end = past(total_ptr, number, row_ptr, first_ptr, length_ptr, chunk_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D, C)
        dlog = tile(dread_ptr, token, head, d, H, D, there)
        dend = power(end, FAST) * tl.load(dend_ptr + (number * H + head) * D + d, mask=d < D, other=0.0)
        if not MOMENTUM:
            left = power(end[None, :] - total, FAST)
            late = eta * left
            deta += left * dlate
            dlog -= eta * u1 * dx + late * dlate
            dend += tl.sum(late * dlate, 0)
        # the sum over a chunk's later tokens turns dL into d log alpha; the chunk's end is every token's
        tl.store(dlog_ptr + out, tl.cumsum(dlog, 0, reverse=True) + dend[None, :], mask=there_d)
    elif not MOMENTUM:
        deta += dlate
    tl.store(deta_ptr + out, deta, mask=there_d)
    dk = tile(dwhole_ptr, token, head, d, H, D, there) - tile(dv_ptr, token, head, d, H, D, there) + eta * dwrite + late * dy2
    if MOMENTUM:
        dk += eta * grown * dslow2
    tl.store(dk_ptr + out, dk, mask=there_d)
