"""The two scans for Hopper in Gluon, with the state in registers: a chunk's products read copies in shared memory.

For 16-bit products, chunks of 64 tokens, at most 64 channels and 256 hidden ones. They do what ``forward_kernels.scan`` and
``backward_kernels.scan_backward`` do, which say what each step means; eight warps, each warpgroup half of the hidden channels.

C = 64 tokens of a chunk, D channels (64 with padding), E hidden channels (256 with padding)
"""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from .tiles import gelu_slope


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
def scan_resident(
    k_ptr, v_ptr, late_ptr, late_k_ptr, kept_ptr, delta_ptr, w1_ptr, w2_ptr, anchor1_ptr, anchor2_ptr, gain_ptr, shift_ptr,
    starts1_ptr, starts2_ptr, u1_ptr, late_u1_ptr, o_ptr, end1_ptr, end2_ptr, tail1_ptr, tail2_ptr,
    first_ptr, length_ptr, chunk_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr,
    BIAS: gl.constexpr, P: gl.constexpr, HAS_DELTA: gl.constexpr, ANCHORED: gl.constexpr,
):
    """``forward_kernels.scan`` with W1' and W2 in registers; ``delta`` is [T,H,D] in float32."""
    DOT: gl.constexpr = k_ptr.dtype.element_ty
    EC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16])
    CD: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=EC, k_width=2)
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 8, [1, 0])
    w1_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    w2_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    z_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    k_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    v_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_k_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    slope_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    delta_s = gl.allocate_shared_memory(gl.float32, [64, 64], PLAIN)

    row, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
    first, length, chunk0 = gl.load(first_ptr + row), gl.load(length_ptr + row), gl.load(chunk_ptr + row)
    base, stride = (row * H + head) * E * D, H * D
    d = gl.arange(0, 64, layout=gl.SliceLayout(0, EC))
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, CD))
    j = gl.arange(0, 64, layout=gl.SliceLayout(0, CD))
    w1a, w1b = half(w1_ptr + base, 0, D, E, EC), half(w1_ptr + base, 128, D, E, EC)
    w2a, w2b = half(w2_ptr + base, 0, D, E, EC), half(w2_ptr + base, 128, D, E, EC)
    chunks = (length + 63) // 64
    fetch(k_s, k_ptr + head * D, first, length, stride, D, LINES)
    fetch(v_s, v_ptr + head * D, first, length, stride, D, LINES)
    fetch(late_s, late_ptr + head * D, first, length, stride, D, LINES)
    fetch(late_k_s, late_k_ptr + head * D, first, length, stride, D, LINES)
    if HAS_DELTA:
        fetch(delta_s, delta_ptr + head * D, first, length, stride, D, SINGLES)
    async_copy.commit_group()
    for step in range(chunks):
        # the difference is zero, but the compiler does not know: else it keeps a running address for every tensor and spills
        n = step + gl.load(first_ptr + row) - first
        number = chunk0 + n
        w1_s.slice(0, 128).store(w1a.to(DOT))
        w1_s.slice(128, 128).store(w1b.to(DOT))
        w2_s.slice(0, 128).store(w2a.to(DOT))
        w2_s.slice(128, 128).store(w2b.to(DOT))
        if (n + 1) * 64 > length:
            keep(tail1_ptr + base, w1a, 0, D, E, EC)
            keep(tail1_ptr + base, w1b, 128, D, E, EC)
            keep(tail2_ptr + base, w2a, 0, D, E, EC)
            keep(tail2_ptr + base, w2b, 128, D, E, EC)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        put(starts1_ptr + (number * H + head) * E * D, w1_s, E, D, LINES)
        put(starts2_ptr + (number * H + head) * E * D, w2_s, E, D, LINES)
        for i in gl.static_range(2):
            h = warpgroup_mma(w2_s.slice(i * 128, 128), k_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, EC), use_acc=False)
            z, slope = gelu_slope(h, True)
            z_s.slice(i * 128, 128).store(z.to(DOT))
            slope_s.slice(i * 128, 128).store(slope.to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        o = warpgroup_mma(z_s.permute((1, 0)), w1_s, gl.zeros([64, 64], gl.float32, CD), use_acc=False)
        there = ((n * 64 + t) < length)[:, None] & (j < D)[None, :]
        gain = gl.load(gain_ptr + head * D + j, mask=j < D, other=0.0)[None, :]
        shift = gl.load(shift_ptr + head * D + j, mask=j < D, other=0.0)[None, :]
        total, squares = gl.reduce((o, o * o), 1, add2)
        mean = total / D
        inverse = gl.rsqrt(squares / D - mean * mean + 1e-6)
        unit = gl.where((j < D)[None, :], (o - mean[:, None]) * inverse[:, None], 0.0)
        error = k_s.load(CD).to(gl.float32) + gain * unit + shift - v_s.load(CD).to(gl.float32)
        delta = error
        if HAS_DELTA:
            delta = delta_s.load(CD)
        c = gl.where(there, gain * BIAS(error, delta, P), 0.0)
        total, along = gl.reduce((c, c * unit), 1, add2)
        u1 = inverse[:, None] * (c - (total / D)[:, None] - unit * (along / D)[:, None])
        u1 = gl.where((j < D)[None, :], u1, 0.0)
        late_u1 = (-late_s.load(CD).to(gl.float32) * u1).to(DOT)
        u1_s.store(u1.to(DOT))
        late_u1_s.store(late_u1)
        out = (first + n * 64 + t)[:, None] * stride + head * D + j[None, :]
        gl.store(u1_ptr + out, u1.to(DOT), mask=there)
        gl.store(late_u1_ptr + out, late_u1, mask=there)
        gl.store(o_ptr + out, o.to(DOT), mask=there)
        fence_async_shared()
        gl.thread_barrier()
        ahead = first + (n + 1) * 64
        left = length - (n + 1) * 64
        fetch(k_s, k_ptr + head * D, ahead, left, stride, D, LINES)
        fetch(v_s, v_ptr + head * D, ahead, left, stride, D, LINES)
        fetch(late_s, late_ptr + head * D, ahead, left, stride, D, LINES)
        if HAS_DELTA:
            fetch(delta_s, delta_ptr + head * D, ahead, left, stride, D, SINGLES)
        async_copy.commit_group()
        kept = gl.load(kept_ptr + (number * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        w1a, w2a = kept * w1a, kept * w2a
        w1b, w2b = kept * w1b, kept * w2b
        if ANCHORED:
            w1a += (1 - kept) * half(anchor1_ptr + base, 0, D, E, EC)
            w1b += (1 - kept) * half(anchor1_ptr + base, 128, D, E, EC)
            w2a += (1 - kept) * half(anchor2_ptr + base, 0, D, E, EC)
            w2b += (1 - kept) * half(anchor2_ptr + base, 128, D, E, EC)
        w1a = warpgroup_mma(z_s.slice(0, 128), late_u1_s, w1a)
        w1b = warpgroup_mma(z_s.slice(128, 128), late_u1_s, w1b)
        a = warpgroup_mma(w1_s.slice(0, 128), u1_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, EC), use_acc=False)
        u2 = (slope_s.slice(0, 128).load(EC).to(gl.float32) * a).to(DOT)
        w2a = warpgroup_mma(gl.convert_layout(u2, LEFT), late_k_s, w2a)
        a = warpgroup_mma(w1_s.slice(128, 128), u1_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, EC), use_acc=False)
        u2 = (slope_s.slice(128, 128).load(EC).to(gl.float32) * a).to(DOT)
        w2b = warpgroup_mma(gl.convert_layout(u2, LEFT), late_k_s, w2b)
        gl.thread_barrier()
        fetch(late_k_s, late_k_ptr + head * D, ahead, left, stride, D, LINES)
        async_copy.commit_group()
    async_copy.wait_group(0)
    keep(end1_ptr + base, w1a, 0, D, E, EC)
    keep(end1_ptr + base, w1b, 128, D, E, EC)
    keep(end2_ptr + base, w2a, 0, D, E, EC)
    keep(end2_ptr + base, w2b, 128, D, E, EC)
