"""Moneta's link backwards on Hopper: ``links.through_link`` on an adjoint that lies in registers, in two halves of 128 rows.

C = 64 tokens of a chunk, D channels (64 with padding), E hidden channels (256 with padding)
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from .links import power, scale_of
from .resident_tiles import half, keep


@gluon.jit
def steep(ds, norm, Q: gl.constexpr, FLOOR: gl.constexpr):
    """What arrives at s as it goes to A: ds (2-q) s / ||A||_q, 0 where the floor holds the norm."""
    return gl.where(norm > FLOOR, ds * (2.0 - Q) * scale_of(norm, Q) / norm, 0.0)


@gluon.jit
def linked(dw, a, steepness, inverse_norm, Q: gl.constexpr):
    """dA + steepness sign(A) (|A| / ||A||_q)^(q-1), the sign and one power by A itself."""
    size = gl.abs(a) * inverse_norm
    if Q == 2.0 or Q == 3.0 or Q == 4.0:
        size = power(size, Q - 2.0)
    else:
        # the hardware's own logarithm, good to 2^-22; what is not there is multiplied by 0
        size = gl.maximum(size, 1e-37)
        size = gl.exp2((Q - 2.0) * gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [size], dtype=gl.float32, is_pure=True, pack=1))
    return dw + (steepness * inverse_norm) * a * size


@gluon.jit
def moved(dw, move_s, a_s, steepness, inverse_norm, Q: gl.constexpr, L: gl.constexpr):
    """The adjoint with the chunk's own share and what came through s."""
    return linked(dw + move_s.load(L).to(gl.float32), a_s.load(L).to(gl.float32), steepness, inverse_norm, Q)


@gluon.jit
def own_move(dw, dh_s, k_s, w_s, scale, L: gl.constexpr):
    """dB + s dH' K, and each row's share <dH' K, B> of what arrives at s."""
    own = warpgroup_mma(dh_s, k_s, gl.zeros([128, 64], gl.float32, L), use_acc=False)
    return dw + scale * own, gl.sum(own * w_s.load(L).to(gl.float32), 1)


@gluon.jit
def linked_end(
    dw1a, dw1b, dw2a, dw2b, arrived_ptr, norms_ptr, end1_ptr, end2_ptr, move1_ptr, move2_ptr,
    D: gl.constexpr, E: gl.constexpr, Q: gl.constexpr, FLOOR: gl.constexpr, L: gl.constexpr,
):
    """The adjoint of the outgoing state takes in what the last token of a full chunk, which has read it, sends to s."""
    norm1, norm2 = gl.load(norms_ptr), gl.load(norms_ptr + 1)
    steep1, steep2 = steep(gl.load(arrived_ptr + 1), norm1, Q, FLOOR), steep(gl.load(arrived_ptr + 4), norm2, Q, FLOOR)
    dw1a = linked(dw1a, half(end1_ptr, 0, D, E, L), steep1, 1 / norm1, Q)
    dw1b = linked(dw1b, half(end1_ptr, 128, D, E, L), steep1, 1 / norm1, Q)
    dw2a = linked(dw2a, half(end2_ptr, 0, D, E, L), steep2, 1 / norm2, Q)
    dw2b = linked(dw2b, half(end2_ptr, 128, D, E, L), steep2, 1 / norm2, Q)
    keep(move1_ptr, dw1a, 0, D, E, L)
    keep(move1_ptr, dw1b, 128, D, E, L)
    keep(move2_ptr, dw2a, 0, D, E, L)
    keep(move2_ptr, dw2b, 128, D, E, L)
    return dw1a, dw1b, dw2a, dw2b
