"""The reverse scan for Hopper in Gluon: both weights' adjoints stay in registers from the last chunk to the first.

``backward_kernels.scan_backward`` says what each step means; ``resident_kernels`` what is assumed of dtype and sizes.

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

from .resident_kernels import add2, add3, fetch, half, keep, put


@gluon.jit
def errors(dw2, late_k_s, slope_s, curve_s, L: gl.constexpr):
    """du2 = -dW2 (late k)': in shared memory, slope becomes slope du2 and curve becomes curve du2."""
    du2 = warpgroup_mma(dw2, late_k_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, L), use_acc=False)
    slope, curve = slope_s.load(L), curve_s.load(L)
    gl.thread_barrier()
    slope_s.store((slope.to(gl.float32) * du2).to(slope.dtype))
    curve_s.store((curve.to(gl.float32) * du2).to(slope.dtype))


@gluon.jit
def hidden_errors(dw1_s, late_u1_s, w1_s, do_s, curve_s, slope_s, L: gl.constexpr):
    """dH = curve du2 + slope (dO W1 - dW1 (late u1)')."""
    dz = warpgroup_mma(dw1_s, late_u1_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, L), use_acc=False)
    dz = warpgroup_mma(w1_s, do_s.permute((1, 0)), dz)
    return (curve_s.load(L).to(gl.float32) + slope_s.load(L).to(gl.float32) * dz).to(curve_s.dtype)


