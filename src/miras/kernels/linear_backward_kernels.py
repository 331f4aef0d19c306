"""The 1-layer MLP memory backwards: the read of all chunks at once, a reverse scan of the state's adjoint, the writes of all chunks.

C tokens of a chunk, D channels (DP: a power of two), N chunks, R sequences
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .linear_kernels import read
from .tiles import (
    chunk_and_head,
    decayed_scores,
    decays,
    norm_backprop,
    place,
    rows,
    spacing,
    standardise,
    tile,
    transposed_values,
    weight,
)
from .write_backward_kernels import through_norm


@triton.jit
def linear_read_backward(
    q_ptr, k_ptr, eta_ptr, log_alpha_ptr, u1_ptr, starts_ptr, anchor_ptr, gain_ptr, dy_ptr,
    dq_ptr, dk_ptr, dx_ptr, dwrite_ptr, dlog_ptr, share_ptr, danchor_ptr, dgain_ptr, dshift_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr,
    DOT: tl.constexpr, PAIR: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a chunk and head: the read is made again and gone through.

    dq is whole; ``dk`` is the read's share; ``dx`` is what arrives at x_i = eta_i u1_i and ``dwrite`` eta_i dx_i, the read's share of du1;
    ``dlog`` is the read's share of dL; ``share`` is Q' (b dO), what the chunk's reads add to the adjoint of its starting weight.
    """
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    at, inside = d[:, None] * D + d[None, :], (d[:, None] < D) & (d[None, :] < D)
    save, base = (number * H + head) * D * D, (row * H + head) * D * D
    q, k = tile(q_ptr, token, head, d, H, D, there), tile(k_ptr, token, head, d, H, D, there)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
    x = eta * tile(u1_ptr, token, head, d, H, D, there)
    log_alpha = x
    if HAS_ALPHA:
        log_alpha = decays(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
    o, rest, scores = read(
        q, k, x, log_alpha, starts_ptr + save, anchor_ptr + base if ANCHORED else starts_ptr, at, inside, t,
        C, DP, BLOCK, HAS_ALPHA, ANCHORED, DOT, PAIR, PRECISION,
    )
    dy = tile(dy_ptr, token, head, d, H, D, there)
    gain = tl.load(gain_ptr + head * D + d, mask=d < D, other=0.0)
    unit, inverse = standardise(o + rest, d, D)
    tl.store(dgain_ptr + (number * H + head) * D + d, tl.sum(dy * unit, 0), mask=d < D)
    tl.store(dshift_ptr + (number * H + head) * D + d, tl.sum(dy, 0), mask=d < D)
    do = norm_backprop(gain[None, :] * dy, unit, inverse, d, D)
    late_do = do
    if HAS_ALPHA:
        total = tl.cumsum(log_alpha, 0)
        size = spacing(log_alpha, tl.sum(log_alpha, 0), C, BLOCK)
        dscores = -decayed_scores(do, x, total, size, t, PAIR, PRECISION, C)
        dx = -transposed_values(scores, do, total, size, t, PAIR, PRECISION, C)
        tl.store(dlog_ptr + out, do * o - x * dx, mask=there_d)
        late_do = tl.exp(total) * do
    else:
        dscores = -tl.dot(do.to(DOT), tl.trans(x.to(DOT)), input_precision=PRECISION)
        dscores = tl.where(t[:, None] >= t[None, :], dscores, 0.0)
        dx = -tl.dot(tl.trans(scores.to(DOT)), do.to(DOT), input_precision=PRECISION)
    dx -= tl.sum(q * k, 1)[:, None] * do
    tl.store(dx_ptr + out, dx, mask=there_d)
    tl.store(dwrite_ptr + out, eta * dx, mask=there_d)
    query, key, dscores, low = q.to(DOT), k.to(DOT), dscores.to(DOT), late_do.to(DOT)
    tl.store(dk_ptr + out, tl.dot(tl.trans(dscores), query, input_precision=PRECISION), mask=there_d)
    tl.store(share_ptr + save + at, tl.dot(tl.trans(query), low, input_precision=PRECISION), mask=inside)
    dq = dy + tl.dot(dscores, key, input_precision=PRECISION)
    dq += tl.dot(low, tl.trans(weight(starts_ptr + save, at, inside)), input_precision=PRECISION)
    if ANCHORED:
        dq += tl.dot(do.to(DOT), tl.trans(weight(anchor_ptr + base, at, inside).to(DOT)), input_precision=PRECISION)
        tl.store(danchor_ptr + save + at, tl.dot(tl.trans(query), (do - late_do).to(DOT), input_precision=PRECISION), mask=inside)
    tl.store(dq_ptr + out, dq, mask=there_d)


@triton.jit
def linear_scan_backward(
    k_ptr, late_ptr, kept_ptr, u1_ptr, unit_ptr, pull_ptr, bend_ptr, inverse_ptr, mean_ptr, dwrite_ptr, du1_ptr, do_ptr, share_ptr, ends_ptr,
    dend_ptr, dtail_ptr, dw_ptr, first_ptr, length_ptr, chunk_ptr, H: tl.constexpr, D: tl.constexpr, late_token, late_head, late_d,
    C: tl.constexpr, DP: tl.constexpr, HAS_ALPHA: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a sequence and head: dA = b_C dA' + R + K' dO with dO = J g and g = eta dx - late (K dA'), from the last chunk to the first.

    ``dend`` and ``dtail`` are what arrives at the outgoing weight and at an open chunk's starting one, ``dw`` the incoming one's gradient;
    ``ends`` receives dA' of every chunk, ``du1`` and ``do`` g and dO.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, length, chunk0 = tl.load(first_ptr + row), tl.load(length_ptr + row), tl.load(chunk_ptr + row)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    at, inside = d[:, None] * D + d[None, :], (d[:, None] < D) & (d[None, :] < D)
    base = (row * H + head) * D * D
    da = weight(dend_ptr + base, at, inside)
    chunks = (length + C - 1) // C
    for back in range(chunks):
        n = chunks - 1 - back
        token, there = first + n * C, t < (length - n * C).to(tl.int32)
        there_d = there[:, None] & (d[None, :] < D)
        # addresses of 32 bits from a chunk's first token on
        here, out, save = (token * H + head) * D, t[:, None] * H * D + d[None, :], ((chunk0 + n) * H + head) * D * D
        key = tile(k_ptr + here, t, 0, d, H, D, there).to(DOT)
        share = weight(share_ptr + save, at, inside).to(tl.float32)
        low = da.to(DOT)
        tl.store(ends_ptr + save + at, low, mask=inside)
        written = tl.dot(key, low, input_precision=PRECISION)
        late = rows(late_ptr + token * late_token + head * late_head, t, 0, d, late_token, late_head, late_d, there, D)
        g = tile(dwrite_ptr + here, t, 0, d, H, D, there) - late * written
        tl.store(du1_ptr + here + out, g, mask=there_d)
        u1, unit = tile(u1_ptr + here, t, 0, d, H, D, there), tile(unit_ptr + here, t, 0, d, H, D, there)
        c, bend = tile(pull_ptr + here, t, 0, d, H, D, there), tile(bend_ptr + here, t, 0, d, H, D, there)
        inverse = tl.load(inverse_ptr + token * H + head + t * H, mask=there, other=0.0)
        mean_cx = tl.load(mean_ptr + token * H + head + t * H, mask=there, other=0.0)
        do = through_norm(g, unit, u1, c, bend, inverse, mean_cx, d, D).to(DOT)
        tl.store(do_ptr + here + out, do, mask=there_d)
        if HAS_ALPHA:
            da *= tl.load(kept_ptr + ((chunk0 + n) * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        if (n + 1) * C > length:
            da += weight(dtail_ptr + base, at, inside)
        da = tl.dot(tl.trans(key), do, da + share, input_precision=PRECISION)
    tl.store(dw_ptr + base + at, da, mask=inside)


@triton.jit
def linear_write_backward(
    k_ptr, eta_ptr, log_alpha_ptr, u1_ptr, do_ptr, dx_ptr, dv_ptr, starts_ptr, anchor_ptr, ends_ptr, dread_ptr, dk_ptr, deta_ptr, dlog_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d,
    C: tl.constexpr, DP: tl.constexpr, HAS_ALPHA: tl.constexpr, ANCHORED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):
    """One program a chunk and head: from dO and the adjoint dA' at the chunk's end to dk, d eta and d log alpha.

    dk = the read's share - dv + dO A' - (late u1) dA'', and what arrives at late_i u1_i is -k_i dA'.
    """
    number, head = chunk_and_head(H)
    d, t = tl.arange(0, DP), tl.arange(0, C)
    row, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    there_d = there[:, None] & (d[None, :] < D)
    out = token[:, None] * H * D + head * D + d[None, :]
    at, inside = d[:, None] * D + d[None, :], (d[:, None] < D) & (d[None, :] < D)
    save = (number * H + head) * D * D
    a, da = weight(starts_ptr + save, at, inside), weight(ends_ptr + save, at, inside)
    dk = tile(dread_ptr, token, head, d, H, D, there) - tile(dv_ptr, token, head, d, H, D, there)
    whole = a
    if ANCHORED:
        whole = (a.to(tl.float32) + weight(anchor_ptr + (row * H + head) * D * D, at, inside)).to(DOT)
    dk += tl.dot(tile(do_ptr, token, head, d, H, D, there).to(DOT), tl.trans(whole), input_precision=PRECISION)
    key = tile(k_ptr, token, head, d, H, D, there).to(DOT)
    u1, dx = tile(u1_ptr, token, head, d, H, D, there), tile(dx_ptr, token, head, d, H, D, there)
    eta = rows(eta_ptr, token, head, d, eta_token, eta_head, eta_d, there, D)
    dlate = -u1 * tl.dot(key, da, input_precision=PRECISION)
    late = eta
    if HAS_ALPHA:
        log_alpha = decays(log_alpha_ptr, token, head, d, alpha_token, alpha_head, alpha_d, there, D)
        end = tl.sum(log_alpha, 0)
        left = tl.exp(end[None, :] - tl.cumsum(log_alpha, 0))
        late = eta * left
        dend = tl.exp(end) * tl.sum(a.to(tl.float32) * da.to(tl.float32), 0) + tl.sum(late * dlate, 0)
        dlog = tile(dlog_ptr, token, head, d, H, D, there) - late * dlate
        # the sum over a chunk's later tokens turns dL into d log alpha; the chunk's end is every token's
        dlog = tl.sum(dlog, 0)[None, :] - tl.cumsum(dlog, 0) + dlog + dend[None, :]
        # other threads may still read what is written over
        tl.debug_barrier()
        tl.store(dlog_ptr + out, dlog, mask=there_d)
        dlate *= left
    tl.store(deta_ptr + out, u1 * dx + dlate, mask=there_d)
    dk -= tl.dot((late * u1).to(DOT), tl.trans(da), input_precision=PRECISION)
    tl.store(dk_ptr + out, dk, mask=there_d)


@triton.jit
def linear_anchor_backward(
    kept_ptr, ends_ptr, danchor_ptr, da_ptr, length_ptr, chunk_ptr, H: tl.constexpr, D: tl.constexpr,
    C: tl.constexpr, DP: tl.constexpr, EB: tl.constexpr,
):
    """The anchor receives what is not kept of the adjoint, and its own part of the reads, of all chunks in turn."""
    row, head, block = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    d, chunks, chunk0 = tl.arange(0, DP), (tl.load(length_ptr + row) + C - 1) // C, tl.load(chunk_ptr + row)
    e = (block * EB + tl.arange(0, EB))[:, None]
    at, inside = e * D + d[None, :], (e < D) & (d[None, :] < D)
    da = tl.zeros([EB, DP], tl.float32)
    for n in range(chunks):
        save = ((chunk0 + n) * H + head) * D * D
        lost = 1 - tl.load(kept_ptr + ((chunk0 + n) * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        da += lost * weight(ends_ptr + save, at, inside).to(tl.float32) + weight(danchor_ptr + save, at, inside).to(tl.float32)
    tl.store(da_ptr + (row * H + head) * D * D + at, da, mask=inside)
