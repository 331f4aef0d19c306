"""The 2-layer MLP memory in Triton: a scan that only advances the state, and a readout parallel over chunks.

Weights are kept E-major, W1' and W2 both [E,D], so that the large products have E rows. A chunk's gradients are taken at its
starting weights; the scan writes those weights and the errors u1 for the readout.

C tokens of a chunk, D channels (DP: a power of two), E = 4 D hidden channels in blocks of EB
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
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
    k_ptr,
    v_ptr,
    eta_ptr,
    log_alpha_ptr,
    delta_ptr,
    w1_ptr,
    w2_ptr,
    anchor1_ptr,
    anchor2_ptr,
    gain_ptr,
    shift_ptr,
    starts1_ptr,
    starts2_ptr,
    u1_ptr,
    o_ptr,
    tail1_ptr,
    tail2_ptr,
    first_ptr,
    length_ptr,
    chunk_ptr,
    H,
    D,
    E,
    eta_token,
    eta_head,
    eta_d,
    alpha_token,
    alpha_head,
    alpha_d,
    delta_token,
    delta_head,
    delta_d,
    C: tl.constexpr,
    DP: tl.constexpr,
    EB: tl.constexpr,
    NE: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    HAS_ALPHA: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    ANCHORED: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNKS: tl.constexpr,
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
            tl.store(u1_ptr + token[:, None] * token_stride + head * D + d[None, :], u1, mask=there[:, None] & (d[None, :] < D))
            tl.store(o_ptr + token[:, None] * token_stride + head * D + d[None, :], o, mask=there[:, None] & (d[None, :] < D))
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
def blocks(total, C: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens go about one middle: the whole chunk where its decays are mild, else BLOCK, so that no exponent is large."""
    return tl.where(tl.min(tl.min(total, 1), 0) > -60.0, C, BLOCK)


