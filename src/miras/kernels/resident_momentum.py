"""The momentum of a state that lies in registers, in Gluon: S in float32 stays in global memory, where the cache holds it.

Beside W there is no room for S in registers. Each thread reads and writes the entries of S that belong to its entries of W, so none waits
for another.

D channels (64 with padding), E hidden channels (256 with padding), in halves of 128
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from .resident_tiles import half, keep


@gluon.jit
def begin_speed(last_ptr, speed_ptr, D: gl.constexpr, E: gl.constexpr, L: gl.constexpr):
    """Copy the incoming momentum to where the scan keeps it."""
    keep(last_ptr, half(speed_ptr, 0, D, E, L), 0, D, E, L)
    keep(last_ptr, half(speed_ptr, 128, D, E, L), 128, D, E, L)


@gluon.jit
def carry(w, last_ptr, before_s, x, y_s, carried, grown, start: gl.constexpr, D: gl.constexpr, E: gl.constexpr, L: gl.constexpr):
    """W + carried S of one half; S becomes grown S + x y, and what it was goes to ``before_s``."""
    s = half(last_ptr, start, D, E, L)
    before_s.slice(start, 128).store(s.to(before_s.dtype))
    w += carried * s
    s = warpgroup_mma(x, y_s, grown * s)
    keep(last_ptr, s, start, D, E, L)
    return w
