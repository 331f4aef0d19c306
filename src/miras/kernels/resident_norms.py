"""Norms of a state that lies in registers, in Gluon: what ``links`` does by blocks.

W = s A with one number a weight, s = max(||A||_q, floor)^(2-q); both weights [E,D] in halves a (rows 0 to 127) and b, zero where padded.
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .links import power
from .resident_tiles import add2, exp2, log2


@gluon.jit
def larger2(a, b, c, d):
    """Two maxima at once."""
    return gl.maximum(a, c), gl.maximum(b, d)


@gluon.jit
def row_largest(a, b):
    """The largest entry of each row of both halves."""
    return gl.max(gl.maximum(gl.abs(a), gl.abs(b)), 1)


@gluon.jit
def quick_power(x, Q: gl.constexpr):
    """x^q for x >= 0: the hardware's logarithm of 0 is -inf, and its exponential of that 0."""
    if Q == 3.0 or Q == 4.0:
        return power(x, Q)
    else:
        return exp2(Q * log2(x))


@gluon.jit
def row_powers(a, b, share, Q: gl.constexpr):
    """Each row's sum of powers relative to the largest entry of all, which neither under- nor overflows."""
    return gl.sum(quick_power(gl.abs(a) * share, Q) + quick_power(gl.abs(b) * share, Q), 1)


@gluon.jit
def state_norms(w1a, w1b, w2a, w2b, Q: gl.constexpr, FLOOR: gl.constexpr):
    """max(||A||_q, floor) of both weights."""
    top1, top2 = gl.reduce((row_largest(w1a, w1b), row_largest(w2a, w2b)), 0, larger2)
    top1, top2 = gl.maximum(top1, FLOOR), gl.maximum(top2, FLOOR)
    total1, total2 = gl.reduce((row_powers(w1a, w1b, 1 / top1, Q), row_powers(w2a, w2b, 1 / top2, Q)), 0, add2)
    norm1 = top1 * gl.exp(gl.log(gl.maximum(total1, 1.0)) / Q)
    return norm1, top2 * gl.exp(gl.log(gl.maximum(total2, 1.0)) / Q)