@triton.jit
def decayed_scores(q, k, total, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """sum_d q_td k_id exp(L_td - L_id), i <= t: by blocks of rows, each about its own middle."""
    scores = tl.zeros([C, C], tl.float32)
    size = blocks(total, C, BLOCK)
    for block in range(C // BLOCK):
        if block * size < C:
            middle = tl.sum(tl.where((t == block * size + size // 2)[:, None], total, 0.0), 0)
            own = (t >= block * size) & (t < (block + 1) * size)
            left = q * tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0))
            seen = t < (block + 1) * size
            right = k * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0))
            part = tl.dot(left.to(DOT), tl.trans(right.to(DOT)), input_precision=PRECISION)
            scores = tl.where(own[:, None], part, scores)
    return tl.where(t[:, None] >= t[None, :], scores, 0.0)


@triton.jit
def decayed_values(scores, u, total, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """sum_{i<=t} s_ti exp(L_td - L_id) u_id, the same way."""
    out = tl.zeros_like(u)
    size = blocks(total, C, BLOCK)
    for block in range(C // BLOCK):
        if block * size < C:
            middle = tl.sum(tl.where((t == block * size + size // 2)[:, None], total, 0.0), 0)
            own = (t >= block * size) & (t < (block + 1) * size)
            seen = t < (block + 1) * size
            right = u * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0))
            part = tl.dot(scores.to(DOT), right.to(DOT), input_precision=PRECISION)
            left = tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0))
            out = tl.where(own[:, None], left * part, out)
    return out


@triton.jit
def tile(ptr, token, head, d, H, D, there):
    """A tile [C,DP] of a tensor [T,H,D]."""
    return rows(ptr, token, head, d, H * D, D, 1, there, D)


@triton.jit
def place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C: tl.constexpr):
    """The sequence, tokens and their presence of chunk ``number``."""
    row = tl.load(row_ptr + number)
    n = number - tl.load(chunk_ptr + row)
    return row, tl.load(first_ptr + row) + n * C + t, n * C + t < tl.load(length_ptr + row)


@triton.jit
def pairs(
    q_ptr, k_ptr, eta_ptr, log_alpha_ptr, scores_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr, H, D,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, HAS_ALPHA: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """q_t . (b_t/b_i) eta_i k_i for i <= t: the inner layer's scores, which no weight enters."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    q, k = tile(q_ptr, token, head, d, H, D, there), tile(k_ptr, token, head, d, H, D, there)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
    if HAS_ALPHA:
        total = tl.cumsum(rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D), 0)
        scores = decayed_scores(q, eta * k, total, t, DOT, PRECISION, C, BLOCK)
    else:
        scores = tl.dot(q.to(DOT), tl.trans((eta * k).to(DOT)), input_precision=PRECISION)
        scores = tl.where(t[:, None] >= t[None, :], scores, 0.0)
    tl.store(scores_ptr + (number * H + head) * C * C + t[:, None] * C + t[None, :], scores)


@triton.jit
def readout(
    q_ptr, k_ptr, log_alpha_ptr, u1_ptr, scores2_ptr, scores1_ptr, o_ptr, o_anchor_ptr,
    starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr, H, D, E,
    alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a chunk and head: the two layers of every token's read, up to the outer layer's decays and the norm."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    q = tile(q_ptr, token, head, d, H, D, there)
    query, late = q.to(DOT), q.to(DOT)
    if HAS_ALPHA:
        log_alpha = rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
        late = (q * tl.exp(tl.cumsum(log_alpha, 0))).to(DOT)
    key = tile(k_ptr, token, head, d, H, D, there).to(DOT)
    u1 = tile(u1_ptr, token, head, d, H, D, there).to(DOT)
    square = (number * H + head) * C * C + t[:, None] * C + t[None, :]
    s2 = tl.load(scores2_ptr + square).to(DOT)
    scores1 = tl.zeros([C, C], tl.float32)
    o = tl.zeros([C, DP], tl.float32)
    o_anchor = tl.zeros([C, DP], tl.float32)
    save, base = (number * H + head) * E * D, (row * H + head) * E * D
    for i in range(NE):
        at = (i * EB + e)[:, None] * D + d[None, :]
        inside = ((i * EB + e)[:, None] < E) & (d[None, :] < D)
        w1 = tl.load(starts1_ptr + save + at, mask=inside, other=0.0)
        w2 = tl.load(starts2_ptr + save + at, mask=inside, other=0.0)
        h_q = tl.dot(late, tl.trans(w2.to(DOT)), input_precision=PRECISION)
        w1_whole, w2_whole = w1, w2
        if ANCHORED:
            a1 = tl.load(anchor1_ptr + base + at, mask=inside, other=0.0)
            a2 = tl.load(anchor2_ptr + base + at, mask=inside, other=0.0)
            h_q += tl.dot(query, tl.trans(a2.to(DOT)), input_precision=PRECISION)
            w1_whole, w2_whole = w1 + a1, w2 + a2
        h = tl.dot(key, tl.trans(w2_whole.to(DOT)), input_precision=PRECISION)
        u2 = gelu_slope(h) * tl.dot(u1, tl.trans(w1_whole.to(DOT)), input_precision=PRECISION)
        h_q -= tl.dot(s2, u2.to(DOT), input_precision=PRECISION)
        z_q = gelu(h_q).to(DOT)
        scores1 += tl.dot(z_q, tl.trans(gelu(h).to(DOT)), input_precision=PRECISION)
        o += tl.dot(z_q, w1.to(DOT), input_precision=PRECISION)
        if ANCHORED:
            o_anchor += tl.dot(z_q, a1.to(DOT), input_precision=PRECISION)
    tl.store(scores1_ptr + square, tl.where(t[:, None] >= t[None, :], scores1, 0.0))
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    tl.store(o_ptr + out, o, mask=there_d)
    if ANCHORED:
        tl.store(o_anchor_ptr + out, o_anchor, mask=there_d)


@triton.jit
def finish(
    q_ptr, eta_ptr, log_alpha_ptr, u1_ptr, scores1_ptr, o_ptr, o_anchor_ptr, y_ptr, gain_ptr, shift_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H, D,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """The outer layer's decays, norm and residual; the norm's input takes the place of the bare product."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    x = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D) * tile(u1_ptr, token, head, d, H, D, there)
    s1 = tl.load(scores1_ptr + (number * H + head) * C * C + t[:, None] * C + t[None, :]).to(tl.float32)
    o = tile(o_ptr, token, head, d, H, D, there)
    if HAS_ALPHA:
        total = tl.cumsum(rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D), 0)
        o = tl.exp(total) * o - decayed_values(s1, x, total, t, DOT, PRECISION, C, BLOCK)
    else:
        o = o - tl.dot(s1.to(DOT), x.to(DOT), input_precision=PRECISION)
    if ANCHORED:
        o += tile(o_anchor_ptr, token, head, d, H, D, there)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    tl.store(o_ptr + out, o, mask=there_d)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    unit, _ = standardise(o, d, D)
    tl.store(y_ptr + out, tile(q_ptr, token, head, d, H, D, there) + gain[None, :] * unit + shift[None, :], mask=there_d)


@triton.jit
def gelu_curve(x):
    """gelu''(x)."""
    a = 1.5957691216057308
    z1 = a * (1 + 0.134145 * x * x)
    s = tl.sigmoid(a * (x + 0.044715 * x * x * x))
    slope = s * (1 - s) * z1
    return 2 * slope + x * (slope * (1 - 2 * s) * z1 + s * (1 - s) * a * 0.26829 * x)


@triton.jit
def norm_backprop(error, unit, inverse, d, D):
    """(e - mean(e) - unit mean(e unit)) / std: the derivative of standardising, which is its own transpose."""
    along = tl.sum(error * unit, 1) / D
    out = inverse[:, None] * (error - (tl.sum(error, 1) / D)[:, None] - unit * along[:, None])
    return tl.where(d[None, :] < D, out, 0.0)


@triton.jit
def transposed_values(scores, u, total, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """sum_{t>=i} s_ti exp(L_td - L_id) u_td: what the tokens after i return to it."""
    out = tl.zeros_like(u)
    size = blocks(total, C, BLOCK)
    for block in range(C // BLOCK):
        if block * size < C:
            middle = tl.sum(tl.where((t == block * size + size // 2)[:, None], total, 0.0), 0)
            own = (t >= block * size) & (t < (block + 1) * size)
            left = tl.where(own[:, None], u * tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0)), 0.0)
            part = tl.dot(tl.trans(scores.to(DOT)), left.to(DOT), input_precision=PRECISION)
            seen = t < (block + 1) * size
            out += tl.where(seen[:, None], part * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0)), 0.0)
    return out


@triton.jit
def begin_backward(
    eta_ptr, log_alpha_ptr, u1_ptr, scores1_ptr, o_ptr, o_anchor_ptr, dy_ptr, gain_ptr,
    do_ptr, dscores1_ptr, deta_ptr, dlog_ptr, du1_ptr, dgain_ptr, dshift_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H, D,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """From dy through the norm and the outer layer's decays: what ``finish`` did, backwards."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    square = (number * H + head) * C * C + t[:, None] * C + t[None, :]
    o, dy = tile(o_ptr, token, head, d, H, D, there), tile(dy_ptr, token, head, d, H, D, there)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    unit, inverse = standardise(o, d, D)
    tl.store(dgain_ptr + (number * H + head) * D + d, tl.sum(dy * unit, 0), mask=d < D)
    tl.store(dshift_ptr + (number * H + head) * D + d, tl.sum(dy, 0), mask=d < D)
    do = norm_backprop(gain[None, :] * dy, unit, inverse, d, D)
    tl.store(do_ptr + out, do, mask=there_d)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
    u1 = tile(u1_ptr, token, head, d, H, D, there)
    x = eta * u1
    s1 = tl.load(scores1_ptr + square).to(tl.float32)
    if HAS_ALPHA:
        total = tl.cumsum(rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D), 0)
        ds1 = -decayed_scores(do, x, total, t, DOT, PRECISION, C, BLOCK)
        dx = -transposed_values(s1, do, total, t, DOT, PRECISION, C, BLOCK)
        decayed = o
        if ANCHORED:
            decayed = o - tile(o_anchor_ptr, token, head, d, H, D, there)
        tl.store(dlog_ptr + out, do * decayed - x * dx, mask=there_d)
    else:
        ds1 = -tl.dot(do.to(DOT), tl.trans(x.to(DOT)), input_precision=PRECISION)
        ds1 = tl.where(t[:, None] >= t[None, :], ds1, 0.0)
        dx = -tl.dot(tl.trans(s1.to(DOT)), do.to(DOT), input_precision=PRECISION)
    tl.store(dscores1_ptr + square, ds1)
    tl.store(deta_ptr + out, u1 * dx, mask=there_d)
    tl.store(du1_ptr + out, eta * dx, mask=there_d)


@triton.jit
def read_backward(
    q_ptr, k_ptr, log_alpha_ptr, u1_ptr, do_ptr, scores2_ptr, dscores1_ptr, dscores2_ptr,
    starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr,
    dq_ptr, dq_plain_ptr, z_ptr, slope_ptr, curve_ptr, u2_ptr, dz_ptr, du2_ptr, dread1_ptr, dread2_ptr, dplain1_ptr, dplain2_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H, D, E,
    alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a chunk and head: through both layers of the read, and what the reverse scan will need of the chunk."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    q, do = tile(q_ptr, token, head, d, H, D, there), tile(do_ptr, token, head, d, H, D, there)
    query, late, plain_do, late_do = q.to(DOT), q.to(DOT), do.to(DOT), do.to(DOT)
    if HAS_ALPHA:
        log_alpha = rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
        kept = tl.exp(tl.cumsum(log_alpha, 0))
        late, late_do = (q * kept).to(DOT), (do * kept).to(DOT)
    key = tile(k_ptr, token, head, d, H, D, there).to(DOT)
    u1 = tile(u1_ptr, token, head, d, H, D, there).to(DOT)
    square = (number * H + head) * C * C + t[:, None] * C + t[None, :]
    s2, ds1 = tl.load(scores2_ptr + square).to(DOT), tl.load(dscores1_ptr + square).to(DOT)
    dq = tl.zeros([C, DP], tl.float32)
    dq_plain = tl.zeros([C, DP], tl.float32)
    ds2 = tl.zeros([C, C], tl.float32)
    save, base = (number * H + head) * E * D, (row * H + head) * E * D
    for i in range(NE):
        hidden = i * EB + e
        at = hidden[:, None] * D + d[None, :]
        inside = (hidden[:, None] < E) & (d[None, :] < D)
        w1 = tl.load(starts1_ptr + save + at, mask=inside, other=0.0)
        w2 = tl.load(starts2_ptr + save + at, mask=inside, other=0.0)
        h_q = tl.dot(late, tl.trans(w2.to(DOT)), input_precision=PRECISION)
        dz_q = tl.dot(late_do, tl.trans(w1.to(DOT)), input_precision=PRECISION)
        w1_whole, w2_whole = w1, w2
        if ANCHORED:
            a1 = tl.load(anchor1_ptr + base + at, mask=inside, other=0.0)
            a2 = tl.load(anchor2_ptr + base + at, mask=inside, other=0.0)
            h_q += tl.dot(query, tl.trans(a2.to(DOT)), input_precision=PRECISION)
            dz_q += tl.dot(plain_do, tl.trans(a1.to(DOT)), input_precision=PRECISION)
            w1_whole, w2_whole = w1 + a1, w2 + a2
        wide = (token * H + head)[:, None] * E + hidden[None, :]
        there_e = there[:, None] & (hidden[None, :] < E)
        h = tl.dot(key, tl.trans(w2_whole.to(DOT)), input_precision=PRECISION)
        a = tl.dot(u1, tl.trans(w1_whole.to(DOT)), input_precision=PRECISION)
        slope = gelu_slope(h)
        tl.store(curve_ptr + wide, gelu_curve(h) * a, mask=there_e)
        tl.store(slope_ptr + wide, slope, mask=there_e)
        u2 = (slope * a).to(DOT)
        z = gelu(h).to(DOT)
        tl.store(u2_ptr + wide, u2, mask=there_e)
        tl.store(z_ptr + wide, z, mask=there_e)
        h_q -= tl.dot(s2, u2, input_precision=PRECISION)
        dz_q += tl.dot(ds1, z, input_precision=PRECISION)
        z_q, dh_q = gelu(h_q).to(DOT), (gelu_slope(h_q) * dz_q).to(DOT)
        tl.store(dz_ptr + wide, tl.dot(tl.trans(ds1), z_q, input_precision=PRECISION), mask=there_e)
        tl.store(du2_ptr + wide, -tl.dot(tl.trans(s2), dh_q, input_precision=PRECISION), mask=there_e)
        tl.store(dread1_ptr + save + at, tl.dot(tl.trans(z_q), late_do, input_precision=PRECISION), mask=inside)
        tl.store(dread2_ptr + save + at, tl.dot(tl.trans(dh_q), late, input_precision=PRECISION), mask=inside)
        dq += tl.dot(dh_q, w2.to(DOT), input_precision=PRECISION)
        ds2 -= tl.dot(dh_q, tl.trans(u2), input_precision=PRECISION)
        if ANCHORED:
            dq_plain += tl.dot(dh_q, a2.to(DOT), input_precision=PRECISION)
            tl.store(dplain1_ptr + save + at, tl.dot(tl.trans(z_q), plain_do, input_precision=PRECISION), mask=inside)
            tl.store(dplain2_ptr + save + at, tl.dot(tl.trans(dh_q), query, input_precision=PRECISION), mask=inside)
    tl.store(dscores2_ptr + square, tl.where(t[:, None] >= t[None, :], ds2, 0.0))
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    tl.store(dq_ptr + out, dq, mask=there_d)
    if ANCHORED:
        tl.store(dq_plain_ptr + out, dq_plain, mask=there_d)


@triton.jit
def finish_backward(
    q_ptr, k_ptr, eta_ptr, log_alpha_ptr, dy_ptr, dscores2_ptr, dq_ptr, dq_plain_ptr, dk_ptr, deta_ptr, dlog_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H, D,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """The inner layer's scores backwards: dq whole, the read's share of dk, d eta and dL."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    ds2 = tl.load(dscores2_ptr + (number * H + head) * C * C + t[:, None] * C + t[None, :]).to(tl.float32)
    q, k = tile(q_ptr, token, head, d, H, D, there), tile(k_ptr, token, head, d, H, D, there)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
    dq = tile(dq_ptr, token, head, d, H, D, there)
    write = eta * k
    if HAS_ALPHA:
        total = tl.cumsum(rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D), 0)
        dq = tl.exp(total) * dq + decayed_values(ds2, write, total, t, DOT, PRECISION, C, BLOCK)
        dwrite = transposed_values(ds2, q, total, t, DOT, PRECISION, C, BLOCK)
        dlog = tile(dlog_ptr, token, head, d, H, D, there)
        tl.store(dlog_ptr + out, dlog + q * dq - write * dwrite, mask=there_d)
    else:
        dq += tl.dot(ds2.to(DOT), write.to(DOT), input_precision=PRECISION)
        dwrite = tl.dot(tl.trans(ds2.to(DOT)), q.to(DOT), input_precision=PRECISION)
    if ANCHORED:
        dq += tile(dq_plain_ptr, token, head, d, H, D, there)
    tl.store(dq_ptr + out, dq + tile(dy_ptr, token, head, d, H, D, there), mask=there_d)
    tl.store(dk_ptr + out, eta * dwrite, mask=there_d)
    tl.store(deta_ptr + out, tile(deta_ptr, token, head, d, H, D, there) + k * dwrite, mask=there_d)


@triton.jit
def scan_backward(
    k_ptr, v_ptr, eta_ptr, log_alpha_ptr, delta_ptr, u1_ptr, o_ptr,
    starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr, gain_ptr, shift_ptr,
    z_ptr, slope_ptr, curve_ptr, u2_ptr,
    dk_ptr, dv_ptr, deta_ptr, dlog_ptr, ddelta_ptr, du1_ptr, dz_ptr, du2_ptr, dread1_ptr, dread2_ptr, dplain1_ptr, dplain2_ptr,
    dw1_ptr, dw2_ptr, da1_ptr, da2_ptr, dgain_ptr, dshift_ptr,
    first_ptr, length_ptr, chunk_ptr,
    H, D, E,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d, delta_token, delta_head, delta_d,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr, NE: tl.constexpr,
    BIAS: tl.constexpr, SLOPE: tl.constexpr, DELTA_SLOPE: tl.constexpr, P: tl.constexpr,
    HAS_ALPHA: tl.constexpr, HAS_DELTA: tl.constexpr, ANCHORED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, CHUNKS: tl.constexpr,
):
    """One program a sequence and head: the state's adjoint from the last chunk to the first, through every chunk's own step.

    ``dk``, ``deta`` and ``dlog`` hold what the read gave and are added to; ``dw1``, ``dw2`` come in as the outgoing state's
    gradient and leave as the incoming one's.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, length, chunk0 = tl.load(first_ptr + row), tl.load(length_ptr + row), tl.load(chunk_ptr + row)
    d, t, e = tl.arange(0, DP), tl.arange(0, C), tl.arange(0, EB)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    base = (row * H + head) * E * D
    chunks = (length + C - 1) // C
    dgain = tl.zeros([DP], tl.float32)
    dshift = tl.zeros([DP], tl.float32)
    for back in range(CHUNKS):
        if back < chunks:
            n = chunks - 1 - back
            token = first + n * C + t
            there = n * C + t < length
            out = token[:, None] * H * D + head * D + d[None, :]
            there_d = there[:, None] & (d[None, :] < D)
            k = tile(k_ptr, token, head, d, H, D, there)
            u1 = tile(u1_ptr, token, head, d, H, D, there)
            eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
            late = eta
            kept = tl.full([DP], 1.0, tl.float32)
            if HAS_ALPHA:
                log_alpha = rows(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
                end = tl.sum(log_alpha, 0)
                left = tl.exp(end[None, :] - tl.cumsum(log_alpha, 0))
                late = eta * left
                kept = tl.exp(end)
            late_k = (late * k).to(DOT)
            dy1 = tl.zeros([C, DP], tl.float32)
            dy2 = tl.zeros([C, DP], tl.float32)
            du1 = tile(du1_ptr, token, head, d, H, D, there)
            dend = tl.zeros([DP], tl.float32)
            save = ((chunk0 + n) * H + head) * E * D
            for i in range(NE):
                hidden = i * EB + e
                at = hidden[:, None] * D + d[None, :]
                inside = (hidden[:, None] < E) & (d[None, :] < D)
                wide = (token * H + head)[:, None] * E + hidden[None, :]
                there_e = there[:, None] & (hidden[None, :] < E)
                w1 = tl.load(starts1_ptr + save + at, mask=inside, other=0.0)
                dw1 = tl.load(dw1_ptr + base + at, mask=inside, other=0.0)
                dw2 = tl.load(dw2_ptr + base + at, mask=inside, other=0.0)
                if HAS_ALPHA:
                    w2 = tl.load(starts2_ptr + save + at, mask=inside, other=0.0)
                    dend += kept * tl.sum(w1 * dw1 + w2 * dw2, 0)
                if ANCHORED:
                    w1 = w1 + tl.load(anchor1_ptr + base + at, mask=inside, other=0.0)
                du2 = tl.load(du2_ptr + wide, mask=there_e, other=0.0).to(tl.float32)
                du2 -= tl.dot(late_k, tl.trans(dw2.to(DOT)), input_precision=PRECISION)
                tl.store(du2_ptr + wide, du2, mask=there_e)
                z = tl.load(z_ptr + wide, mask=there_e, other=0.0).to(DOT)
                dy1 -= tl.dot(z, dw1.to(DOT), input_precision=PRECISION)
                u2 = tl.load(u2_ptr + wide, mask=there_e, other=0.0).to(DOT)
                dy2 -= tl.dot(u2, dw2.to(DOT), input_precision=PRECISION)
                slope = tl.load(slope_ptr + wide, mask=there_e, other=0.0).to(tl.float32)
                du1 += tl.dot((slope * du2).to(DOT), w1.to(DOT), input_precision=PRECISION)
            du1 += late * dy1
            dlate = u1 * dy1 + k * dy2
            dk = tile(dk_ptr, token, head, d, H, D, there) + late * dy2
            deta = tile(deta_ptr, token, head, d, H, D, there)
            if HAS_ALPHA:
                deta += left * dlate
                dlog = tile(dlog_ptr, token, head, d, H, D, there) - late * dlate
                dend += tl.sum(late * dlate, 0)
                # the sum over a chunk's later tokens turns dL into d log alpha; the chunk's end is every token's
                reached = tl.sum(dlog, 0)[None, :] - tl.cumsum(dlog, 0) + dlog + dend[None, :]
                tl.store(dlog_ptr + out, reached, mask=there_d)
            else:
                deta += dlate
            tl.store(deta_ptr + out, deta, mask=there_d)
            # through the surprise: u1 = (c - mean(c) - unit mean(c unit)) / std, c = gain * bias'(error)
            o = tile(o_ptr, token, head, d, H, D, there)
            unit, inverse = standardise(o, d, D)
            error = k + gain[None, :] * unit + shift[None, :] - tile(v_ptr, token, head, d, H, D, there)
            delta = error
            if HAS_DELTA:
                delta = rows(delta_ptr, token, head, d, delta_token, delta_head, delta_d, there, D)
            pull = tl.where(there_d, BIAS(error, delta, P), 0.0)
            c = gain[None, :] * pull
            dc = norm_backprop(du1, unit, inverse, d, D)
            mean_cx, mean_gx = tl.sum(c * unit, 1) / D, tl.sum(du1 * unit, 1) / D
            both = du1 * mean_cx[:, None] + c * mean_gx[:, None]
            do = -(inverse * tl.sum(du1 * u1, 1) / D)[:, None] * unit
            do -= inverse[:, None] * norm_backprop(both, unit, inverse, d, D)
            dpull = gain[None, :] * dc
            derror = tl.where(there_d, SLOPE(error, delta, P) * dpull, 0.0)
            if HAS_DELTA:
                tl.store(ddelta_ptr + out, DELTA_SLOPE(error, delta, P) * dpull, mask=there_d)
            dgain += tl.sum(dc * pull + derror * unit, 0)
            dshift += tl.sum(derror, 0)
            do += norm_backprop(gain[None, :] * derror, unit, inverse, d, D)
            tl.store(dv_ptr + out, -derror, mask=there_d)
            dk += derror
            do_dot = tl.where(there_d, do, 0.0).to(DOT)
            key, u1_dot, late_u1 = k.to(DOT), u1.to(DOT), (late * u1).to(DOT)
            # the second pass reads what the first one's threads have stored
            tl.debug_barrier()
            for i in range(NE):
                hidden = i * EB + e
                at = hidden[:, None] * D + d[None, :]
                inside = (hidden[:, None] < E) & (d[None, :] < D)
                wide = (token * H + head)[:, None] * E + hidden[None, :]
                there_e = there[:, None] & (hidden[None, :] < E)
                w1 = tl.load(starts1_ptr + save + at, mask=inside, other=0.0)
                w2 = tl.load(starts2_ptr + save + at, mask=inside, other=0.0)
                if ANCHORED:
                    w1 = w1 + tl.load(anchor1_ptr + base + at, mask=inside, other=0.0)
                    w2 = w2 + tl.load(anchor2_ptr + base + at, mask=inside, other=0.0)
                dw1 = tl.load(dw1_ptr + base + at, mask=inside, other=0.0)
                dz = tl.load(dz_ptr + wide, mask=there_e, other=0.0).to(tl.float32)
                dz -= tl.dot(late_u1, tl.trans(dw1.to(DOT)), input_precision=PRECISION)
                dz += tl.dot(do_dot, tl.trans(w1.to(DOT)), input_precision=PRECISION)
                du2 = tl.load(du2_ptr + wide, mask=there_e, other=0.0).to(tl.float32)
                slope = tl.load(slope_ptr + wide, mask=there_e, other=0.0).to(tl.float32)
                curve = tl.load(curve_ptr + wide, mask=there_e, other=0.0).to(tl.float32)
                dh = (curve * du2 + slope * dz).to(DOT)
                dk += tl.dot(dh, w2.to(DOT), input_precision=PRECISION)
                read1 = tl.load(dread1_ptr + save + at, mask=inside, other=0.0).to(tl.float32)
                read2 = tl.load(dread2_ptr + save + at, mask=inside, other=0.0).to(tl.float32)
                dw2 = tl.load(dw2_ptr + base + at, mask=inside, other=0.0)
                if ANCHORED:
                    # W' = A_0 + kept (W - A_0): what is not kept of the adjoint goes to the anchor; reads split the same way
                    plain1 = tl.load(dplain1_ptr + save + at, mask=inside, other=0.0).to(tl.float32)
                    plain2 = tl.load(dplain2_ptr + save + at, mask=inside, other=0.0).to(tl.float32)
                    da1 = tl.load(da1_ptr + base + at, mask=inside, other=0.0)
                    da2 = tl.load(da2_ptr + base + at, mask=inside, other=0.0)
                    tl.store(da1_ptr + base + at, da1 + (1 - kept[None, :]) * dw1 + plain1 - read1, mask=inside)
                    tl.store(da2_ptr + base + at, da2 + (1 - kept[None, :]) * dw2 + plain2 - read2, mask=inside)
                new1 = kept[None, :] * dw1 + read1
                new1 += tl.dot(tl.trans((slope * du2).to(DOT)), u1_dot, input_precision=PRECISION)
                z = tl.load(z_ptr + wide, mask=there_e, other=0.0).to(DOT)
                new1 += tl.dot(tl.trans(z), do_dot, input_precision=PRECISION)
                tl.store(dw1_ptr + base + at, new1, mask=inside)
                new2 = kept[None, :] * dw2 + read2 + tl.dot(tl.trans(dh), key, input_precision=PRECISION)
                tl.store(dw2_ptr + base + at, new2, mask=inside)
            tl.store(dk_ptr + out, dk, mask=there_d)
            tl.debug_barrier()
    tl.store(dgain_ptr + (row * H + head) * D + d, dgain, mask=d < D)
    tl.store(dshift_ptr + (row * H + head) * D + d, dshift, mask=d < D)
