"""The forward scan for Hopper in Gluon, with the state in registers: a chunk's products read copies in shared memory.

For 16-bit products, chunks of 64 tokens, at most 64 channels and 256 hidden ones. It does what ``forward_kernels.scan`` does,
which says what each step means; eight warps, each warpgroup half of the hidden channels.

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

from .links import scale_of
from .resident_lead import GAIN, SHIFT, fetch_lead, fetch_vector, lead_resident
from .resident_momentum import begin_speed, carry
from .resident_norms import state_norms
from .resident_tiles import add2, fetch, half, keep, put
from .tiles import gelu_slope


@gluon.jit
def scan_resident(
    k_ptr, v_ptr, late_ptr, late_k_ptr, kept_ptr, delta_ptr, w1_ptr, w2_ptr, anchor1_ptr, anchor2_ptr, gain_ptr, shift_ptr,
    starts1_ptr, starts2_ptr, u1_ptr, late_u1_ptr, o_ptr, end1_ptr, end2_ptr, tail1_ptr, tail2_ptr,
    slow_ptr, slow_k_ptr, slow_u1_ptr, sigma_ptr, grown_end_ptr, speed1_ptr, speed2_ptr, speeds1_ptr, speeds2_ptr, last1_ptr, last2_ptr, norms_ptr,
    lead_k_ptr, lead_v_ptr, lead_eta_ptr, lead_log_ptr, lead_delta_ptr, log_anchor1_ptr, log_anchor2_ptr, lead_o_ptr, before1_ptr, before2_ptr,
    first_ptr, length_ptr, chunk_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr,
    BIAS: gl.constexpr, P: gl.constexpr, HAS_DELTA: gl.constexpr, ANCHORED: gl.constexpr,
    MOMENTUM: gl.constexpr, LINK: gl.constexpr, FLOOR: gl.constexpr, MASS1: gl.constexpr, MASS2: gl.constexpr,
):
    """``forward_kernels.scan`` with W1' and W2 in registers; ``delta`` is [T,H,D], in float32 or the tokens' dtype."""
    DOT: gl.constexpr = k_ptr.dtype.element_ty
    EC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16])
    CD: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=EC, k_width=2)
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 8, [1, 0])
    w1_at = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    w2_at = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    z_at = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    k_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    v_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    late_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    u1_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    late_u1_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    late_k_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    slope_at = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    if HAS_DELTA:
        delta_s = gl.allocate_shared_memory(delta_ptr.dtype.element_ty, [64, 64], PLAIN)
    if MOMENTUM:
        slow_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
        slow_k_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
        slow_u1_at = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    token_s = gl.allocate_shared_memory(gl.float32, [8, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # by itself, since the compiler waits for all of a buffer that any of it is copied to
    kept_s = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))

    row, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
    first, length, chunk0 = gl.load(first_ptr + row), gl.load(length_ptr + row), gl.load(chunk_ptr + row)
    base, stride = (row * H + head) * E * D, H * D
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, CD))
    j = gl.arange(0, 64, layout=gl.SliceLayout(0, CD))
    if MOMENTUM:
        begin_speed(last1_ptr + base, speed1_ptr + base, D, E, EC)
        begin_speed(last2_ptr + base, speed2_ptr + base, D, E, EC)
    w1a, w1b = half(w1_ptr + base, 0, D, E, EC), half(w1_ptr + base, 128, D, E, EC)
    w2a, w2b = half(w2_ptr + base, 0, D, E, EC), half(w2_ptr + base, 128, D, E, EC)
    chunks = (length + 63) // 64
    fetch_vector(token_s.index(GAIN), gain_ptr + head * D, True, D)
    fetch_vector(token_s.index(SHIFT), shift_ptr + head * D, True, D)
    if MASS1 > 0:
        fetch_lead(
            token_s, lead_k_ptr, lead_v_ptr, lead_eta_ptr, lead_log_ptr, lead_delta_ptr, (chunk0 * H + head) * D, length > 0, D, HAS_DELTA,
        )
    fetch(k_at.index(0), k_ptr + head * D, first, length, stride, D, LINES)
    fetch(v_at.index(0), v_ptr + head * D, first, length, stride, D, LINES)
    fetch(late_at.index(0), late_ptr + head * D, first, length, stride, D, LINES)
    if HAS_DELTA:
        fetch(delta_s, delta_ptr + head * D, first, length, stride, D, SINGLES)
    if MOMENTUM:
        fetch(slow_at.index(0), slow_ptr + head * D, first, length, stride, D, LINES)
    async_copy.commit_group()
    # what a chunk reads last comes by itself
    fetch(late_k_at.index(0), late_k_ptr + head * D, first, length, stride, D, LINES)
    fetch_vector(kept_s, kept_ptr + (chunk0 * H + head) * D, length > 0, D)
    if MOMENTUM:
        fetch(slow_k_at.index(0), slow_k_ptr + head * D, first, length, stride, D, LINES)
    async_copy.commit_group()
    for step in range(chunks):
        # the difference is zero, but the compiler does not know: else it keeps a running address for every tensor and spills
        n = step + gl.load(first_ptr + row) - first
        number = chunk0 + n
        # likewise, where there is more to do, for what does not change from chunk to chunk, addresses in shared memory included
        place = (n - step).to(gl.int32) if MOMENTUM or LINK > 0 or MASS1 > 0 else 0
        head_n, base_n = head + place, base + place * 64
        w1_s, w2_s, z_s, slope_s = w1_at.index(place), w2_at.index(place), z_at.index(place), slope_at.index(place)
        k_s, v_s, late_s, late_k_s = k_at.index(place), v_at.index(place), late_at.index(place), late_k_at.index(place)
        u1_s, late_u1_s = u1_at.index(place), late_u1_at.index(place)
        if MOMENTUM:
            slow_s, slow_k_s, slow_u1_s = slow_at.index(place), slow_k_at.index(place), slow_u1_at.index(place)
            # the last chunk's momentum has left the place of W2
            gl.thread_barrier()
        if MASS1 > 0:
            own = (number * H + head_n) * E * D
            async_copy.wait_group(1)
            if before1_ptr is not None:
                w1_s.slice(0, 128).store(w1a.to(DOT))
                w1_s.slice(128, 128).store(w1b.to(DOT))
                w2_s.slice(0, 128).store(w2a.to(DOT))
                w2_s.slice(128, 128).store(w2b.to(DOT))
            gl.thread_barrier()
            if before1_ptr is not None:
                put(before1_ptr + own, w1_s, E, D, LINES)
                put(before2_ptr + own, w2_s, E, D, LINES)
            w1a, w1b, w2a, w2b = lead_resident(
                w1a, w1b, w2a, w2b, token_s, log_anchor1_ptr + base_n, log_anchor2_ptr + base_n, lead_o_ptr, (number * H + head_n) * D,
                D, E, BIAS, P, HAS_DELTA, ANCHORED, MASS1, MASS2, EC,
            )
            gl.thread_barrier()
        if LINK > 0:
            norm1, norm2 = state_norms(w1a, w1b, w2a, w2b, LINK, FLOOR)
            gl.store(norms_ptr + ((number + row) * H + head_n) * 2, norm1)
            gl.store(norms_ptr + ((number + row) * H + head_n) * 2 + 1, norm2)
            scale1, scale2 = scale_of(norm1, LINK), scale_of(norm2, LINK)
        w1_s.slice(0, 128).store(w1a.to(DOT))
        w1_s.slice(128, 128).store(w1b.to(DOT))
        w2_s.slice(0, 128).store(w2a.to(DOT))
        w2_s.slice(128, 128).store(w2b.to(DOT))
        if (n + 1) * 64 > length:
            keep(tail1_ptr + base_n, w1a, 0, D, E, EC)
            keep(tail1_ptr + base_n, w1b, 128, D, E, EC)
            keep(tail2_ptr + base_n, w2a, 0, D, E, EC)
            keep(tail2_ptr + base_n, w2b, 128, D, E, EC)
        async_copy.wait_group(1)
        fence_async_shared()
        gl.thread_barrier()
        put(starts1_ptr + (number * H + head_n) * E * D, w1_s, E, D, LINES)
        put(starts2_ptr + (number * H + head_n) * E * D, w2_s, E, D, LINES)
        for i in gl.static_range(2):
            h = warpgroup_mma(w2_s.slice(i * 128, 128), k_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, EC), use_acc=False)
            if LINK > 0:
                h *= scale2
            z, slope = gelu_slope(h, True)
            z_s.slice(i * 128, 128).store(z.to(DOT))
            slope_s.slice(i * 128, 128).store(slope.to(DOT))
        fence_async_shared()
        gl.thread_barrier()
        o = warpgroup_mma(z_s.permute((1, 0)), w1_s, gl.zeros([64, 64], gl.float32, CD), use_acc=False)
        if LINK > 0:
            o *= scale1
        there = ((n * 64 + t) < length)[:, None] & (j < D)[None, :]
        gain, shift = token_s.index(GAIN).load(gl.SliceLayout(0, CD))[None, :], token_s.index(SHIFT).load(gl.SliceLayout(0, CD))[None, :]
        if MASS1 > 0:
            # weights that are all positive give a mean far above the deviations from it: those are squared by themselves
            away = gl.where((j < D)[None, :], o - (gl.sum(o, 1) / D)[:, None], 0.0)
            inverse = gl.rsqrt(gl.sum(away * away, 1) / D + 1e-6)
            unit = away * inverse[:, None]
        else:
            total, squares = gl.reduce((o, o * o), 1, add2)
            mean = total / D
            inverse = gl.rsqrt(squares / D - mean * mean + 1e-6)
            unit = gl.where((j < D)[None, :], (o - mean[:, None]) * inverse[:, None], 0.0)
        error = k_s.load(CD).to(gl.float32) + gain * unit + shift - v_s.load(CD).to(gl.float32)
        delta = error
        if HAS_DELTA:
            delta = delta_s.load(CD).to(gl.float32)
        c = gl.where(there, gain * BIAS(error, delta, P), 0.0)
        total, along = gl.reduce((c, c * unit), 1, add2)
        u1 = inverse[:, None] * (c - (total / D)[:, None] - unit * (along / D)[:, None])
        u1 = gl.where((j < D)[None, :], u1, 0.0)
        late_u1 = (-late_s.load(CD).to(gl.float32) * u1).to(DOT)
        u1_s.store(u1.to(DOT))
        late_u1_s.store(late_u1)
        out = (first + n * 64 + t)[:, None] * stride + head_n * D + j[None, :]
        gl.store(u1_ptr + out, u1.to(DOT), mask=there)
        if o_ptr is not None:
            gl.store(late_u1_ptr + out, late_u1, mask=there)
            gl.store(o_ptr + out, o.to(DOT), mask=there)
        if MOMENTUM:
            slow_u1 = (-slow_s.load(CD).to(gl.float32) * u1).to(DOT)
            slow_u1_s.store(slow_u1)
            if slow_u1_ptr is not None:
                gl.store(slow_u1_ptr + out, slow_u1, mask=there)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        ahead = first + (n + 1) * 64
        left = length - (n + 1) * 64
        fetch(k_s, k_ptr + head_n * D, ahead, left, stride, D, LINES)
        fetch(v_s, v_ptr + head_n * D, ahead, left, stride, D, LINES)
        fetch(late_s, late_ptr + head_n * D, ahead, left, stride, D, LINES)
        if HAS_DELTA:
            fetch(delta_s, delta_ptr + head_n * D, ahead, left, stride, D, SINGLES)
        if MOMENTUM:
            fetch(slow_s, slow_ptr + head_n * D, ahead, left, stride, D, LINES)
        if MASS1 > 0:
            fetch_lead(
                token_s, lead_k_ptr, lead_v_ptr, lead_eta_ptr, lead_log_ptr, lead_delta_ptr, ((number + 1) * H + head_n) * D, left > 0, D, HAS_DELTA,
            )
        async_copy.commit_group()
        kept = kept_s.load(gl.SliceLayout(0, EC))[None, :]
        w1a, w2a = kept * w1a, kept * w2a
        w1b, w2b = kept * w1b, kept * w2b
        if ANCHORED:
            w1a += (1 - kept) * half(anchor1_ptr + base_n, 0, D, E, EC)
            w1b += (1 - kept) * half(anchor1_ptr + base_n, 128, D, E, EC)
            w2a += (1 - kept) * half(anchor2_ptr + base_n, 0, D, E, EC)
            w2b += (1 - kept) * half(anchor2_ptr + base_n, 128, D, E, EC)
        if MOMENTUM:
            # what is not read any more makes room for the momentum at this chunk's start: w2_s, and slope_s half by half
            carried = gl.load(sigma_ptr + (number * H + head_n) * 64 + 63)
            grown = gl.load(grown_end_ptr + number * H + head_n)
            w1a = carry(w1a, last1_ptr + base_n, w2_s, z_s.slice(0, 128), slow_u1_s, carried, grown, 0, D, E, EC)
        w1a = warpgroup_mma(z_s.slice(0, 128), late_u1_s, w1a)
        if MOMENTUM:
            w1b = carry(w1b, last1_ptr + base_n, w2_s, z_s.slice(128, 128), slow_u1_s, carried, grown, 128, D, E, EC)
        w1b = warpgroup_mma(z_s.slice(128, 128), late_u1_s, w1b)
        a = warpgroup_mma(w1_s.slice(0, 128), u1_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, EC), use_acc=False)
        if LINK > 0:
            a *= scale1
        u2 = gl.convert_layout((slope_s.slice(0, 128).load(EC).to(gl.float32) * a).to(DOT), LEFT)
        if MOMENTUM:
            w2a = carry(w2a, last2_ptr + base_n, slope_s, u2, slow_k_s, carried, grown, 0, D, E, EC)
        w2a = warpgroup_mma(u2, late_k_s, w2a)
        a = warpgroup_mma(w1_s.slice(128, 128), u1_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, EC), use_acc=False)
        if LINK > 0:
            a *= scale1
        u2 = gl.convert_layout((slope_s.slice(128, 128).load(EC).to(gl.float32) * a).to(DOT), LEFT)
        if MOMENTUM:
            w2b = carry(w2b, last2_ptr + base_n, slope_s, u2, slow_k_s, carried, grown, 128, D, E, EC)
        w2b = warpgroup_mma(u2, late_k_s, w2b)
        gl.thread_barrier()
        fetch(late_k_s, late_k_ptr + head_n * D, ahead, left, stride, D, LINES)
        fetch_vector(kept_s, kept_ptr + ((number + 1) * H + head_n) * D, left > 0, D)
        if MOMENTUM:
            fetch(slow_k_s, slow_k_ptr + head_n * D, ahead, left, stride, D, LINES)
        async_copy.commit_group()
        if MOMENTUM:
            put(speeds1_ptr + (number * H + head_n) * E * D, w2_s, E, D, LINES)
            put(speeds2_ptr + (number * H + head_n) * E * D, slope_s, E, D, LINES)
    async_copy.wait_group(0)
    if LINK > 0:
        # every thread's copies have arrived before shared memory is used for other things
        gl.thread_barrier()
        norm1, norm2 = state_norms(w1a, w1b, w2a, w2b, LINK, FLOOR)
        gl.store(norms_ptr + ((chunk0 + chunks + row) * H + head) * 2, norm1)
        gl.store(norms_ptr + ((chunk0 + chunks + row) * H + head) * 2 + 1, norm2)
    keep(end1_ptr + base, w1a, 0, D, E, EC)
    keep(end1_ptr + base, w1b, 128, D, E, EC)
    keep(end2_ptr + base, w2a, 0, D, E, EC)
    keep(end2_ptr + base, w2b, 128, D, E, EC)
