"""The 1-layer MLP memory forwards, M(x) = x + LN(W x): a scan that only advances the state, and a readout parallel over chunks.

The weight is kept as A = W', input channels first, [D,D], and stays in the registers of one program from a sequence's first chunk to its last.

C tokens of a chunk, D channels (DP: a power of two), N chunks, R sequences
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .forward_kernels import surprise
from .tiles import chunk_and_head, decayed_values, decays, place, rows, spacing, standardise, tile, weight


@triton.jit
def linear_steps(
    eta_ptr, log_alpha_ptr, late_ptr, kept_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr,
    eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d, C: tl.constexpr, DP: tl.constexpr,
):
    """What the decay leaves of each write at its chunk's end, eta_i exp(L_C - L_i), and of the weight, exp(L_C)."""
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
    log_alpha = decays(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
    end = tl.sum(log_alpha, 0)
    out = token[:, None] * H * D + head * D + d[None, :]
    tl.store(late_ptr + out, eta * tl.exp(end[None, :] - tl.cumsum(log_alpha, 0)), mask=there[:, None] & (d[None, :] < D))
    tl.store(kept_ptr + (number * H + head) * D + d, tl.exp(end), mask=d < D)


@triton.jit
def linear_scan(
    k_ptr, v_ptr, late_ptr, kept_ptr, delta_ptr, w_ptr, anchor_ptr, gain_ptr, shift_ptr, starts_ptr, u1_ptr, o_ptr, end_ptr, tail_ptr,
    first_ptr, length_ptr, chunk_ptr, H: tl.constexpr, D: tl.constexpr, late_token, late_head, late_d, delta_token, delta_head, delta_d,
    C: tl.constexpr, DP: tl.constexpr, BIAS: tl.constexpr, P: tl.constexpr, HAS_DELTA: tl.constexpr, HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a sequence and head: A' = b_C A - K' (late u1), with u1 the error at O = K A.

    ``starts`` is A at every chunk's start, or A - A_0 where there is an anchor, since only that decays; ``tail`` is A at the start of a last chunk
    that is not full.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, length, chunk0 = tl.load(first_ptr + row), tl.load(length_ptr + row), tl.load(chunk_ptr + row)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    at, inside = d[:, None] * D + d[None, :], (d[:, None] < D) & (d[None, :] < D)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    base = (row * H + head) * D * D
    a = weight(w_ptr + base, at, inside)
    for n in range((length + C - 1) // C):
        number, token, there = chunk0 + n, first + n * C, t < (length - n * C).to(tl.int32)
        there_d = there[:, None] & (d[None, :] < D)
        # addresses of 32 bits from a chunk's first token on
        here, out = (token * H + head) * D, t[:, None] * H * D + d[None, :]
        key, start = tile(k_ptr + here, t, 0, d, H, D, there).to(DOT), a.to(DOT)
        if ANCHORED:
            anchor = weight(anchor_ptr + base, at, inside)
            tl.store(starts_ptr + (number * H + head) * D * D + at, a - anchor, mask=inside)
        else:
            tl.store(starts_ptr + (number * H + head) * D * D + at, start, mask=inside)
        if (n + 1) * C > length:
            tl.store(tail_ptr + base + at, a, mask=inside)
        o = tl.dot(key, start, input_precision=PRECISION)
        # tokens are copied to shared memory chunks ahead: taken from there no earlier than needed, they leave room in registers
        k, v = tile(k_ptr + here, t, 0, d, H, D, there), tile(v_ptr + here, t, 0, d, H, D, there)
        late = rows(late_ptr + token * late_token + head * late_head, t, 0, d, late_token, late_head, late_d, there, D)
        delta = o
        if HAS_DELTA:
            delta = rows(delta_ptr + token * delta_token + head * delta_head, t, 0, d, delta_token, delta_head, delta_d, there, D)
        u1 = surprise(o, k, v, delta, gain, shift, there, d, D, BIAS, P)
        tl.store(u1_ptr + here + out, u1, mask=there_d)
        if o_ptr is not None:
            tl.store(o_ptr + here + out, o, mask=there_d)
        if HAS_ALPHA:
            kept = tl.load(kept_ptr + (number * H + head) * D + d, mask=d < D, other=0.0)[None, :]
            a = kept * a
            if ANCHORED:
                a += (1 - kept) * anchor
        a = tl.dot(tl.trans(key), (-late * u1).to(DOT), a, input_precision=PRECISION)
    tl.store(end_ptr + base + at, a, mask=inside)


@triton.jit
def read(
    q, k, x, log_alpha, starts_ptr, anchor_ptr, at, inside, t,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr,
    DOT: tl.constexpr, PAIR: tl.constexpr, PRECISION: tl.constexpr,
):
    """What decays of O_q = Q A_0 + [b_t Q (A - A_0) - sum_{i<t} (q_t . k_i) b_t/b_i x_i] - (q_t . k_t) x_t, which is what L enters: the bracket.

    With it come the rest of O_q and the scores q_t . k_i, i < t.
    """
    query, rest = q.to(DOT), -tl.sum(q * k, 1)[:, None] * x
    scores = tl.dot(query, tl.trans(k.to(DOT)), input_precision=PRECISION)
    scores = tl.where(t[:, None] > t[None, :], scores, 0.0)
    o = tl.dot(query, weight(starts_ptr, at, inside), input_precision=PRECISION)
    if ANCHORED:
        rest += tl.dot(query, weight(anchor_ptr, at, inside).to(DOT), input_precision=PRECISION)
    if HAS_ALPHA:
        total = tl.cumsum(log_alpha, 0)
        o *= tl.exp(total)
        o -= decayed_values(scores, x, total, spacing(log_alpha, tl.sum(log_alpha, 0), C, BLOCK), t, PAIR, PRECISION, C)
    else:
        o -= tl.dot(scores.to(DOT), x.to(DOT), input_precision=PRECISION)
    return o, rest, scores


@triton.jit
def linear_readout(
    q_ptr, k_ptr, eta_ptr, log_alpha_ptr, u1_ptr, starts_ptr, anchor_ptr, gain_ptr, shift_ptr, y_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr,
    DOT: tl.constexpr, PAIR: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a chunk and head: y = q + LN(O_q)."""
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    at, inside = d[:, None] * D + d[None, :], (d[:, None] < D) & (d[None, :] < D)
    q, k = tile(q_ptr, token, head, d, H, D, there), tile(k_ptr, token, head, d, H, D, there)
    x = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D) * tile(u1_ptr, token, head, d, H, D, there)
    log_alpha = x
    if HAS_ALPHA:
        log_alpha = decays(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
    o, rest, _ = read(
        q, k, x, log_alpha, starts_ptr + (number * H + head) * D * D, anchor_ptr + (row * H + head) * D * D if ANCHORED else starts_ptr, at, inside, t,
        C, DP, BLOCK, HAS_ALPHA, ANCHORED, DOT, PAIR, PRECISION,
    )
    unit, _ = standardise(o + rest, d, D)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    shift = tl.load(shift_ptr + head * D + d, mask=d < D, other=0.0)
    out = token[:, None] * H * D + head * D + d[None, :]
    tl.store(y_ptr + out, q + gain[None, :] * unit + shift[None, :], mask=there[:, None] & (d[None, :] < D))
