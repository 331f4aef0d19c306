"""The first token of a chunk by itself on a state that lies in registers, in Gluon: what ``lead`` does by blocks (Memora's lag).

W = c softmax(alpha log W_in - eta g(W_in)) over each column. With A = W1' and B = W2, both [E,D] in halves a (rows 0 to 127) and b, a column of
W1 is a row of A, which four threads share, and a column of W2 is one of B, which all warps share. Logarithms and exponentials are to the base 2.

D channels (64 with padding), E hidden channels (256 with padding); padded entries are and stay zero
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from .lead import LOWEST
from .resident_tiles import exp2, half, log2
from .tiles import gelu_slope

LOG2_E = gl.constexpr(1.4426950408889634)
# next to any logit, no share
NOTHING = gl.constexpr(-1e30)
# the rows of the token's tile in shared memory
TOKEN = gl.constexpr(0)
VALUE = gl.constexpr(1)
STEP = gl.constexpr(2)
DECAY = gl.constexpr(3)
THRESHOLD = gl.constexpr(4)
GAIN = gl.constexpr(5)
SHIFT = gl.constexpr(6)


@gluon.jit
def fetch_vector(smem, ptr, there, D: gl.constexpr):
    """Start copying D numbers into shared memory, zeros behind them."""
    c = gl.arange(0, 64, layout=gl.BlockedLayout([1], [32], [8], [0]))
    async_copy.async_copy_global_to_shared(smem, ptr + c, mask=(c < D) & there)


@gluon.jit
def fetch_lead(token_s, k_ptr, v_ptr, eta_ptr, log_alpha_ptr, delta_ptr, one, there, D: gl.constexpr, HAS_DELTA: gl.constexpr):
    """Start copying a chunk's first token and its gates."""
    fetch_vector(token_s.index(TOKEN), k_ptr + one, there, D)
    fetch_vector(token_s.index(VALUE), v_ptr + one, there, D)
    fetch_vector(token_s.index(STEP), eta_ptr + one, there, D)
    fetch_vector(token_s.index(DECAY), log_alpha_ptr + one, there, D)
    if HAS_DELTA:
        fetch_vector(token_s.index(THRESHOLD), delta_ptr + one, there, D)


@gluon.jit
def token_error(o, token_s, d, D: gl.constexpr, BIAS: gl.constexpr, P: gl.constexpr, HAS_DELTA: gl.constexpr, L: gl.constexpr):
    """u1 = LN'(o)[gain c(e)], e = k + gain unit + shift - v."""
    centred = gl.where(d < D, o - gl.sum(o, 0) / D, 0.0)
    inverse = gl.rsqrt(gl.sum(centred * centred, 0) / D + 1e-6)
    unit = centred * inverse
    gain = token_s.index(GAIN).load(L)
    error = token_s.index(TOKEN).load(L) + gain * unit + token_s.index(SHIFT).load(L) - token_s.index(VALUE).load(L)
    delta = error
    if HAS_DELTA:
        delta = token_s.index(THRESHOLD).load(L)
    c = gl.where(d < D, gain * BIAS(error, delta, P), 0.0)
    u1 = inverse * (c - gl.sum(c, 0) / D - unit * (gl.sum(c * unit, 0) / D))
    return gl.where(d < D, u1, 0.0)


@gluon.jit
def logits(w, left, right, alpha, log_anchor_ptr, start: gl.constexpr, D: gl.constexpr, E: gl.constexpr, ANCHORED: gl.constexpr, L: gl.constexpr):
    """alpha log W - left right', or alpha log W + (1 - alpha) log A_0 - left right'; nothing where padded."""
    out = alpha[None, :] * log2(gl.maximum(w, LOWEST)) - left[:, None] * right[None, :]
    if ANCHORED:
        out += (LOG2_E * (1 - alpha))[None, :] * half(log_anchor_ptr, start, D, E, L)
    e, d = start + gl.arange(0, 128, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    return gl.where((e < E)[:, None] & (d < D)[None, :], out, NOTHING)


@gluon.jit
def row_softmax(x, start: gl.constexpr, E: gl.constexpr, MASS: gl.constexpr, L: gl.constexpr):
    """c 2^x / sum 2^x along each row that is there."""
    share = exp2(x - gl.max(x, 1)[:, None])
    e = start + gl.arange(0, 128, layout=gl.SliceLayout(1, L))
    return share * gl.where(e < E, MASS / gl.sum(share, 1), 0.0)[:, None]


@gluon.jit
def lead_resident(
    w1a, w1b, w2a, w2b, token_s, log_anchor1_ptr, log_anchor2_ptr, o_ptr, one, D: gl.constexpr, E: gl.constexpr,
    BIAS: gl.constexpr, P: gl.constexpr, HAS_DELTA: gl.constexpr, ANCHORED: gl.constexpr, MASS1: gl.constexpr, MASS2: gl.constexpr, L: gl.constexpr,
):
    """``lead.lead``: the state after one token; the token is in ``token_s``, its norm's input goes to ``o`` where that is."""
    COLUMNS: gl.constexpr = gl.SliceLayout(0, L)
    d = gl.arange(0, 64, layout=COLUMNS)
    k = token_s.index(TOKEN).load(COLUMNS)
    za, slope_a = gelu_slope(gl.sum(w2a * k[None, :], 1), True)
    zb, slope_b = gelu_slope(gl.sum(w2b * k[None, :], 1), True)
    o = gl.sum(za[:, None] * w1a + zb[:, None] * w1b, 0)
    if o_ptr is not None:
        gl.store(o_ptr + one + d, o, mask=d < D)
    u1 = token_error(o, token_s, d, D, BIAS, P, HAS_DELTA, COLUMNS)
    u2a, u2b = slope_a * gl.sum(w1a * u1[None, :], 1), slope_b * gl.sum(w1b * u1[None, :], 1)
    alpha = exp2(LOG2_E * token_s.index(DECAY).load(COLUMNS))
    step = LOG2_E * token_s.index(STEP).load(COLUMNS)
    w1a = row_softmax(logits(w1a, za, step * u1, alpha, log_anchor1_ptr, 0, D, E, ANCHORED, L), 0, E, MASS1, L)
    w1b = row_softmax(logits(w1b, zb, step * u1, alpha, log_anchor1_ptr, 128, D, E, ANCHORED, L), 128, E, MASS1, L)
    step *= token_s.index(TOKEN).load(COLUMNS)
    w2a = logits(w2a, u2a, step, alpha, log_anchor2_ptr, 0, D, E, ANCHORED, L)
    w2b = logits(w2b, u2b, step, alpha, log_anchor2_ptr, 128, D, E, ANCHORED, L)
    top = gl.max(gl.maximum(w2a, w2b), 0)[None, :]
    w2a, w2b = exp2(w2a - top), exp2(w2b - top)
    scale = gl.where(d < D, MASS2 / gl.sum(w2a + w2b, 0), 0.0)[None, :]
    return w1a, w1b, scale * w2a, scale * w2b