@gluon.jit
def scan_backward_resident(
    k_ptr, late_ptr, late_k_ptr, kept_ptr, u1_ptr, late_u1_ptr, unit_ptr, pull_ptr, bend_ptr, inverse_ptr, mean_ptr, starts1_ptr,
    z_ptr, slope_ptr, curve_ptr, du1_ptr, do_ptr, move1_ptr, move2_ptr, dw1_ptr, dw2_ptr,
    first_ptr, length_ptr, chunk_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr,
):
    """``backward_kernels.scan_backward`` with both adjoints in registers."""
    DOT: gl.constexpr = k_ptr.dtype.element_ty
    EC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16])
    CD: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=EC, k_width=2)
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dw1_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    w1_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    z_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    slope_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    curve_s = gl.allocate_shared_memory(DOT, [256, 64], SWIZZLED)
    k_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_k_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    late_u1_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    unit_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    pull_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)
    bend_s = gl.allocate_shared_memory(DOT, [64, 64], SWIZZLED)

    row, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
    first, length, chunk0 = gl.load(first_ptr + row), gl.load(length_ptr + row), gl.load(chunk_ptr + row)
    base, stride = (row * H + head) * E * D, H * D
    d = gl.arange(0, 64, layout=gl.SliceLayout(0, EC))
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, CD))
    j = gl.arange(0, 64, layout=gl.SliceLayout(0, CD))
    dw1a, dw1b = half(dw1_ptr + base, 0, D, E, EC), half(dw1_ptr + base, 128, D, E, EC)
    dw2a, dw2b = half(dw2_ptr + base, 0, D, E, EC), half(dw2_ptr + base, 128, D, E, EC)
    dw1_s.slice(0, 128).store(dw1a.to(DOT))
    dw1_s.slice(128, 128).store(dw1b.to(DOT))
    chunks = (length + 63) // 64
    for back in range(chunks):
        # the difference is zero, but the compiler does not know: else it keeps a running address for every tensor and spills
        n = chunks - 1 - back + gl.load(first_ptr + row) - first
        number = chunk0 + n
        save, wide = (number * H + head) * E * D, (number * H + head) * E * 64
        slot = ((number + row) * H + head) * E * D
        begin, count = first + n * 64, length - n * 64
        fetch(slope_s, slope_ptr + wide, 0, E, 64, 64, LINES)
        fetch(curve_s, curve_ptr + wide, 0, E, 64, 64, LINES)
        fetch(late_k_s, late_k_ptr + head * D, begin, count, stride, D, LINES)
        async_copy.commit_group()
        fetch(w1_s, starts1_ptr + save, 0, E, D, D, LINES)
        fetch(z_s, z_ptr + wide, 0, E, 64, 64, LINES)
        fetch(u1_s, u1_ptr + head * D, begin, count, stride, D, LINES)
        fetch(late_s, late_ptr + head * D, begin, count, stride, D, LINES)
        fetch(unit_s, unit_ptr + head * D, begin, count, stride, D, LINES)
        fetch(pull_s, pull_ptr + head * D, begin, count, stride, D, LINES)
        fetch(bend_s, bend_ptr + head * D, begin, count, stride, D, LINES)
        fetch(late_u1_s, late_u1_ptr + head * D, begin, count, stride, D, LINES)
        fetch(k_s, k_ptr + head * D, begin, count, stride, D, LINES)
        async_copy.commit_group()
        there = (t < count)[:, None] & (j < D)[None, :]
        out = (begin + t)[:, None] * stride + head * D + j[None, :]
        # early, so that they have arrived when they are needed
        du1 = gl.load(du1_ptr + out, mask=there, other=0.0)
        inverse = gl.load(inverse_ptr + (begin + t) * H + head, mask=t < count, other=0.0)
        mean_cx = gl.load(mean_ptr + (begin + t) * H + head, mask=t < count, other=0.0)
        async_copy.wait_group(1)
        fence_async_shared()
        gl.thread_barrier()
        errors(gl.convert_layout(dw2a.to(DOT), LEFT), late_k_s, slope_s.slice(0, 128), curve_s.slice(0, 128), EC)
        errors(gl.convert_layout(dw2b.to(DOT), LEFT), late_k_s, slope_s.slice(128, 128), curve_s.slice(128, 128), EC)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        g = warpgroup_mma(slope_s.permute((1, 0)), w1_s, gl.zeros([64, 64], gl.float32, CD), use_acc=False)
        dy1 = warpgroup_mma(z_s.permute((1, 0)), dw1_s, gl.zeros([64, 64], gl.float32, CD), use_acc=False)
        kept = gl.load(kept_ptr + (number * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        dw1a, dw2a = kept * dw1a, kept * dw2a
        dw1b, dw2b = kept * dw1b, kept * dw2b
        dw1a = warpgroup_mma(slope_s.slice(0, 128), u1_s, dw1a)
        dw1b = warpgroup_mma(slope_s.slice(128, 128), u1_s, dw1b)
        gl.thread_barrier()
        fetch(slope_s, slope_ptr + wide, 0, E, 64, 64, LINES)
        async_copy.commit_group()
        g += du1 - late_s.load(CD).to(gl.float32) * dy1
        gl.store(du1_ptr + out, g, mask=there)
        unit, u1 = unit_s.load(CD).to(gl.float32), u1_s.load(CD).to(gl.float32)
        total, along, back_u1 = gl.reduce((g, g * unit, g * u1), 1, add3)
        dc = inverse[:, None] * (g - (total / D)[:, None] - unit * (along / D)[:, None])
        f = bend_s.load(CD).to(gl.float32) * dc
        f -= inverse[:, None] * (g * mean_cx[:, None] + pull_s.load(CD).to(gl.float32) * (along / D)[:, None])
        f = gl.where((j < D)[None, :], f, 0.0)
        total, along = gl.reduce((f, f * unit), 1, add2)
        do = inverse[:, None] * (f - (total / D)[:, None] - unit * ((along + back_u1) / D)[:, None])
        do = gl.where((j < D)[None, :], do, 0.0).to(DOT)
        gl.store(do_ptr + out, do, mask=there)
        gl.thread_barrier()
        unit_s.store(do)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        dh_a = hidden_errors(dw1_s.slice(0, 128), late_u1_s, w1_s.slice(0, 128), unit_s, curve_s.slice(0, 128), slope_s.slice(0, 128), EC)
        dh_b = hidden_errors(
            dw1_s.slice(128, 128), late_u1_s, w1_s.slice(128, 128), unit_s, curve_s.slice(128, 128), slope_s.slice(128, 128), EC,
        )
        gl.thread_barrier()
        fetch(curve_s, move1_ptr + slot, 0, E, D, D, LINES)
        fetch(w1_s, move2_ptr + slot, 0, E, D, D, LINES)
        async_copy.commit_group()
        dw2a = warpgroup_mma(gl.convert_layout(dh_a, LEFT), k_s, dw2a)
        dw2b = warpgroup_mma(gl.convert_layout(dh_b, LEFT), k_s, dw2b)
        dw1a = warpgroup_mma(z_s.slice(0, 128), unit_s, dw1a)
        dw1b = warpgroup_mma(z_s.slice(128, 128), unit_s, dw1b)
        async_copy.wait_group(0)
        gl.thread_barrier()
        dw1a += curve_s.slice(0, 128).load(EC).to(gl.float32)
        dw1b += curve_s.slice(128, 128).load(EC).to(gl.float32)
        dw2a += w1_s.slice(0, 128).load(EC).to(gl.float32)
        dw2b += w1_s.slice(128, 128).load(EC).to(gl.float32)
        dw1_s.slice(0, 128).store(dw1a.to(DOT))
        dw1_s.slice(128, 128).store(dw1b.to(DOT))
        z_s.slice(0, 128).store(dw2a.to(DOT))
        z_s.slice(128, 128).store(dw2b.to(DOT))
        gl.thread_barrier()
        put(move1_ptr + slot, dw1_s, E, D, LINES)
        put(move2_ptr + slot, z_s, E, D, LINES)
        gl.thread_barrier()
    keep(dw1_ptr + base, dw1a, 0, D, E, EC)
    keep(dw1_ptr + base, dw1b, 128, D, E, EC)
    keep(dw2_ptr + base, dw2a, 0, D, E, EC)
    keep(dw2_ptr + base, dw2b, 128, D, E, EC)
