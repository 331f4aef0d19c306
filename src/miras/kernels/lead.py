"""The first token of a chunk by itself, on the device: W = c softmax(alpha log W_in - eta g(W_in)) over each column (Memora's lag).

With A = W1' and B = W2, both [E,D], a column of W1 is a row of A, and a column of W2 runs over all blocks of B. The gradient of one
token is an outer product, so nothing here is a product of matrices.

D channels (DP: a power of two), E hidden channels in blocks of LB
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .tiles import gelu, gelu_curve, gelu_slope, one_backprop, one_error, weight

# weights are kept at least this large before a logarithm
LOWEST = tl.constexpr(1e-8)


@triton.jit
def vector(ptr, d, D):
    """One token's channels."""
    return tl.load(ptr + d, mask=d < D, other=0.0)


@triton.jit
def retained(w, alpha, log_anchor_ptr, at, inside, ANCHORED: tl.constexpr):
    """alpha log W, or alpha log W + (1 - alpha) log A_0."""
    out = alpha * tl.log(tl.maximum(w, LOWEST))
    if ANCHORED:
        out += (1 - alpha) * weight(log_anchor_ptr, at, inside)
    return out


@triton.jit
def lead(
    k_ptr, v_ptr, eta_ptr, log_alpha_ptr, delta_ptr, log_anchor1_ptr, log_anchor2_ptr, gain, shift, o_ptr,
    w1_ptr, w2_ptr, before1_ptr, before2_ptr, starts1_ptr, starts2_ptr, one, own, d, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, LB: tl.constexpr,
    BIAS: tl.constexpr, P: tl.constexpr, HAS_DELTA: tl.constexpr, ANCHORED: tl.constexpr, MASS1: tl.constexpr, MASS2: tl.constexpr, FAST: tl.constexpr,
):
    """Advance the weights at ``w1``, ``w2`` by one token; what they become is kept, and what they were, from ``own`` on, where there is a place for it."""
    e = tl.arange(0, LB)
    k, v, eta, alpha = vector(k_ptr, d, D), vector(v_ptr, d, D), vector(eta_ptr, d, D), tl.exp(vector(log_alpha_ptr, d, D))
    sums = tl.zeros([LB, DP], tl.float32)
    for i in range((E + LB - 1) // LB):
        hidden = (i * LB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        w1, w2 = weight(w1_ptr, at, inside), weight(w2_ptr, at, inside)
        if before1_ptr is not None:
            tl.store(before1_ptr + own + at, w1, mask=inside)
            tl.store(before2_ptr + own + at, w2, mask=inside)
        sums += gelu(tl.sum(w2 * k[None, :], 1), FAST)[:, None] * w1
    o = tl.sum(sums, 0)
    if o_ptr is not None:
        tl.store(o_ptr + one + d, o, mask=d < D)
    delta = o
    if HAS_DELTA:
        delta = vector(delta_ptr, d, D)
    u1, _, _, _, _ = one_error(o, k, v, delta, gain, shift, d, D, BIAS, P)
    top, total = tl.full([LB, DP], -1e30, tl.float32), tl.zeros([LB, DP], tl.float32)
    for i in range((E + LB - 1) // LB):
        hidden = (i * LB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        w1, w2 = weight(w1_ptr, at, inside), weight(w2_ptr, at, inside)
        z, slope = gelu_slope(tl.sum(w2 * k[None, :], 1), FAST)
        u2 = slope * tl.sum(w1 * u1[None, :], 1)
        logits1 = retained(w1, alpha[None, :], log_anchor1_ptr, at, inside, ANCHORED) - eta[None, :] * z[:, None] * u1[None, :]
        logits2 = retained(w2, alpha[None, :], log_anchor2_ptr, at, inside, ANCHORED) - eta[None, :] * u2[:, None] * k[None, :]
        logits1 = tl.where(d[None, :] < D, logits1, -1e30)
        share = tl.exp(logits1 - tl.max(logits1, 1)[:, None])
        new1 = MASS1 * share / tl.sum(share, 1)[:, None]
        logits2 = tl.where(inside, logits2, -1e30)
        new_top = tl.maximum(top, logits2)
        total = total * tl.exp(top - new_top) + tl.exp(logits2 - new_top)
        top = new_top
        # other threads may still read what is written over
        tl.debug_barrier()
        tl.store(w1_ptr + at, new1, mask=inside)
        tl.store(starts1_ptr + at, new1, mask=inside)
        tl.store(w2_ptr + at, logits2, mask=inside)
    most = tl.max(top, 0)
    scale = MASS2 / tl.sum(total * tl.exp(top - most[None, :]), 0)
    tl.debug_barrier()
    for i in range((E + LB - 1) // LB):
        hidden = (i * LB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        new2 = scale[None, :] * tl.exp(weight(w2_ptr, at, inside) - most[None, :])
        tl.debug_barrier()
        tl.store(w2_ptr + at, new2, mask=inside)
        tl.store(starts2_ptr + at, new2, mask=inside)
    tl.debug_barrier()


@triton.jit
def lead_backward(
    k_ptr, v_ptr, eta_ptr, log_alpha_ptr, delta_ptr, log_anchor1_ptr, log_anchor2_ptr, gain, shift, o_ptr,
    before1_ptr, before2_ptr, starts1_ptr, starts2_ptr, dw1_ptr, dw2_ptr, move1_ptr, move2_ptr,
    dk_ptr, dv_ptr, deta_ptr, dlog_ptr, ddelta_ptr, dgain_ptr, dshift_ptr, dlog_anchor1_ptr, dlog_anchor2_ptr,
    d, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr, LB: tl.constexpr, BIAS: tl.constexpr, SLOPE: tl.constexpr, DELTA_SLOPE: tl.constexpr,
    P: tl.constexpr, HAS_DELTA: tl.constexpr, ANCHORED: tl.constexpr, MASS1: tl.constexpr, MASS2: tl.constexpr, FAST: tl.constexpr,
):
    """``lead`` backwards: the adjoint of the new weights becomes that of the old ones, and the token and its gates get theirs.

    From g = du1 the norm gives do as in the scan; dl goes to the logarithm, to eta and to the gradient's two factors.
    """
    e = tl.arange(0, LB)
    k, v, eta, alpha = vector(k_ptr, d, D), vector(v_ptr, d, D), vector(eta_ptr, d, D), tl.exp(vector(log_alpha_ptr, d, D))
    o = vector(o_ptr, d, D)
    delta = o
    if HAS_DELTA:
        delta = vector(delta_ptr, d, D)
    u1, unit, inverse, error, c = one_error(o, k, v, delta, gain, shift, d, D, BIAS, P)
    sums = tl.zeros([LB, DP], tl.float32)
    for i in range((E + LB - 1) // LB):
        hidden = (i * LB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        sums += weight(starts2_ptr, at, inside).to(tl.float32) * weight(dw2_ptr, at, inside)
    along2 = (tl.sum(sums, 0) / MASS2)[None, :]
    g, dk, deta, dalpha = tl.zeros([LB, DP], tl.float32), tl.zeros([LB, DP], tl.float32), tl.zeros([LB, DP], tl.float32), tl.zeros([LB, DP], tl.float32)
    for i in range((E + LB - 1) // LB):
        hidden = (i * LB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        w1, w2 = weight(before1_ptr, at, inside).to(tl.float32), weight(before2_ptr, at, inside).to(tl.float32)
        z, slope = gelu_slope(tl.sum(w2 * k[None, :], 1), FAST)
        u2 = slope * tl.sum(w1 * u1[None, :], 1)
        new1, new2 = weight(starts1_ptr, at, inside).to(tl.float32), weight(starts2_ptr, at, inside).to(tl.float32)
        dw1, dw2 = weight(dw1_ptr, at, inside), weight(dw2_ptr, at, inside)
        dl1 = new1 * (dw1 - (tl.sum(new1 * dw1, 1) / MASS1)[:, None])
        dl2 = new2 * (dw2 - along2)
        du2 = -tl.sum(eta[None, :] * dl2 * k[None, :], 1)
        g += (slope * du2)[:, None] * w1 - eta[None, :] * dl1 * z[:, None]
        dk -= eta[None, :] * dl2 * u2[:, None]
        deta -= dl1 * z[:, None] * u1[None, :] + dl2 * u2[:, None] * k[None, :]
        log1, log2 = tl.log(tl.maximum(w1, LOWEST)), tl.log(tl.maximum(w2, LOWEST))
        if ANCHORED:
            log1 -= weight(log_anchor1_ptr, at, inside)
            log2 -= weight(log_anchor2_ptr, at, inside)
            lost = 1 - alpha[None, :]
            tl.store(dlog_anchor1_ptr + at, weight(dlog_anchor1_ptr, at, inside) + lost * dl1, mask=inside)
            tl.store(dlog_anchor2_ptr + at, weight(dlog_anchor2_ptr, at, inside) + lost * dl2, mask=inside)
        dalpha += dl1 * log1 + dl2 * log2
    g = tl.sum(g, 0)
    tl.store(deta_ptr + d, tl.sum(deta, 0), mask=d < D)
    tl.store(dlog_ptr + d, alpha * tl.sum(dalpha, 0), mask=d < D)
    # through the norm and the bias
    inside_d = d < D
    dc = one_backprop(g, unit, inverse, d, D)
    steep = SLOPE(error, delta, P)
    derror = tl.where(inside_d, steep * gain * dc, 0.0)
    f = gain * derror - inverse * (g * (tl.sum(c * unit, 0) / D) + c * (tl.sum(g * unit, 0) / D))
    do = one_backprop(tl.where(inside_d, f, 0.0), unit, inverse, d, D) - inverse * (tl.sum(g * u1, 0) / D) * unit
    if HAS_DELTA:
        tl.store(ddelta_ptr + d, DELTA_SLOPE(error, delta, P) * gain * dc, mask=inside_d)
    tl.store(dv_ptr + d, -derror, mask=inside_d)
    tl.store(dgain_ptr + d, dc * BIAS(error, delta, P) + derror * unit, mask=inside_d)
    tl.store(dshift_ptr + d, derror, mask=inside_d)
    for i in range((E + LB - 1) // LB):
        hidden = (i * LB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        w1, w2 = weight(before1_ptr, at, inside).to(tl.float32), weight(before2_ptr, at, inside).to(tl.float32)
        z, slope, curve = gelu_curve(tl.sum(w2 * k[None, :], 1), FAST)
        a = tl.sum(w1 * u1[None, :], 1)
        new1, new2 = weight(starts1_ptr, at, inside).to(tl.float32), weight(starts2_ptr, at, inside).to(tl.float32)
        dw1, dw2 = weight(dw1_ptr, at, inside), weight(dw2_ptr, at, inside)
        dl1 = new1 * (dw1 - (tl.sum(new1 * dw1, 1) / MASS1)[:, None])
        dl2 = new2 * (dw2 - along2)
        du2 = -tl.sum(eta[None, :] * dl2 * k[None, :], 1)
        dz = tl.sum(w1 * do[None, :] - eta[None, :] * dl1 * u1[None, :], 1)
        dh = curve * a * du2 + slope * dz
        old1 = (slope * du2)[:, None] * u1[None, :] + z[:, None] * do[None, :]
        old1 += tl.where(w1 > LOWEST, alpha[None, :] * dl1 / tl.maximum(w1, LOWEST), 0.0)
        old2 = dh[:, None] * k[None, :] + tl.where(w2 > LOWEST, alpha[None, :] * dl2 / tl.maximum(w2, LOWEST), 0.0)
        dk += w2 * dh[:, None]
        # other threads may still read what is written over
        tl.debug_barrier()
        tl.store(dw1_ptr + at, old1, mask=inside)
        tl.store(dw2_ptr + at, old2, mask=inside)
        tl.store(move1_ptr + at, old1, mask=inside)
        tl.store(move2_ptr + at, old2, mask=inside)
    tl.store(dk_ptr + d, tl.sum(dk, 0) + derror, mask=inside_d)
