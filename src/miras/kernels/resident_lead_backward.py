"""Memora's first token backwards on Hopper: ``lead.lead_backward`` on an adjoint that lies in registers, in two halves of 128 rows.

Rows are sums over channels within a few threads, columns are sums over all hidden channels; vectors of channels wait in shared memory.

D channels (64 with padding), E hidden channels (256 with padding)
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .lead import LOWEST
from .resident_tiles import half, keep, log2
from .tiles import gelu_curve

# where each vector of channels lies in shared memory
KEY = gl.constexpr(0)
ERROR = gl.constexpr(1)
ETA_KEY = gl.constexpr(2)
ETA_ERROR = gl.constexpr(3)
ALPHA = gl.constexpr(4)
DO = gl.constexpr(5)


@gluon.jit
def vector(ptr, c, D: gl.constexpr):
    """One token's channels."""
    return gl.load(ptr + c, mask=c < D, other=0.0)


@gluon.jit
def across(vectors_s, WHICH: gl.constexpr, L: gl.constexpr):
    """A vector of channels as a row of a tile."""
    return vectors_s.index(WHICH).load(gl.SliceLayout(0, L))[None, :]


@gluon.jit
def one_transposed(error, unit, inverse, inside, D: gl.constexpr):
    """The derivative of standardising one token, which is its own transpose."""
    out = inverse * (error - gl.sum(error, 0) / D - unit * (gl.sum(error * unit, 0) / D))
    return gl.where(inside, out, 0.0)


@gluon.jit
def logits(dw1, dw2, along2, new1_s, new2_s, w1_s, w2_s, vectors_s, MASS1: gl.constexpr, L: gl.constexpr):
    """dl of both weights' rows, and by row z, gelu', u2, da = gelu' du2 and gelu'' a du2.

    Barriers keep the compiler from loading the next tile beside the one in use: there are no registers for both.
    """
    z, slope, curve = gelu_curve(gl.sum(w2_s.load(L).to(gl.float32) * across(vectors_s, KEY, L), 1), True)
    gl.thread_barrier()
    a = gl.sum(w1_s.load(L).to(gl.float32) * across(vectors_s, ERROR, L), 1)
    gl.thread_barrier()
    new1 = new1_s.load(L).to(gl.float32)
    dl1 = new1 * (dw1 - (gl.sum(new1 * dw1, 1) / MASS1)[:, None])
    gl.thread_barrier()
    dl2 = new2_s.load(L).to(gl.float32) * (dw2 - along2[None, :])
    du2 = -gl.sum(dl2 * across(vectors_s, ETA_KEY, L), 1)
    gl.thread_barrier()
    return dl1, dl2, z, slope, slope * a, slope * du2, curve * a * du2


@gluon.jit
def kept_share(
    dl, w_s, log_anchor_ptr, dlog_anchor_ptr, vectors_s,
    START: gl.constexpr, D: gl.constexpr, E: gl.constexpr, ANCHORED: gl.constexpr, L: gl.constexpr,
):
    """dl (log W - log A_0); the anchor's own gradient takes in (1 - alpha) dl."""
    if ANCHORED:
        lost = 1 - across(vectors_s, ALPHA, L)
        keep(dlog_anchor_ptr, half(dlog_anchor_ptr, START, D, E, L) + lost * dl, START, D, E, L)
        gl.thread_barrier()
    log = 0.6931471805599453 * log2(gl.maximum(w_s.slice(START, 128).load(L).to(gl.float32), LOWEST))
    if ANCHORED:
        log -= half(log_anchor_ptr, START, D, E, L)
        gl.thread_barrier()
    return dl * log


@gluon.jit
def through_logarithm(dl, w, alpha):
    """alpha dl / W where W is above the lowest."""
    inverse = gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [gl.maximum(w, LOWEST)], dtype=gl.float32, is_pure=True, pack=1)
    return gl.where(w > LOWEST, alpha * dl * inverse, 0.0)


@gluon.jit
def incoming(dl1, dl2, z, slope, da, bent, w1_s, w2_s, vectors_s, L: gl.constexpr):
    """The adjoints of the weights that the token found, and dh."""
    w1 = w1_s.load(L).to(gl.float32)
    old1 = through_logarithm(dl1, w1, across(vectors_s, ALPHA, L)) + da[:, None] * across(vectors_s, ERROR, L)
    dz = gl.sum(w1 * across(vectors_s, DO, L) - dl1 * across(vectors_s, ETA_ERROR, L), 1)
    old1 += z[:, None] * across(vectors_s, DO, L)
    gl.thread_barrier()
    dh = bent + slope * dz
    w2 = w2_s.load(L).to(gl.float32)
    old2 = through_logarithm(dl2, w2, across(vectors_s, ALPHA, L)) + dh[:, None] * across(vectors_s, KEY, L)
    gl.thread_barrier()
    return old1, old2, dh


