"""The reads of all chunks for Hopper in Gluon: eight warps a chunk and head, two of them at once on a multiprocessor.

They do what ``forward_kernels.readout`` and ``read_backward_kernels.read_backward`` do, which say what each step means, with
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

from .links import scale_at
from .resident_tiles import fetch, put
from .tiles import chunk_and_head, gelu_curve, gelu_slope


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
def carried(whole_s, sigma_ptr, L: gl.constexpr):
    """A token times its share of the momentum, in its own place."""
    async_copy.wait_group(0)
    gl.thread_barrier()
    share = gl.load(sigma_ptr + gl.arange(0, 64, layout=gl.SliceLayout(1, L)))
    part = whole_s.load(L).to(gl.float32) * share[:, None]
    gl.thread_barrier()
    whole_s.store(part.to(whole_s.dtype))


@gluon.jit
def folded(x):
    """Both rows that a thread holds in one: half of the registers."""
    return gl.sum(gl.reshape(x, [2, 32, 64]), 0)


@gluon.jit
def product(a, b, L: gl.constexpr):
    """a b, from nothing."""
    return warpgroup_mma(a, b, gl.zeros([64, 64], gl.float32, L), use_acc=False)


@gluon.jit
def mapped(scale, next_scale, count, L: gl.constexpr):
    """The s of a link that each token reads with: the last of a full chunk reads the state after it."""
    return gl.where((gl.arange(0, 64, layout=L) == 63) & (count >= 64), next_scale, scale)


@gluon.jit
def readout_resident(
    q_ptr, late_q_ptr, k_ptr, u1_ptr, scores2_ptr, scores1_ptr, o_ptr, o_side_ptr, starts1_ptr, starts2_ptr, side1_ptr, side2_ptr, sigma_ptr, norms_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr, ANCHORED: gl.constexpr, MOMENTUM: gl.constexpr, LINK: gl.constexpr,
):
    """``forward_kernels.readout``; ``side`` are the anchors in the tokens' dtype, or the momentum at each chunk's start."""
    SIDE: gl.constexpr = ANCHORED or MOMENTUM
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
    if SIDE:
        towards_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)

    number, head = chunk_and_head(H)
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
    base = save if MOMENTUM else (row * H + head) * E * D
    if SIDE:
        fetch(towards_s, q_ptr + head * D, begin, count, H * D, D, LINES)
        fetch(a1_s, side1_ptr + base, 0, E, D, D, LINES)
        fetch(a2_s, side2_ptr + base, 0, E, D, D, LINES)
    async_copy.commit_group()
    if SIDE:
        if MOMENTUM:
            carried(towards_s, sigma_ptr + (number * H + head) * 64, LINES)
        else:
            apart(towards_s, late_s, LINES)
        o_side = gl.zeros([64, 64], gl.float32, L)
    if LINK > 0:
        scale1, scale2 = scale_at(norms_ptr, (number + row) * H + head, LINK)
        _own1, next2 = scale_at(norms_ptr, (number + row + 1) * H + head, LINK)
        own2 = mapped(scale2, next2, count, gl.SliceLayout(0, L))[None, :]
    o, scores = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
    for block in range((E + 63) // 64):
        # the difference is zero, but the compiler does not know: else it keeps a running address for every tensor and spills
        i = block + gl.load(row_ptr + number) - row
        ready()
        h = product(w2_s, key_s.permute((1, 0)), L)
        if LINK > 0:
            h *= scale2
        z, slope = gelu_slope(h, True)
        z_s.store(z.to(DOT))
        u2 = slope * product(w1_s, u1_s.permute((1, 0)), L)
        if LINK > 0:
            u2 *= scale1
        u2_s.store(u2.to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        h_q = product(u2_s, s2_s.permute((1, 0)), L)
        h_q = warpgroup_mma(w2_s, late_s.permute((1, 0)), -h_q)
        if SIDE:
            h_q = warpgroup_mma(a2_s, towards_s.permute((1, 0)), h_q)
        if LINK > 0:
            h_q *= own2
        z_q, _ = gelu_slope(h_q, True)
        z_q_s.store(z_q.to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        scores = warpgroup_mma(z_q_s.permute((1, 0)), z_s, scores)
        o = warpgroup_mma(z_q_s.permute((1, 0)), w1_s, o)
        if SIDE:
            o_side = warpgroup_mma(z_q_s.permute((1, 0)), a1_s, o_side)
        gl.thread_barrier()
        if SIDE:
            fetch(a1_s, side1_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
            fetch(a2_s, side2_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        fetch(w1_s, starts1_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        fetch(w2_s, starts2_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        async_copy.commit_group()
    async_copy.wait_group(0)
    t, c = gl.arange(0, 64, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(scores1_ptr + square + t[:, None] * 64 + c[None, :], gl.where(t[:, None] >= c[None, :], scores, 0.0).to(DOT))
    out = (begin + t)[:, None] * (H * D) + head * D + c[None, :]
    gl.store(o_ptr + out, o, mask=(t < count)[:, None] & (c < D)[None, :])
    if SIDE:
        gl.store(o_side_ptr + out, o_side, mask=(t < count)[:, None] & (c < D)[None, :])


@gluon.jit
def read_backward_resident(
    q_ptr, late_q_ptr, k_ptr, eta_ptr, u1_ptr, do_ptr, late_do_ptr, scores2_ptr, dscores1_ptr, dscores2_ptr, starts1_ptr, starts2_ptr,
    side1_ptr, side2_ptr, dq_ptr, dq_side_ptr, dk_ptr, dx_ptr, du1_ptr, z_ptr, slope_ptr, curve_ptr, move1_ptr, move2_ptr,
    dside1_ptr, dside2_ptr, sigma_ptr, norms_ptr, dscale_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr, eta_token, eta_head, eta_d, ANCHORED: gl.constexpr,
    MOMENTUM: gl.constexpr, LINK: gl.constexpr, LED: gl.constexpr,
):
    """``read_backward_kernels.read_backward``; ``side`` are the anchors in the tokens' dtype, or the momentum at each chunk's start."""
    SIDE: gl.constexpr = ANCHORED or MOMENTUM
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
    if SIDE:
        towards_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        towards_do_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        a2_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        f_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
        g_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)

    number, head = chunk_and_head(H)
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
    base = save if MOMENTUM else (row * H + head) * E * D
    if SIDE:
        fetch(towards_s, q_ptr + head * D, begin, count, H * D, D, LINES)
        fetch(towards_do_s, do_ptr + head * D, begin, count, H * D, D, LINES)
        fetch(a1_s, side1_ptr + base, 0, E, D, D, LINES)
        fetch(a2_s, side2_ptr + base, 0, E, D, D, LINES)
    async_copy.commit_group()
    if SIDE:
        if MOMENTUM:
            carried(towards_s, sigma_ptr + (number * H + head) * 64, LINES)
            carried(towards_do_s, sigma_ptr + (number * H + head) * 64, LINES)
        else:
            apart(towards_s, late_s, LINES)
            apart(towards_do_s, do_s, LINES)
        dq_side = gl.zeros([64, 64], gl.float32, L)
    dq, ds2 = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
    dk, du1 = gl.zeros([64, 64], gl.float32, L), gl.zeros([64, 64], gl.float32, L)
    if LINK > 0:
        scale1, scale2 = scale_at(norms_ptr, (number + row) * H + head, LINK)
        _own1, next2 = scale_at(norms_ptr, (number + row + 1) * H + head, LINK)
        own2 = mapped(scale2, next2, count, gl.SliceLayout(0, L))[None, :]
    for i in range((E + 63) // 64):
        ready()
        h = product(w2_s, key_s.permute((1, 0)), L)
        if LINK > 0:
            h *= scale2
        z, slope, curve = gelu_curve(h, True)
        a_s.store(z.to(DOT))
        b_s.store(slope.to(DOT))
        a = product(w1_s, u1_s.permute((1, 0)), L)
        if LINK > 0:
            a *= scale1
        c_s.store((curve * a).to(DOT))
        d_s.store((slope * a).to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        h_q = product(d_s, s2_s.permute((1, 0)), L)
        h_q = warpgroup_mma(w2_s, late_s.permute((1, 0)), -h_q)
        if SIDE:
            h_q = warpgroup_mma(a2_s, towards_s.permute((1, 0)), h_q)
        if LINK > 0:
            h_q *= own2
        z_q, slope_q = gelu_slope(h_q, True)
        e_s.store(z_q.to(DOT))
        dz_q = product(w1_s, do_s.permute((1, 0)), L)
        dz_q = warpgroup_mma(a_s, ds1_s.permute((1, 0)), dz_q)
        if SIDE:
            dz_q = warpgroup_mma(a1_s, towards_do_s.permute((1, 0)), dz_q)
        put(z_ptr + wide + i * 4096, a_s, E - i * 64, 64, LINES)
        put(slope_ptr + wide + i * 4096, b_s, E - i * 64, 64, LINES)
        put(curve_ptr + wide + i * 4096, c_s, E - i * 64, 64, LINES)
        gl.thread_barrier()
        dh_q = slope_q * dz_q
        if LINK > 0:
            dh_q *= own2
        a_s.store(dh_q.to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        du2 = product(a_s, s2_s, L)
        slope = b_s.load(L).to(gl.float32)
        dh = -c_s.load(L).to(gl.float32) * du2
        da = -slope * du2
        if LINK > 0:
            da *= scale1
        da = da.to(DOT)
        dz = product(e_s, ds1_s, L)
        dh += slope * dz
        if LINK > 0:
            dh *= scale2
        dh = dh.to(DOT)
        gl.thread_barrier()
        b_s.store(da)
        c_s.store(dh)
        dq = warpgroup_mma(a_s.permute((1, 0)), w2_s, dq)
        ds2 = warpgroup_mma(a_s.permute((1, 0)), d_s, ds2)
        if SIDE:
            dq_side = warpgroup_mma(a_s.permute((1, 0)), a2_s, dq_side)
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
        if SIDE:
            fetch(a1_s, side1_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
            fetch(a2_s, side2_ptr + base, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
            put(dside1_ptr + (slot if MOMENTUM else save) + i * 64 * D, f_s, E - i * 64, D, LINES)
            put(dside2_ptr + (slot if MOMENTUM else save) + i * 64 * D, g_s, E - i * 64, D, LINES)
        fetch(w1_s, starts1_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        fetch(w2_s, starts2_ptr + save, (i + 1) * 64, E - (i + 1) * 64, D, D, LINES)
        async_copy.commit_group()
        put(move1_ptr + slot + i * 64 * D, a_s, E - i * 64, D, LINES)
        put(move2_ptr + slot + i * 64 * D, d_s, E - i * 64, D, LINES)
    async_copy.wait_group(0)
    t, c = gl.arange(0, 64, layout=gl.SliceLayout(1, L)), gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    gl.store(dscores2_ptr + square + t[:, None] * 64 + c[None, :], gl.where(t[:, None] >= c[None, :], -ds2, 0.0).to(DOT))
    if LINK > 0:
        # sums over hidden channels of a product's error times the product itself are those of its operand times that operand's error
        bare = gl.sum(late_s.load(L).to(gl.float32) * dq - s2_s.load(L).to(gl.float32) * ds2, 1)
        if SIDE:
            bare += gl.sum(towards_s.load(L).to(gl.float32) * dq_side, 1)
        bare /= mapped(scale2, next2, count, gl.SliceLayout(1, L))
        last = (t == 63) & (count >= 64)
        at_scale = dscale_ptr + (number * H + head) * 5
        gl.store(at_scale + 2, gl.sum(gl.sum(u1_s.load(L).to(gl.float32) * du1, 1), 0) / scale1)
        own = gl.sum(gl.sum(key_s.load(L).to(gl.float32) * dk, 1), 0) / scale2
        gl.store(at_scale + 3, own + gl.sum(gl.where(last, 0.0, bare), 0))
        gl.store(at_scale + 4, gl.sum(gl.where(last, bare, 0.0), 0))
    there = (t < count)[:, None] & (c < D)[None, :]
    out = (begin + t)[:, None] * (H * D) + head * D + c[None, :]
    gl.store(dq_ptr + out, dq, mask=there)
    if SIDE:
        gl.store(dq_side_ptr + out, dq_side, mask=there)
    gl.store(dk_ptr + out, dk, mask=there)
    steps = there & (t >= LED)[:, None]
    eta = gl.load(eta_ptr + (begin + t)[:, None] * eta_token + head * eta_head + c[None, :] * eta_d, mask=steps, other=0.0).to(gl.float32)
    gl.store(du1_ptr + out, eta * gl.load(dx_ptr + out, mask=there, other=0.0).to(gl.float32) + du1, mask=there)
