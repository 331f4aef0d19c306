"""The write of all chunks backwards, for Hopper in Gluon: eight warps a chunk and head.

It does what ``write_backward_kernels.write_backward`` does, which says what each step means.

C = 64 tokens of a chunk, D channels (64 with padding), E hidden channels in blocks of 64
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from .links import scale_at
from .resident_reads import folded, product, ready
from .resident_tiles import fetch
from .tiles import chunk_and_head


@gluon.jit
def write_backward_resident(
    late_k_ptr, u1_ptr, late_u1_ptr, do_ptr, starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr, z_ptr, slope_ptr, curve_ptr, move1_ptr, move2_ptr,
    dk_ptr, dy1_ptr, dy2_ptr, dend_ptr, slow_k_ptr, slow_u1_ptr, speeds1_ptr, speeds2_ptr, push1_ptr, push2_ptr, dslow1_ptr, dslow2_ptr, dcarried_ptr, dgrown_ptr, norms_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr, ANCHORED: gl.constexpr, MOMENTUM: gl.constexpr, LINK: gl.constexpr,
):
    """``write_backward_kernels.write_backward``; anchors come in the tokens' dtype."""
    DOT: gl.constexpr = u1_ptr.dtype.element_ty
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    late_k_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    do_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    w1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    w2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    dw1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    dw2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    z_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    slope_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    curve_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    if MOMENTUM:
        slow_k_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        slow_u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        speed1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        speed2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        dspeed1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        dspeed2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)

    number, head = chunk_and_head(H)
    row = gl.load(row_ptr + number)
    n = number - gl.load(chunk_ptr + row)
    begin, count = gl.load(first_ptr + row) + n * 64, gl.load(length_ptr + row) - n * 64
    save, wide = (number * H + head) * E * D, (number * H + head) * E * 64
    slot = ((number + row + 1) * H + head) * E * D
    fetch(late_k_s, late_k_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(u1_s, u1_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(late_u1_s, late_u1_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(do_s, do_ptr + head * D, begin, count, H * D, D, LINES)
    dk, dy1, dy2 = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
    dend = folded(gl.zeros([64, 64], gl.float32, LINES))
    if MOMENTUM:
        fetch(slow_k_s, slow_k_ptr + head * D, begin, count, H * D, D, LINES)
        fetch(slow_u1_s, slow_u1_ptr + head * D, begin, count, H * D, D, LINES)
        dslow1, dslow2 = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
        dcarried, dgrown = folded(gl.zeros([64, 64], gl.float32, LINES)), folded(gl.zeros([64, 64], gl.float32, LINES))
    if LINK > 0:
        scale1, scale2 = scale_at(norms_ptr, (number + row) * H + head, LINK)
    for i in range((E + 63) // 64):
        fetch(w1_s, starts1_ptr + save, i * 64, E - i * 64, D, D, LINES)
        fetch(w2_s, starts2_ptr + save, i * 64, E - i * 64, D, D, LINES)
        fetch(dw1_s, move1_ptr + slot, i * 64, E - i * 64, D, D, LINES)
        fetch(dw2_s, move2_ptr + slot, i * 64, E - i * 64, D, D, LINES)
        fetch(z_s, z_ptr + wide, i * 64, E - i * 64, 64, 64, LINES)
        fetch(slope_s, slope_ptr + wide, i * 64, E - i * 64, 64, 64, LINES)
        fetch(curve_s, curve_ptr + wide, i * 64, E - i * 64, 64, 64, LINES)
        if MOMENTUM:
            fetch(speed1_s, speeds1_ptr + save, i * 64, E - i * 64, D, D, LINES)
            fetch(speed2_s, speeds2_ptr + save, i * 64, E - i * 64, D, D, LINES)
            fetch(dspeed1_s, push1_ptr + slot, i * 64, E - i * 64, D, D, LINES)
            fetch(dspeed2_s, push2_ptr + slot, i * 64, E - i * 64, D, D, LINES)
        async_copy.commit_group()
        ready()
        dy1 = warpgroup_mma(z_s.permute((1, 0)), dw1_s, dy1)
        du2 = product(dw2_s, late_k_s.permute((1, 0)), L)
        if MOMENTUM:
            dslow1 = warpgroup_mma(z_s.permute((1, 0)), dspeed1_s, dslow1)
            du2 = warpgroup_mma(dspeed2_s, slow_k_s.permute((1, 0)), du2)
        dh = curve_s.load(L).to(gl.float32) * du2
        if LINK > 0:
            dz = scale1 * product(w1_s, do_s.permute((1, 0)), L)
            dz = warpgroup_mma(dw1_s, late_u1_s.permute((1, 0)), dz)
        else:
            dz = product(dw1_s, late_u1_s.permute((1, 0)), L)
            dz = warpgroup_mma(w1_s, do_s.permute((1, 0)), dz)
        if MOMENTUM:
            dz = warpgroup_mma(dspeed1_s, slow_u1_s.permute((1, 0)), dz)
        slope = slope_s.load(L).to(gl.float32)
        dh += slope * dz
        if LINK > 0:
            dh *= scale2
        dh = dh.to(DOT)
        u2 = slope * product(w1_s, u1_s.permute((1, 0)), L)
        if LINK > 0:
            u2 *= scale1
        u2 = u2.to(DOT)
        gl.thread_barrier()
        curve_s.store(dh)
        slope_s.store(u2)
        fence_async_shared()
        gl.thread_barrier()
        dk = warpgroup_mma(curve_s.permute((1, 0)), w2_s, dk)
        dy2 = warpgroup_mma(slope_s.permute((1, 0)), dw2_s, dy2)
        if MOMENTUM:
            dslow2 = warpgroup_mma(slope_s.permute((1, 0)), dspeed2_s, dslow2)
            speed1, speed2 = speed1_s.load(LINES).to(gl.float32), speed2_s.load(LINES).to(gl.float32)
            dcarried += folded(speed1 * dw1_s.load(LINES).to(gl.float32) + speed2 * dw2_s.load(LINES).to(gl.float32))
            dgrown += folded(speed1 * dspeed1_s.load(LINES).to(gl.float32) + speed2 * dspeed2_s.load(LINES).to(gl.float32))
        away1, away2 = w1_s.load(LINES).to(gl.float32), w2_s.load(LINES).to(gl.float32)
        if ANCHORED:
            e, j = gl.arange(0, 64, layout=gl.SliceLayout(1, LINES)), gl.arange(0, 64, layout=gl.SliceLayout(0, LINES))
            at = (row * H + head) * E * D + (i * 64 + e)[:, None] * D + j[None, :]
            inside = (i * 64 + e < E)[:, None] & (j < D)[None, :]
            away1 -= gl.load(anchor1_ptr + at, mask=inside, other=0.0).to(gl.float32)
            away2 -= gl.load(anchor2_ptr + at, mask=inside, other=0.0).to(gl.float32)
        dend += folded(away1 * dw1_s.load(LINES).to(gl.float32) + away2 * dw2_s.load(LINES).to(gl.float32))
        gl.thread_barrier()
    t, c = gl.arange(0, 64, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    there = (t < count)[:, None] & (c < D)[None, :]
    out = (begin + t)[:, None] * (H * D) + head * D + c[None, :]
    gl.store(dk_ptr + out, gl.load(dk_ptr + out, mask=there, other=0.0).to(gl.float32) + dk, mask=there)
    gl.store(dy1_ptr + out, (-dy1).to(DOT), mask=there)
    gl.store(dy2_ptr + out, (-dy2).to(DOT), mask=there)
    ends = gl.convert_layout(gl.sum(dend, 0), gl.SliceLayout(0, LINES))
    e = gl.arange(0, 64, layout=gl.SliceLayout(0, LINES))
    gl.store(dend_ptr + (number * H + head) * D + e, ends, mask=e < D)
    if MOMENTUM:
        gl.store(dslow1_ptr + out, (-dslow1).to(DOT), mask=there)
        gl.store(dslow2_ptr + out, (-dslow2).to(DOT), mask=there)
        gl.store(dcarried_ptr + number * H + head, gl.sum(gl.sum(dcarried, 1), 0))
        gl.store(dgrown_ptr + number * H + head, gl.sum(gl.sum(dgrown, 1), 0))
