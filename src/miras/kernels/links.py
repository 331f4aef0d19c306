"""Device functions of a link W = s A with one number a weight, s = max(||A||_q, floor)^(2-q): Moneta's printed map.

EB hidden channels of a block, DP channels (a power of two), C tokens of a chunk
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl

from .tiles import weight


@triton.jit
def power(x, Q: tl.constexpr):
    """x^q for x >= 0, by products where q is a small whole number."""
    if Q == 0.0:
        return x * 0 + 1.0
    elif Q == 1.0:
        return x
    elif Q == 2.0:
        return x * x
    elif Q == 3.0:
        return x * x * x
    elif Q == 4.0:
        return (x * x) * (x * x)
    else:
        return tl.where(x > 0, tl.exp(Q * tl.log(tl.where(x > 0, x, 1.0))), 0.0)


@triton.jit
def sum_powers(most, total, a, Q: tl.constexpr):
    """One more tile: each row's largest entry so far, and the sum of powers relative to it, which neither under- nor overflows."""
    size = tl.abs(a)
    new = tl.maximum(most, tl.max(size, 1))
    return new, total * power(most / new, Q) + tl.sum(power(size / new[:, None], Q), 1)


@triton.jit
def norm_of(most, total, Q: tl.constexpr):
    """max(||A||_q, floor), given that ``most`` began at the floor."""
    top = tl.max(most, 0)
    return top * tl.exp(tl.log(tl.maximum(tl.sum(total * power(most / top, Q), 0), 1.0)) / Q)


@triton.jit
def scale_of(norm, Q: tl.constexpr):
    """s = ||A||_q^(2-q)."""
    return tl.exp((2.0 - Q) * tl.log(norm))


@triton.jit
def scale_at(norms_ptr, slot, Q: tl.constexpr):
    """Both weights' s in one state."""
    return scale_of(tl.load(norms_ptr + slot * 2), Q), scale_of(tl.load(norms_ptr + slot * 2 + 1), Q)


@triton.jit
def scale_slope(a, norm, Q: tl.constexpr, FLOOR: tl.constexpr):
    """ds/dA = (2-q) s / ||A||_q sign(A) (|A| / ||A||_q)^(q-1), 0 where the floor holds the norm."""
    steep = tl.where(norm > FLOOR, (2.0 - Q) * scale_of(norm, Q) / norm, 0.0)
    share = power(tl.abs(a) / norm, Q - 1.0)
    return steep * tl.where(a > 0, share, tl.where(a < 0, -share, 0.0))


@triton.jit
def through_link(
    ds1, ds2, norms_ptr, a1_ptr, a2_ptr, dw1_ptr, dw2_ptr, move1_ptr, move2_ptr, e, d, D: tl.constexpr, E: tl.constexpr,
    EB: tl.constexpr, NE: tl.constexpr, Q: tl.constexpr, FLOOR: tl.constexpr,
):
    """The adjoint of A takes in what arrived at s."""
    norm1, norm2 = tl.load(norms_ptr), tl.load(norms_ptr + 1)
    for i in range(NE):
        hidden = (i * EB + e)[:, None]
        at, inside = hidden * D + d[None, :], (hidden < E) & (d[None, :] < D)
        a1, a2 = weight(a1_ptr, at, inside).to(tl.float32), weight(a2_ptr, at, inside).to(tl.float32)
        new1 = weight(dw1_ptr, at, inside) + ds1 * scale_slope(a1, norm1, Q, FLOOR)
        new2 = weight(dw2_ptr, at, inside) + ds2 * scale_slope(a2, norm2, Q, FLOOR)
        tl.store(dw1_ptr + at, new1, mask=inside)
        tl.store(dw2_ptr + at, new2, mask=inside)
        tl.store(move1_ptr + at, new1, mask=inside)
        tl.store(move2_ptr + at, new2, mask=inside)