@gluon.jit
def lead_backward_resident(
    dw1a, dw1b, dw2a, dw2b, new1_s, new2_s, w1_s, w2_s, vectors_s, k_ptr, v_ptr, eta_ptr, log_ptr, delta_ptr, log_anchor1_ptr, log_anchor2_ptr,
    o_ptr, gain_ptr, shift_ptr, dk_ptr, dv_ptr, deta_ptr, dlog_ptr, ddelta_ptr, dlog_anchor1_ptr, dlog_anchor2_ptr, dgain_ptr, dshift_ptr,
    D: gl.constexpr, E: gl.constexpr, BIAS: gl.constexpr, SLOPE: gl.constexpr, DELTA_SLOPE: gl.constexpr, P: gl.constexpr,
    HAS_DELTA: gl.constexpr, ANCHORED: gl.constexpr, MASS1: gl.constexpr, MASS2: gl.constexpr, L: gl.constexpr,
):
    """The adjoint of the new weights W (``new``) becomes that of the weights ``w`` which the token found; it and its gates get theirs.

    With dl the logits' adjoint, g = (slope du2)' W1 - eta sum_e dl1 z, d eta = -u1 sum_e dl1 z - k sum_e dl2 u2, d alpha = sum_e dl log W.
    """
    # two channels a thread, the same in every warp
    V: gl.constexpr = gl.BlockedLayout([2], [32], [8], [0])
    c = gl.arange(0, 64, layout=V)
    inside = c < D
    k, eta, alpha = vector(k_ptr, c, D), vector(eta_ptr, c, D), gl.exp(vector(log_ptr, c, D))
    o, gain = vector(o_ptr, c, D), vector(gain_ptr, c, D)
    centred = gl.where(inside, o - gl.sum(o, 0) / D, 0.0)
    inverse = gl.rsqrt(gl.sum(centred * centred, 0) / D + 1e-6)
    unit = centred * inverse
    error = k + gain * unit + vector(shift_ptr, c, D) - vector(v_ptr, c, D)
    delta = o
    if HAS_DELTA:
        delta = vector(delta_ptr, c, D)
    pull = gl.where(inside, gain * BIAS(error, delta, P), 0.0)
    u1 = one_transposed(pull, unit, inverse, inside, D)
    vectors_s.index(KEY).store(k)
    vectors_s.index(ERROR).store(u1)
    vectors_s.index(ETA_KEY).store(eta * k)
    vectors_s.index(ETA_ERROR).store(eta * u1)
    vectors_s.index(ALPHA).store(alpha)
    gl.thread_barrier()
    along2 = gl.sum(new2_s.slice(0, 128).load(L).to(gl.float32) * dw2a + new2_s.slice(128, 128).load(L).to(gl.float32) * dw2b, 0) / MASS2
    dl1a, dl2a, z_a, slope_a, u2_a, da_a, bent_a = logits(
        dw1a, dw2a, along2, new1_s.slice(0, 128), new2_s.slice(0, 128), w1_s.slice(0, 128), w2_s.slice(0, 128), vectors_s, MASS1, L,
    )
    dl1b, dl2b, z_b, slope_b, u2_b, da_b, bent_b = logits(
        dw1b, dw2b, along2, new1_s.slice(128, 128), new2_s.slice(128, 128), w1_s.slice(128, 128), w2_s.slice(128, 128), vectors_s, MASS1, L,
    )
    outer1 = gl.convert_layout(gl.sum(dl1a * z_a[:, None] + dl1b * z_b[:, None], 0), V)
    outer2 = gl.convert_layout(gl.sum(dl2a * u2_a[:, None] + dl2b * u2_b[:, None], 0), V)
    g = w1_s.slice(0, 128).load(L).to(gl.float32) * da_a[:, None] + w1_s.slice(128, 128).load(L).to(gl.float32) * da_b[:, None]
    g = gl.convert_layout(gl.sum(g, 0), V) - eta * outer1
    dalpha = kept_share(dl1a, w1_s, log_anchor1_ptr, dlog_anchor1_ptr, vectors_s, 0, D, E, ANCHORED, L)
    dalpha += kept_share(dl1b, w1_s, log_anchor1_ptr, dlog_anchor1_ptr, vectors_s, 128, D, E, ANCHORED, L)
    dalpha += kept_share(dl2a, w2_s, log_anchor2_ptr, dlog_anchor2_ptr, vectors_s, 0, D, E, ANCHORED, L)
    dalpha += kept_share(dl2b, w2_s, log_anchor2_ptr, dlog_anchor2_ptr, vectors_s, 128, D, E, ANCHORED, L)
    dalpha = gl.convert_layout(gl.sum(dalpha, 0), V)
    gl.store(deta_ptr + c, -u1 * outer1 - k * outer2, mask=inside)
    gl.store(dlog_ptr + c, alpha * dalpha, mask=inside)
    # through the norm and the bias
    dc = one_transposed(g, unit, inverse, inside, D)
    derror = gl.where(inside, SLOPE(error, delta, P) * gain * dc, 0.0)
    f = gain * derror - inverse * (g * (gl.sum(pull * unit, 0) / D) + pull * (gl.sum(g * unit, 0) / D))
    f = gl.where(inside, f, 0.0)
    do = one_transposed(f, unit, inverse, inside, D) - inverse * (gl.sum(g * u1, 0) / D) * unit
    if HAS_DELTA:
        gl.store(ddelta_ptr + c, DELTA_SLOPE(error, delta, P) * gain * dc, mask=inside)
    gl.store(dv_ptr + c, -derror, mask=inside)
    gl.store(dgain_ptr + c, dc * BIAS(error, delta, P) + derror * unit, mask=inside)
    gl.store(dshift_ptr + c, derror, mask=inside)
    vectors_s.index(DO).store(do)
    gl.thread_barrier()
    dw1a, dw2a, dh_a = incoming(dl1a, dl2a, z_a, slope_a, da_a, bent_a, w1_s.slice(0, 128), w2_s.slice(0, 128), vectors_s, L)
    dw1b, dw2b, dh_b = incoming(dl1b, dl2b, z_b, slope_b, da_b, bent_b, w1_s.slice(128, 128), w2_s.slice(128, 128), vectors_s, L)
    dk = w2_s.slice(0, 128).load(L).to(gl.float32) * dh_a[:, None] + w2_s.slice(128, 128).load(L).to(gl.float32) * dh_b[:, None]
    gl.store(dk_ptr + c, gl.convert_layout(gl.sum(dk, 0), V) - eta * outer2 + derror, mask=inside)
    return dw1a, dw1b, dw2a, dw2b
