"""What the Gluon kernels share: sums of several numbers, the hardware's logarithm, tiles between global and shared memory, halves of a weight in registers.

C = 64 tokens of a chunk, D channels (64 with padding), E hidden channels (256 with padding)
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy


@gluon.jit
def add2(a, b, c, d):
    """Two sums at once."""
    return a + c, b + d


@gluon.jit
def add3(a, b, c, d, e, f):
    """Three sums at once."""
    return a + d, b + e, c + f


@gluon.jit
def fetch(smem, ptr, first, count, stride, D: gl.constexpr, L: gl.constexpr):
    """Start copying rows of 64 of a matrix into shared memory, zeros where there is no row or column."""
    r = gl.arange(0, smem.shape[0], layout=gl.SliceLayout(1, L))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    where = ptr + (first + r)[:, None] * stride + c[None, :]
    async_copy.async_copy_global_to_shared(smem, where, mask=(r < count)[:, None] & (c < D)[None, :])


@gluon.jit
def put(ptr, smem, count, D: gl.constexpr, L: gl.constexpr):
    """Copy a tile from shared memory to rows of D at ``ptr``."""
    r = gl.arange(0, smem.shape[0], layout=gl.SliceLayout(1, L))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(ptr + r[:, None] * D + c[None, :], smem.load(L), mask=(r < count)[:, None] & (c < D)[None, :])


@gluon.jit
def half(ptr, start: gl.constexpr, D: gl.constexpr, E: gl.constexpr, L: gl.constexpr):
    """Rows ``start`` to ``start + 128`` of a weight [E,D]."""
    e, d = start + gl.arange(0, 128, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    return gl.load(ptr + e[:, None] * D + d[None, :], mask=(e < E)[:, None] & (d < D)[None, :], other=0.0)


@gluon.jit
def keep(ptr, value, start: gl.constexpr, D: gl.constexpr, E: gl.constexpr, L: gl.constexpr):
    """Write them."""
    e, d = start + gl.arange(0, 128, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(ptr + e[:, None] * D + d[None, :], value, mask=(e < E)[:, None] & (d < D)[None, :])


@gluon.jit
def log2(x):
    """The hardware's logarithm, good to 2^-22."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def exp2(x):
    """The hardware's exponential, good to 2^-22."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)
