"""The 2-layer MLP memory in Triton: a scan that only advances the state, and a readout parallel over chunks.

Weights are kept E-major, W1' and W2 both [E,D], so that the large products have E rows. A chunk's gradients are taken at its
starting weights; the scan writes those weights and the errors u1 for the readout.

C tokens of a chunk, D channels (DP: a power of two), E = 4 D hidden channels in blocks of EB
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gelu(x):
    """The tanh form: x sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3)."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def gelu_slope(x):
    """gelu'(x) = s + x s (1 - s) 2 z'."""
    s = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return s + x * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * x * x)


@triton.jit
def rows(ptr, token, head, d, stride_token, stride_head, stride_d, there, D):
    """A tile [C,DP] of a tensor in token layout, zeros where there is no token or channel."""
    where = ptr + token[:, None] * stride_token + head * stride_head + d[None, :] * stride_d
    return tl.load(where, mask=there[:, None] & (d[None, :] < D), other=0.0).to(tl.float32)


@triton.jit
def standardise(x, d, D):
    """(x - mean) / std over the channels that are there, and 1 / std."""
    inside = d[None, :] < D
    mean = tl.sum(x, 1) / D
    centred = tl.where(inside, x - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / D + 1e-6)
    return centred * inverse[:, None], inverse


@triton.jit
def scan(
    k_ptr, v_ptr, eta_ptr, log_alpha_ptr, delta_ptr,
    w1_ptr, w2_ptr, anchor1_ptr, anchor2_ptr, gain_ptr, shift_ptr,
    starts1_ptr, starts2_ptr, u1_ptr, tail1_ptr, tail2_ptr,
    first_ptr, length_ptr, chunk_ptr,
    H, D, E,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d, delta_token, delta_head, delta_d,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr,
    BIAS: tl.constexpr, P: tl.constexpr, HAS_ALPHA: tl.constexpr, HAS_DELTA: tl.constexpr, ANCHORED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, CHUNKS: tl.constexpr,
):
    """One program a sequence and head: read every chunk's keys and values, advance W1 and W2."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, length, chunk0 = tl.load(first_ptr + row), tl.load(length_ptr + row), tl.load(chunk_ptr + row)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    base = (row * H + head) * E * D
    token_stride = H * D
    chunks = (length + C - 1) // C
    for n in range(CHUNKS):
        if n < chunks:
            token = first + n * C + t
            there = n * C + t < length
            k = rows(k_ptr, token, head, d, token_stride, D, 1, there, D)
            v = rows(v_ptr, token, head, d, token_stride, D, 1, there, D)
            eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
            late = eta
            kept = tl.full([DP], 1.0, tl.float32)
            if HAS_ALPHA:
                log_alpha = rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
                end = tl.sum(log_alpha, 0)
                late = eta * tl.exp(end[None, :] - tl.cumsum(log_alpha, 0))
                kept = tl.exp(end)
            key = k.to(DOT)
            o = tl.zeros([C, DP], tl.float32)
            save = ((chunk0 + n) * H + head) * E * D
            partial = (n + 1) * C > length
            for i in range(NE):
                tile = (i * EB + e)[:, None] * D + d[None, :]
                inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
                w1 = tl.load(w1_ptr + base + tile, mask=inside, other=0.0)
                w2 = tl.load(w2_ptr + base + tile, mask=inside, other=0.0)
                if partial:
                    tl.store(tail1_ptr + base + tile, w1, mask=inside)
                    tl.store(tail2_ptr + base + tile, w2, mask=inside)
                if ANCHORED:
                    w1_away = w1 - tl.load(anchor1_ptr + base + tile, mask=inside, other=0.0)
                    w2_away = w2 - tl.load(anchor2_ptr + base + tile, mask=inside, other=0.0)
                    tl.store(starts1_ptr + save + tile, w1_away, mask=inside)
                    tl.store(starts2_ptr + save + tile, w2_away, mask=inside)
                else:
                    tl.store(starts1_ptr + save + tile, w1, mask=inside)
                    tl.store(starts2_ptr + save + tile, w2, mask=inside)
                h = tl.dot(w2.to(DOT), tl.trans(key), input_precision=PRECISION)
                o += tl.dot(tl.trans(gelu(h).to(DOT)), w1.to(DOT), input_precision=PRECISION)
            unit, inverse = standardise(o, d, D)
            error = k + gain[None, :] * unit + shift[None, :] - v
            delta = error
            if HAS_DELTA:
                delta = rows(delta_ptr, token, head, d, delta_token, delta_head, delta_d, there, D)
            c = gain[None, :] * BIAS(error, delta, P)
            c = tl.where((d[None, :] < D) & there[:, None], c, 0.0)
            along = tl.sum(c * unit, 1) / D
            u1 = inverse[:, None] * (c - (tl.sum(c, 1) / D)[:, None] - unit * along[:, None])
            u1 = tl.where(d[None, :] < D, u1, 0.0)
            tl.store(
                u1_ptr + token[:, None] * token_stride + head * D + d[None, :], u1, mask=there[:, None] & (d[None, :] < D)
            )
            u1_dot, late_u1, late_k = u1.to(DOT), (late * u1).to(DOT), (late * k).to(DOT)
            for i in range(NE):
                tile = (i * EB + e)[:, None] * D + d[None, :]
                inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
                w1 = tl.load(w1_ptr + base + tile, mask=inside, other=0.0)
                w2 = tl.load(w2_ptr + base + tile, mask=inside, other=0.0)
                h = tl.dot(w2.to(DOT), tl.trans(key), input_precision=PRECISION)
                u2 = gelu_slope(h) * tl.dot(w1.to(DOT), tl.trans(u1_dot), input_precision=PRECISION)
                if ANCHORED:
                    a1 = tl.load(anchor1_ptr + base + tile, mask=inside, other=0.0)
                    a2 = tl.load(anchor2_ptr + base + tile, mask=inside, other=0.0)
                    w1 = a1 + kept[None, :] * (w1 - a1)
                    w2 = a2 + kept[None, :] * (w2 - a2)
                else:
                    w1 = kept[None, :] * w1
                    w2 = kept[None, :] * w2
                w1 -= tl.dot(gelu(h).to(DOT), late_u1, input_precision=PRECISION)
                w2 -= tl.dot(u2.to(DOT), late_k, input_precision=PRECISION)
                tl.store(w1_ptr + base + tile, w1, mask=inside)
                tl.store(w2_ptr + base + tile, w2, mask=inside)
            # the next chunk's threads read what this one's have written
            tl.debug_barrier()


@triton.jit
def decayed_scores(q, k, total, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """sum_d q_td k_id exp(L_td - L_id), i <= t: by blocks of rows, each about its own middle, so that no exponent is large."""
    scores = tl.zeros([C, C], tl.float32)
    for block in tl.static_range(C // BLOCK):
        middle = tl.sum(tl.where((t == block * BLOCK + BLOCK // 2)[:, None], total, 0.0), 0)
        own = (t >= block * BLOCK) & (t < (block + 1) * BLOCK)
        left = q * tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0))
        seen = t < (block + 1) * BLOCK
        right = k * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0))
        part = tl.dot(left.to(DOT), tl.trans(right.to(DOT)), input_precision=PRECISION)
        scores = tl.where(own[:, None], part, scores)
    return tl.where(t[:, None] >= t[None, :], scores, 0.0)


@triton.jit
def decayed_values(scores, u, total, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """sum_{i<=t} s_ti exp(L_td - L_id) u_id, the same way."""
    out = tl.zeros_like(u)
    for block in tl.static_range(C // BLOCK):
        middle = tl.sum(tl.where((t == block * BLOCK + BLOCK // 2)[:, None], total, 0.0), 0)
        own = (t >= block * BLOCK) & (t < (block + 1) * BLOCK)
        seen = t < (block + 1) * BLOCK
        right = u * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0))
        part = tl.dot(scores.to(DOT), right.to(DOT), input_precision=PRECISION)
        left = tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0))
        out = tl.where(own[:, None], left * part, out)
    return out


@triton.jit
def readout(
    q_ptr, k_ptr, eta_ptr, log_alpha_ptr, u1_ptr, y_ptr,
    starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr, gain_ptr, shift_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr,
    H, D, E,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a chunk and head: both masked gated linear attentions, then norm and residual."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row = tl.load(row_ptr + number)
    first, length, chunk0 = tl.load(first_ptr + row), tl.load(length_ptr + row), tl.load(chunk_ptr + row)
    n = number - chunk0
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    token = first + n * C + t
    there = n * C + t < length
    token_stride = H * D
    q = rows(q_ptr, token, head, d, token_stride, D, 1, there, D)
    k = rows(k_ptr, token, head, d, token_stride, D, 1, there, D)
    u1 = rows(u1_ptr, token, head, d, token_stride, D, 1, there, D)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
    seen = t[:, None] >= t[None, :]
    kept_q = q
    if HAS_ALPHA:
        log_alpha = rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
        total = tl.cumsum(log_alpha, 0)
        kept = tl.exp(total)
        kept_q = q * kept
        scores2 = decayed_scores(q, eta * k, total, t, DOT, PRECISION, C, BLOCK)
    else:
        scores2 = tl.where(seen, tl.dot(q.to(DOT), tl.trans((eta * k).to(DOT)), input_precision=PRECISION), 0.0)
    key, query, late, u1_dot, s2 = k.to(DOT), q.to(DOT), kept_q.to(DOT), u1.to(DOT), scores2.to(DOT)
    scores1 = tl.zeros([C, C], tl.float32)
    o = tl.zeros([C, DP], tl.float32)
    o_anchor = tl.zeros([C, DP], tl.float32)
    save = (number * H + head) * E * D
    base = (row * H + head) * E * D
    for i in range(NE):
        tile = (i * EB + e)[:, None] * D + d[None, :]
        inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
        w1 = tl.load(starts1_ptr + save + tile, mask=inside, other=0.0)
        w2 = tl.load(starts2_ptr + save + tile, mask=inside, other=0.0)
        h_q = tl.dot(late, tl.trans(w2.to(DOT)), input_precision=PRECISION)
        w1_whole, w2_whole = w1, w2
        if ANCHORED:
            a1 = tl.load(anchor1_ptr + base + tile, mask=inside, other=0.0)
            a2 = tl.load(anchor2_ptr + base + tile, mask=inside, other=0.0)
            h_q += tl.dot(query, tl.trans(a2.to(DOT)), input_precision=PRECISION)
            w1_whole, w2_whole = w1 + a1, w2 + a2
        h = tl.dot(key, tl.trans(w2_whole.to(DOT)), input_precision=PRECISION)
        u2 = gelu_slope(h) * tl.dot(u1_dot, tl.trans(w1_whole.to(DOT)), input_precision=PRECISION)
        h_q -= tl.dot(s2, u2.to(DOT), input_precision=PRECISION)
        z_q = gelu(h_q).to(DOT)
        scores1 += tl.dot(z_q, tl.trans(gelu(h).to(DOT)), input_precision=PRECISION)
        o += tl.dot(z_q, w1.to(DOT), input_precision=PRECISION)
        if ANCHORED:
            o_anchor += tl.dot(z_q, a1.to(DOT), input_precision=PRECISION)
    scores1 = tl.where(seen, scores1, 0.0)
    if HAS_ALPHA:
        o = kept * o + o_anchor - decayed_values(scores1, eta * u1, total, t, DOT, PRECISION, C, BLOCK)
    else:
        o = o + o_anchor - tl.dot(scores1.to(DOT), (eta * u1).to(DOT), input_precision=PRECISION)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    unit, _ = standardise(o, d, D)
    y = q + gain[None, :] * unit + shift[None, :]
    tl.store(y_ptr + token[:, None] * token_stride + head * D + d[None, :], y, mask=there[:, None] & (d[None, :] < D))
