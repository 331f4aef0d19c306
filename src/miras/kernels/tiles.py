"""Device functions the deep kernels share: tiles of tokens, the norm, gelu, and decays between the tokens of a chunk.

C tokens of a chunk, D channels (DP: a power of two), E hidden channels
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

# what keeps less than e^-60 keeps nothing, and an exponent stays a number
LOWEST = tl.constexpr(-60.0)
# a chunk whose decay is milder is split about its half: e^30 is far from the largest number, and its square too
LARGE = tl.constexpr(-60.0)


@triton.jit
def rows(ptr, token, head, d, stride_token, stride_head, stride_d, there, D):
    """A tile [C,DP] of a tensor in token layout, zeros where there is no token or channel."""
    where = ptr + token[:, None] * stride_token + head * stride_head + d[None, :] * stride_d
    return tl.load(where, mask=there[:, None] & (d[None, :] < D), other=0.0).to(tl.float32)


@triton.jit
def decays(ptr, token, head, d, stride_token, stride_head, stride_d, there, D):
    """log alpha, at least ``LOWEST``."""
    return tl.maximum(rows(ptr, token, head, d, stride_token, stride_head, stride_d, there, D), LOWEST)


@triton.jit
def tile(ptr, token, head, d, H, D, there):
    """A tile [C,DP] of a tensor [T,H,D]."""
    return rows(ptr, token, head, d, H * D, D, 1, there, D)


@triton.jit
def chunk_and_head(H):
    """What a program works on: neighbouring programs have neighbouring heads, which together read and write whole rows of tokens."""
    pair = tl.program_id(0).to(tl.int64)
    return pair // H, pair % H


@triton.jit
def place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C: tl.constexpr):
    """The sequence, tokens and their presence of chunk ``number``."""
    row = tl.load(row_ptr + number)
    n = number - tl.load(chunk_ptr + row)
    return row, tl.load(first_ptr + row) + n * C + t, n * C + t < tl.load(length_ptr + row)


@triton.jit
def stretch(number, row_ptr, first_ptr, length_ptr, chunk_ptr, C: tl.constexpr):
    """The first token of chunk ``number`` and how many of its slots have one."""
    row = tl.load(row_ptr + number)
    before = (number - tl.load(chunk_ptr + row)) * C
    return tl.load(first_ptr + row) + before, tl.minimum(tl.load(length_ptr + row) - before, C).to(tl.int32)


@triton.jit
def past(ptr, number, row_ptr, first_ptr, length_ptr, chunk_ptr, token, head, d, stride_token, stride_head, stride_d, there, D, C: tl.constexpr):
    """The decays from a chunk's start to each of its tokens, as logarithms [C,DP], and to its last one, [DP].

    A slot without a token has the last one's: a block's middle may be such a slot, and no exponent about it is large.
    """
    first, count = stretch(number, row_ptr, first_ptr, length_ptr, chunk_ptr, C)
    at_last = tl.load(ptr + (first + count - 1) * stride_token + head * stride_head + d * stride_d, mask=d < D, other=0.0)
    total = rows(ptr, token, head, d, stride_token, stride_head, stride_d, there, D)
    return tl.where(there[:, None], total, at_last[None, :]), at_last


@triton.jit
def halved(total, end, FAST: tl.constexpr):
    """b_t / h, h / b_t and h, the square root of a chunk's decay: exponents of at most half the chunk's."""
    away = total - 0.5 * end[None, :]
    return power(away, FAST), power(-away, FAST), power(0.5 * end, FAST)


@triton.jit
def power(x, FAST: tl.constexpr):
    """e^x: the hardware's own, good to 2^-22 of it, where products are rounded to 16 bits anyway."""
    if FAST:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [1.4426950408889634 * x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.exp(x)


@triton.jit
def slope_of(slopes_ptr, row, head, H, which: tl.constexpr):
    """How far a write to a sequence's outer (0) or inner (1) weight moves what its chunk's own tokens read."""
    return tl.load(slopes_ptr + (row * H + head) * 2 + which)


@triton.jit
def weight(ptr, at, inside):
    """A tile of a weight, zeros outside it."""
    return tl.load(ptr + at, mask=inside, other=0.0)


@triton.jit
def standardise(x, d, D):
    """(x - mean) / std over the channels that are there, and 1 / std."""
    inside = d[None, :] < D
    mean = tl.sum(x, 1) / D
    centred = tl.where(inside, x - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / D + 1e-6)
    return centred * inverse[:, None], inverse


@triton.jit
def norm_backprop(error, unit, inverse, d, D):
    """(e - mean(e) - unit mean(e unit)) / std: the derivative of standardising, which is its own transpose."""
    along = tl.sum(error * unit, 1) / D
    out = inverse[:, None] * (error - (tl.sum(error, 1) / D)[:, None] - unit * along[:, None])
    return tl.where(d[None, :] < D, out, 0.0)


@triton.jit
def standardise_one(x, d, D):
    """(x - mean) / std of one token's channels, and 1 / std."""
    centred = tl.where(d < D, x - tl.sum(x, 0) / D, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / D + 1e-6)
    return centred * inverse, inverse


@triton.jit
def one_backprop(error, unit, inverse, d, D):
    """The derivative of standardising one token, which is its own transpose."""
    out = inverse * (error - tl.sum(error, 0) / D - unit * (tl.sum(error * unit, 0) / D))
    return tl.where(d < D, out, 0.0)


@triton.jit
def one_error(o, k, v, delta, gain, shift, d, D, BIAS: tl.constexpr, P: tl.constexpr):
    """One token's u1 = LN'(o)[gain c(e)], with the standardised o, 1 / std, e and gain c."""
    unit, inverse = standardise_one(o, d, D)
    error = k + gain * unit + shift - v
    c = tl.where(d < D, gain * BIAS(error, delta, P), 0.0)
    return one_backprop(c, unit, inverse, d, D), unit, inverse, error, c


@triton.jit
def tanh(x, FAST: tl.constexpr):
    """tanh: the hardware's own, good to 2^-11, where products are rounded to 16 bits anyway."""
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        # the exponential of a large number would overflow on its way to 0
        return 2 * tl.sigmoid(tl.maximum(2 * x, -80.0)) - 1


@triton.jit
def gelu(x, FAST: tl.constexpr):
    """The tanh form, x (1 + tanh(z)) / 2 with z = sqrt(2/pi) (x + 0.044715 x^3)."""
    half = 0.5 * x
    return half * tanh(x * (0.7978845608028654 + 0.035677408136300125 * x * x), FAST) + half


@triton.jit
def gelu_slope(x, FAST: tl.constexpr):
    """gelu(x) and gelu'(x) = (1 + tanh) / 2 + x (1 - tanh^2) z' / 2."""
    square = x * x
    th = tanh(x * (0.7978845608028654 + 0.035677408136300125 * square), FAST)
    half = 0.5 * x
    slope = 0.5 * th + 0.5 + half * (1 - th * th) * (0.7978845608028654 + 0.10703222440890037 * square)
    return half * th + half, slope


@triton.jit
def gelu_curve(x, FAST: tl.constexpr):
    """gelu(x), gelu'(x) and gelu''(x) = (1 - tanh^2) (z' + x (z'' / 2 - tanh z'^2))."""
    square = x * x
    th = tanh(x * (0.7978845608028654 + 0.035677408136300125 * square), FAST)
    half = 0.5 * x
    bend = 1 - th * th
    inner = 0.7978845608028654 + 0.10703222440890037 * square
    slope = 0.5 * th + 0.5 + half * bend * inner
    return half * th + half, slope, bend * (inner + x * (0.10703222440890037 * x - th * inner * inner))


@triton.jit
def spacing(log_alpha, end, C: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens go about one middle, so that no exponent is large.

    The whole chunk where its decays are mild, BLOCK where alpha is at least 1e-4, else each token about itself.
    """
    mild = tl.min(end, 0) > LARGE
    usual = tl.min(tl.min(log_alpha, 1), 0) * (BLOCK // 2) > -75.0
    return tl.where(mild, C, tl.where(usual, BLOCK, 1))


@triton.jit
def decayed_scores(q, k, total, size, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr):
    """sum_d q_td k_id exp(L_td - L_id), i <= t: by blocks of rows, each about its own middle."""
    scores = tl.zeros([C, C], tl.float32)
    for block in range(C // size):
        middle = tl.sum(tl.where((t == block * size + size // 2)[:, None], total, 0.0), 0)
        own = (t >= block * size) & (t < (block + 1) * size)
        left = q * tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0))
        seen = t < (block + 1) * size
        right = k * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0))
        part = tl.dot(left.to(DOT), tl.trans(right.to(DOT)), input_precision=PRECISION)
        scores = tl.where(own[:, None], part, scores)
    return tl.where(t[:, None] >= t[None, :], scores, 0.0)


@triton.jit
def decayed_values(scores, u, total, size, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr):
    """sum_{i<=t} s_ti exp(L_td - L_id) u_id, the same way."""
    out = tl.zeros_like(u)
    for block in range(C // size):
        middle = tl.sum(tl.where((t == block * size + size // 2)[:, None], total, 0.0), 0)
        own = (t >= block * size) & (t < (block + 1) * size)
        seen = t < (block + 1) * size
        right = u * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0))
        part = tl.dot(scores.to(DOT), right.to(DOT), input_precision=PRECISION)
        left = tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0))
        out = tl.where(own[:, None], left * part, out)
    return out


@triton.jit
def transposed_values(scores, u, total, size, t, DOT: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr):
    """sum_{t>=i} s_ti exp(L_td - L_id) u_td: what the tokens after i return to it."""
    out = tl.zeros_like(u)
    for block in range(C // size):
        middle = tl.sum(tl.where((t == block * size + size // 2)[:, None], total, 0.0), 0)
        own = (t >= block * size) & (t < (block + 1) * size)
        left = tl.where(own[:, None], u * tl.exp(tl.where(own[:, None], total - middle[None, :], 0.0)), 0.0)
        part = tl.dot(tl.trans(scores.to(DOT)), left.to(DOT), input_precision=PRECISION)
        seen = t < (block + 1) * size
        out += tl.where(seen[:, None], part * tl.exp(tl.where(seen[:, None], middle[None, :] - total, 0.0)), 0.0)
    return out
