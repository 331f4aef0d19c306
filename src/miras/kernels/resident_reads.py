"""The kernels that are parallel over chunks, for Hopper in Gluon: eight warps a chunk and head, two of them at once on a multiprocessor.

They do what ``forward_kernels.readout``, ``backward_kernels.read_backward`` and ``write_backward`` do, which say what each step means, with
every operand placed by hand: tokens' tiles stay in shared memory, hidden tiles pass through a few places there.

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

from .resident_tiles import fetch, put
from .tiles import gelu_curve, gelu_slope


@gluon.jit
def ready():
    """All copies have arrived, and the matrix units may read what was written to shared memory."""
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def apart(whole_s, late_s, L: gl.constexpr):
    """What a token does not keep of itself: whole - late, in the place of whole."""
    async_copy.wait_group(0)
    gl.thread_barrier()
    rest = whole_s.load(L).to(gl.float32) - late_s.load(L).to(gl.float32)
    gl.thread_barrier()
    whole_s.store(rest.to(whole_s.dtype))


@gluon.jit
def folded(x):
    """Both rows that a thread holds in one: half of the registers."""
    return gl.sum(gl.reshape(x, [2, 32, 64]), 0)


@gluon.jit
def product(a, b, L: gl.constexpr):
    """a b, from nothing."""
    return warpgroup_mma(a, b, gl.zeros([64, 64], gl.float32, L), use_acc=False)


@gluon.jit
def readout_resident(
    q_ptr, late_q_ptr, k_ptr, u1_ptr, scores2_ptr, scores1_ptr, o_ptr, o_anchor_ptr, starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr, ANCHORED: gl.constexpr,
):
    """``forward_kernels.readout``; anchors come in the tokens' dtype."""
    DOT: gl.constexpr = k_ptr.dtype.element_ty
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    key_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    s2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    w1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    w2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    z_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    u2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    z_q_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    if ANCHORED:
        towards_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)

    number, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
    row = gl.load(row_ptr + number)
    n = number - gl.load(chunk_ptr + row)
    begin, count = gl.load(first_ptr + row) + n * 64, gl.load(length_ptr + row) - n * 64
    save, square = (number * H + head) * E * D, (number * H + head) * 4096
    fetch(w1_s, starts1_ptr + save, 0, E, D, D, LINES)
    fetch(w2_s, starts2_ptr + save, 0, E, D, D, LINES)
    fetch(key_s, k_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(u1_s, u1_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(late_s, late_q_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(s2_s, scores2_ptr + square, 0, 64, 64, 64, LINES)
    base = (row * H + head) * E * D
    if ANCHORED:
        fetch(towards_s, q_ptr + head * D, begin, count, H * D, D, LINES)
        fetch(a1_s, anchor1_ptr + base, 0, E, D, D, LINES)
        fetch(a2_s, anchor2_ptr + base, 0, E, D, D, LINES)
    async_copy.commit_group()
    if ANCHORED:
        apart(towards_s, late_s, LINES)
        o_anchor = gl.zeros([64, 64], gl.float32, L)
    o, scores = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
    for block in range((E + 63) // 64):
        # the difference is zero, but the compiler does not know: else it keeps a running address for every tensor and spills
        i = block + gl.load(row_ptr + number) - row
        ready()
        z, slope = gelu_slope(product(w2_s, key_s.permute((1, 0)), L), True)
        z_s.store(z.to(DOT))
        u2_s.store((slope * product(w1_s, u1_s.permute((1, 0)), L)).to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        h_q = product(u2_s, s2_s.permute((1, 0)), L)
        h_q = warpgroup_mma(w2_s, late_s.permute((1, 0)), -h_q)
        if ANCHORED:
            h_q = warpgroup_mma(a2_s, towards_s.permute((1, 0)), h_q)
        z_q, _ = gelu_slope(h_q, True)
        z_q_s.store(z_q.to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        scores = warpgroup_mma(z_q_s.permute((1, 0)), z_s, scores)
        o = warpgroup_mma(z_q_s.permute((1, 0)), w1_s, o)
        if ANCHORED:
            o_anchor = warpgroup_mma(z_q_s.permute((1, 0)), a1_s, o_anchor)
        gl.thread_barrier()
        if ANCHORED:
            fetch(a1_s, anchor1_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
            fetch(a2_s, anchor2_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        fetch(w1_s, starts1_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        fetch(w2_s, starts2_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        async_copy.commit_group()
    async_copy.wait_group(0)
    t, c = gl.arange(0, 64, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(scores1_ptr + square + t[:, None] * 64 + c[None, :], gl.where(t[:, None] >= c[None, :], scores, 0.0).to(DOT))
    out = (begin + t)[:, None] * (H * D) + head * D + c[None, :]
    gl.store(o_ptr + out, o, mask=(t < count)[:, None] & (c < D)[None, :])
    if ANCHORED:
        gl.store(o_anchor_ptr + out, o_anchor, mask=(t < count)[:, None] & (c < D)[None, :])


@gluon.jit
def read_backward_resident(
    q_ptr, late_q_ptr, k_ptr, eta_ptr, u1_ptr, do_ptr, late_do_ptr, scores2_ptr, dscores1_ptr, dscores2_ptr, starts1_ptr, starts2_ptr,
    anchor1_ptr, anchor2_ptr, dq_ptr, dq_anchor_ptr, dk_ptr, dx_ptr, du1_ptr, z_ptr, slope_ptr, curve_ptr, move1_ptr, move2_ptr,
    danchor1_ptr, danchor2_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr, eta_token, eta_head, eta_d, ANCHORED: gl.constexpr,
):
    """``backward_kernels.read_backward``; anchors come in the tokens' dtype."""
    DOT: gl.constexpr = k_ptr.dtype.element_ty
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    key_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    do_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    s2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    ds1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    w1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    w2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    a_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    b_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    c_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    d_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    e_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    if ANCHORED:
        towards_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        towards_do_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        f_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        g_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)

    number, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
    row = gl.load(row_ptr + number)
    n = number - gl.load(chunk_ptr + row)
    begin, count = gl.load(first_ptr + row) + n * 64, gl.load(length_ptr + row) - n * 64
    save, wide, square = (number * H + head) * E * D, (number * H + head) * E * 64, (number * H + head) * 4096
    slot = ((number + row) * H + head) * E * D
    fetch(w1_s, starts1_ptr + save, 0, E, D, D, LINES)
    fetch(w2_s, starts2_ptr + save, 0, E, D, D, LINES)
    fetch(key_s, k_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(u1_s, u1_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(late_s, late_q_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(do_s, late_do_ptr + head * D, begin, count, H * D, D, LINES)
    fetch(s2_s, scores2_ptr + square, 0, 64, 64, 64, LINES)
    fetch(ds1_s, dscores1_ptr + square, 0, 64, 64, 64, LINES)
    base = (row * H + head) * E * D
    if ANCHORED:
        fetch(towards_s, q_ptr + head * D, begin, count, H * D, D, LINES)
        fetch(towards_do_s, do_ptr + head * D, begin, count, H * D, D, LINES)
        fetch(a1_s, anchor1_ptr + base, 0, E, D, D, LINES)
        fetch(a2_s, anchor2_ptr + base, 0, E, D, D, LINES)
    async_copy.commit_group()
    if ANCHORED:
        apart(towards_s, late_s, LINES)
        apart(towards_do_s, do_s, LINES)
        dq_anchor = gl.zeros([64, 64], gl.float32, L)
    dq, ds2 = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
    dk, du1 = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
    for i in range((E + 63) // 64):
        ready()
        z, slope, curve = gelu_curve(product(w2_s, key_s.permute((1, 0)), L), True)
        a_s.store(z.to(DOT))
        b_s.store(slope.to(DOT))
        a = product(w1_s, u1_s.permute((1, 0)), L)
        c_s.store((curve * a).to(DOT))
        d_s.store((slope * a).to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        h_q = product(d_s, s2_s.permute((1, 0)), L)
        h_q = warpgroup_mma(w2_s, late_s.permute((1, 0)), -h_q)
        if ANCHORED:
            h_q = warpgroup_mma(a2_s, towards_s.permute((1, 0)), h_q)
        z_q, slope_q = gelu_slope(h_q, True)
        e_s.store(z_q.to(DOT))
        dz_q = product(w1_s, do_s.permute((1, 0)), L)
        dz_q = warpgroup_mma(a_s, ds1_s.permute((1, 0)), dz_q)
        if ANCHORED:
            dz_q = warpgroup_mma(a1_s, towards_do_s.permute((1, 0)), dz_q)
        put(z_ptr + wide + i * 4096, a_s, E - i * 64, 64, LINES)
        put(slope_ptr + wide + i * 4096, b_s, E - i * 64, 64, LINES)
        put(curve_ptr + wide + i * 4096, c_s, E - i * 64, 64, LINES)
        gl.thread_barrier()
        a_s.store((slope_q * dz_q).to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        du2 = product(a_s, s2_s, L)
        slope = b_s.load(L).to(gl.float32)
        dh = -c_s.load(L).to(gl.float32) * du2
        da = (-slope * du2).to(DOT)
        dz = product(e_s, ds1_s, L)
        dh = (dh + slope * dz).to(DOT)
        gl.thread_barrier()
        b_s.store(da)
        c_s.store(dh)
        dq = warpgroup_mma(a_s.permute((1, 0)), w2_s, dq)
        ds2 = warpgroup_mma(a_s.permute((1, 0)), d_s, ds2)
        if ANCHORED:
            dq_anchor = warpgroup_mma(a_s.permute((1, 0)), a2_s, dq_anchor)
            f_s.store(product(e_s, towards_do_s, L).to(DOT))
            g_s.store(product(a_s, towards_s, L).to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        move = product(a_s, late_s, L)
        move = warpgroup_mma(c_s, key_s, move)
        d_s.store(move.to(DOT))
        move = product(e_s, do_s, L)
        move = warpgroup_mma(b_s, u1_s, move)
        gl.thread_barrier()
        a_s.store(move.to(DOT))
        du1 = warpgroup_mma(b_s.permute((1, 0)), w1_s, du1)
        dk = warpgroup_mma(c_s.permute((1, 0)), w2_s, dk)
        gl.thread_barrier()
        if ANCHORED:
            fetch(a1_s, anchor1_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
            fetch(a2_s, anchor2_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
            put(danchor1_ptr + save + i * 64 * D, f_s, E - i * 64, D, LINES)
            put(danchor2_ptr + save + i * 64 * D, g_s, E - i * 64, D, LINES)
        fetch(w1_s, starts1_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        fetch(w2_s, starts2_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        async_copy.commit_group()
        put(move1_ptr + slot + i * 64 * D, a_s, E - i * 64, D, LINES)
        put(move2_ptr + slot + i * 64 * D, d_s, E - i * 64, D, LINES)
    async_copy.wait_group(0)
    t, c = gl.arange(0, 64, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(dscores2_ptr + square + t[:, None] * 64 + c[None, :], gl.where(t[:, None] >= c[None, :], -ds2, 0.0).to(DOT))
    there = (t < count)[:, None] & (c < D)[None, :]
    out = (begin + t)[:, None] * (H * D) + head * D + c[None, :]
    gl.store(dq_ptr + out, dq, mask=there)
    if ANCHORED:
        gl.store(dq_anchor_ptr + out, dq_anchor, mask=there)
    gl.store(dk_ptr + out, dk, mask=there)
    eta = gl.load(eta_ptr + (begin + t)[:, None] * eta_token + head * eta_head + c[None, :] * eta_d, mask=there, other=0.0)
    gl.store(du1_ptr + out, eta * gl.load(dx_ptr + out, mask=there, other=0.0).to(gl.float32) + du1, mask=there)


@gluon.jit
def write_backward_resident(
    late_k_ptr, u1_ptr, late_u1_ptr, do_ptr, starts1_ptr, starts2_ptr, anchor1_ptr, anchor2_ptr, z_ptr, slope_ptr, curve_ptr, move1_ptr, move2_ptr,
    dk_ptr, dy1_ptr, dy2_ptr, dend_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr, ANCHORED: gl.constexpr,
):
    """``backward_kernels.write_backward``; anchors come in the tokens' dtype."""
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

    number, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
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
    for i in range((E + 63) // 64):
        fetch(w1_s, starts1_ptr + save, i * 64, E - i * 64, D, D, LINES)
        fetch(w2_s, starts2_ptr + save, i * 64, E - i * 64, D, D, LINES)
        fetch(dw1_s, move1_ptr + slot, i * 64, E - i * 64, D, D, LINES)
        fetch(dw2_s, move2_ptr + slot, i * 64, E - i * 64, D, D, LINES)
        fetch(z_s, z_ptr + wide, i * 64, E - i * 64, 64, 64, LINES)
        fetch(slope_s, slope_ptr + wide, i * 64, E - i * 64, 64, 64, LINES)
        fetch(curve_s, curve_ptr + wide, i * 64, E - i * 64, 64, 64, LINES)
        async_copy.commit_group()
        ready()
        dy1 = warpgroup_mma(z_s.permute((1, 0)), dw1_s, dy1)
        du2 = product(dw2_s, late_k_s.permute((1, 0)), L)
        dh = curve_s.load(L).to(gl.float32) * du2
        dz = product(dw1_s, late_u1_s.permute((1, 0)), L)
        dz = warpgroup_mma(w1_s, do_s.permute((1, 0)), dz)
        slope = slope_s.load(L).to(gl.float32)
        dh = (dh + slope * dz).to(DOT)
        u2 = (slope * product(w1_s, u1_s.permute((1, 0)), L)).to(DOT)
        gl.thread_barrier()
        curve_s.store(dh)
        slope_s.store(u2)
        fence_async_shared()
        gl.thread_barrier()
        dk = warpgroup_mma(curve_s.permute((1, 0)), w2_s, dk)
        dy2 = warpgroup_mma(slope_s.permute((1, 0)), dw2_s, dy2)
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
    gl.store(dk_ptr + out, gl.load(dk_ptr + out, mask=there, other=0.0) + dk, mask=there)
    gl.store(dy1_ptr + out, (-dy1).to(DOT), mask=there)
    gl.store(dy2_ptr + out, (-dy2).to(DOT), mask=there)
    ends = gl.convert_layout(gl.sum(dend, 0), gl.SliceLayout(0, LINES))
    e = gl.arange(0, 64, layout=gl.SliceLayout(0, LINES))
    gl.store(dend_ptr + (number * H + head) * D + e, ends, mask=e < D)
