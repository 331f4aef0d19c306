"""The reverse scan with a momentum for Hopper in Gluon: the weights' adjoints in registers, the momentum's in memory.

``write_backward_kernels.scan_backward`` says what each step means; ``resident_kernels`` what is assumed of dtype and sizes. A program's float32
adjoint of the momentum, 128 KiB, is read and written once a chunk and stays in the second-level cache; products read 16-bit copies.

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

from .resident_backward import afresh, hidden
from .resident_tiles import add2, add3, fetch, half, keep, put


@gluon.jit
def moved_errors(dw2, dspeed2, late_k_s, slow_k_s, slope_s, curve_s, L: gl.constexpr):
    """du2 = -dW2 (late k)' - dS2 (slow k)': in shared memory, slope becomes slope du2 and curve becomes curve du2."""
    du2 = warpgroup_mma(dw2, late_k_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, L), use_acc=False)
    du2 = warpgroup_mma(dspeed2, slow_k_s.permute((1, 0)), du2)
    slope_s.store((slope_s.load(L).to(gl.float32) * du2).to(slope_s.dtype))
    curve_s.store((curve_s.load(L).to(gl.float32) * du2).to(slope_s.dtype))


@gluon.jit
def moved_hidden(dw1, late_u1_s, dspeed1_s, slow_u1_s, w1_s, do_s, curve_s, slope_s, L: gl.constexpr):
    """dH = curve du2 + slope (dO W1 - dW1 (late u1)' - dS1 (slow u1)'), in the place of curve du2."""
    dz = warpgroup_mma(dw1, late_u1_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, L), use_acc=False)
    dz = warpgroup_mma(dspeed1_s, slow_u1_s.permute((1, 0)), dz)
    dz = warpgroup_mma(w1_s, do_s.permute((1, 0)), dz)
    curve_s.store((curve_s.load(L).to(gl.float32) + slope_s.load(L).to(gl.float32) * dz).to(curve_s.dtype))


@gluon.jit
def pushed(dw, dspeed_ptr, push_s, carried, grown, START: gl.constexpr, D: gl.constexpr, E: gl.constexpr, L: gl.constexpr):
    """dS = sigma_C dW' + m_C dS' + the chunk's own share, in memory and, where the share was, rounded."""
    dspeed = grown * half(dspeed_ptr, START, D, E, L) + carried * dw + push_s.slice(START, 128).load(L).to(gl.float32)
    keep(dspeed_ptr, dspeed, START, D, E, L)
    push_s.slice(START, 128).store(dspeed.to(push_s.dtype))
    # one half at a time: there are no registers for two
    gl.thread_barrier()


@gluon.jit
def scan_backward_momentum(
    k_ptr, late_ptr, late_k_ptr, kept_ptr, u1_ptr, late_u1_ptr, unit_ptr, pull_ptr, bend_ptr, inverse_ptr, mean_ptr, starts1_ptr,
    z_ptr, slope_ptr, curve_ptr, du1_ptr, do_ptr, move1_ptr, move2_ptr, dw1_ptr, dw2_ptr,
    slow_ptr, slow_k_ptr, slow_u1_ptr, sigma_ptr, grown_end_ptr, push1_ptr, push2_ptr, dspeed1_ptr, dspeed2_ptr,
    first_ptr, length_ptr, chunk_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr,
):
    """``write_backward_kernels.scan_backward`` with a momentum and both weights' adjoints in registers.

    They stay those of the chunk's end until all of its products have read them. Tiles that no product reads go straight to registers.
    """
    DOT: gl.constexpr = k_ptr.dtype.element_ty
    EC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16])
    CD: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=EC, k_width=2)
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dw1_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    dspeed1_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    w1_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    z_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    slope_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    curve_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    late_k_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    slow_k_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    late_u1_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    slow_u1_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)

    row, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
    first, length, chunk0 = gl.load(first_ptr + row), gl.load(length_ptr + row), gl.load(chunk_ptr + row)
    base, stride = (row * H + head) * E * D, H * D
    d = gl.arange(0, 64, layout=gl.SliceLayout(0, EC))
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, CD))
    j = gl.arange(0, 64, layout=gl.SliceLayout(0, CD))
    dw1a, dw1b = half(dw1_ptr + base, 0, D, E, EC), half(dw1_ptr + base, 128, D, E, EC)
    dw2a, dw2b = half(dw2_ptr + base, 0, D, E, EC), half(dw2_ptr + base, 128, D, E, EC)
    dw1_room.index(0).slice(0, 128).store(dw1a.to(DOT))
    dw1_room.index(0).slice(128, 128).store(dw1b.to(DOT))
    dspeed1_room.index(0).slice(0, 128).store(half(dspeed1_ptr + base, 0, D, E, EC).to(DOT))
    dspeed1_room.index(0).slice(128, 128).store(half(dspeed1_ptr + base, 128, D, E, EC).to(DOT))
    chunks = (length + 63) // 64
    wide, begin = ((chunk0 + chunks - 1) * H + head) * E * 64, first + (chunks - 1) * 64
    rows, count = gl.where(chunks > 0, E, 0), gl.where(chunks > 0, length - (chunks - 1) * 64, 0)
    fetch(slope_room.index(0), slope_ptr + wide, 0, rows, 64, 64, LINES)
    fetch(curve_room.index(0), curve_ptr + wide, 0, rows, 64, 64, LINES)
    fetch(late_k_room.index(0), late_k_ptr + head * D, begin, count, stride, D, LINES)
    fetch(slow_k_room.index(0), slow_k_ptr + head * D, begin, count, stride, D, LINES)
    fetch(late_u1_room.index(0), late_u1_ptr + head * D, begin, count, stride, D, LINES)
    fetch(slow_u1_room.index(0), slow_u1_ptr + head * D, begin, count, stride, D, LINES)
    async_copy.commit_group()
    for back in range(chunks):
        n, head = hidden(chunks - 1 - back), hidden(gl.program_id(1).to(gl.int64))
        number = chunk0 + n
        save, wide = (number * H + head) * E * D, (number * H + head) * E * 64
        slot = ((number + row) * H + head) * E * D
        begin, count = first + n * 64, length - n * 64
        fetch(afresh(z_room), z_ptr + wide, 0, E, 64, 64, LINES)
        fetch(afresh(w1_room), starts1_ptr + save, 0, E, D, D, LINES)
        async_copy.commit_group()
        # the last chunk's share of push has become the momentum's adjoint, rounded for products
        dspeed2a, dspeed2b = half(push2_ptr + slot + H * E * D, 0, D, E, EC), half(push2_ptr + slot + H * E * D, 128, D, E, EC)
        async_copy.wait_group(1)
        fence_async_shared()
        gl.thread_barrier()
        slope_s, curve_s = afresh(slope_room), afresh(curve_room)
        late_k_s, slow_k_s = afresh(late_k_room), afresh(slow_k_room)
        moved_errors(
            gl.convert_layout(dw2a.to(DOT), LEFT), gl.convert_layout(dspeed2a, LEFT), late_k_s, slow_k_s, slope_s.slice(0, 128), curve_s.slice(0, 128), EC,
        )
        moved_errors(
            gl.convert_layout(dw2b.to(DOT), LEFT), gl.convert_layout(dspeed2b, LEFT), late_k_s, slow_k_s, slope_s.slice(128, 128), curve_s.slice(128, 128), EC,
        )
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        there = (t < count)[:, None] & (j < D)[None, :]
        out = (begin + t)[:, None] * stride + head * D + j[None, :]
        # early, so that they have arrived when they are needed
        rest = gl.load(du1_ptr + out, mask=there, other=0.0).to(gl.float32)
        late, slow = gl.load(late_ptr + out, mask=there, other=0.0), gl.load(slow_ptr + out, mask=there, other=0.0)
        fetch(afresh(late_k_room), k_ptr + head * D, begin, count, stride, D, LINES)
        async_copy.commit_group()
        z_s = afresh(z_room)
        dy1 = warpgroup_mma(z_s.permute((1, 0)), afresh(dw1_room), gl.zeros([64, 64], gl.float32, CD), use_acc=False)
        g = rest - late.to(gl.float32) * dy1
        gl.thread_barrier()
        # dW1 is in registers too: slope comes back in the place of its copy
        fetch(afresh(dw1_room), slope_ptr + wide, 0, E, 64, 64, LINES)
        async_copy.commit_group()
        inverse = gl.load(inverse_ptr + (begin + t) * H + head, mask=t < count, other=0.0)
        mean_cx = gl.load(mean_ptr + (begin + t) * H + head, mask=t < count, other=0.0)
        unit, u1 = gl.load(unit_ptr + out, mask=there, other=0.0), gl.load(u1_ptr + out, mask=there, other=0.0)
        pull, bend = gl.load(pull_ptr + out, mask=there, other=0.0), gl.load(bend_ptr + out, mask=there, other=0.0)
        dslow = warpgroup_mma(z_s.permute((1, 0)), afresh(dspeed1_room), gl.zeros([64, 64], gl.float32, CD), use_acc=False)
        g -= slow.to(gl.float32) * dslow
        g = warpgroup_mma(afresh(slope_room).permute((1, 0)), afresh(w1_room), g)
        gl.store(du1_ptr + out, g, mask=there)
        unit, u1 = unit.to(gl.float32), u1.to(gl.float32)
        total, along, back_u1 = gl.reduce((g, g * unit, g * u1), 1, add3)
        dc = inverse[:, None] * (g - (total / D)[:, None] - unit * (along / D)[:, None])
        f = bend.to(gl.float32) * dc
        f -= inverse[:, None] * (g * mean_cx[:, None] + pull.to(gl.float32) * (along / D)[:, None])
        f = gl.where((j < D)[None, :], f, 0.0)
        total, along = gl.reduce((f, f * unit), 1, add2)
        do = inverse[:, None] * (f - (total / D)[:, None] - unit * ((along + back_u1) / D)[:, None])
        do = gl.where((j < D)[None, :], do, 0.0).to(DOT)
        gl.store(do_ptr + out, do, mask=there)
        # slow k has been read
        afresh(slow_k_room).store(do)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        w1_s, dspeed1_s, curve_s, slope_s = afresh(w1_room), afresh(dspeed1_room), afresh(curve_room), afresh(dw1_room)
        late_u1_s, slow_u1_s, do_s = afresh(late_u1_room), afresh(slow_u1_room), afresh(slow_k_room)
        moved_hidden(
            gl.convert_layout(dw1a.to(DOT), LEFT), late_u1_s, dspeed1_s.slice(0, 128), slow_u1_s, w1_s.slice(0, 128), do_s,
            curve_s.slice(0, 128), slope_s.slice(0, 128), EC,
        )
        moved_hidden(
            gl.convert_layout(dw1b.to(DOT), LEFT), late_u1_s, dspeed1_s.slice(128, 128), slow_u1_s, w1_s.slice(128, 128), do_s,
            curve_s.slice(128, 128), slope_s.slice(128, 128), EC,
        )
        fence_async_shared()
        gl.thread_barrier()
        dspeed1_s, dspeed2_s, dw1_s, u1_s = afresh(dspeed1_room), afresh(w1_room), afresh(dw1_room), afresh(late_u1_room)
        fetch(dspeed1_s, push1_ptr + slot, 0, E, D, D, LINES)
        fetch(dspeed2_s, push2_ptr + slot, 0, E, D, D, LINES)
        fetch(dw1_s, move1_ptr + slot, 0, E, D, D, LINES)
        fetch(u1_s, u1_ptr + head * D, begin, count, stride, D, LINES)
        async_copy.commit_group()
        carried, grown = gl.load(sigma_ptr + (number * H + head) * 64 + 63), gl.load(grown_end_ptr + number * H + head)
        kept = gl.load(kept_ptr + (number * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        pushed(dw1a, dspeed1_ptr + base, dspeed1_s, carried, grown, 0, D, E, EC)
        pushed(dw1b, dspeed1_ptr + base, dspeed1_s, carried, grown, 128, D, E, EC)
        slope_s, z_s, do_s = afresh(slope_room), afresh(z_room), afresh(slow_k_room)
        dw1a = warpgroup_mma(slope_s.slice(0, 128), u1_s, kept * dw1a + dw1_s.slice(0, 128).load(EC).to(gl.float32))
        dw1a = warpgroup_mma(z_s.slice(0, 128), do_s, dw1a)
        dw1b = warpgroup_mma(slope_s.slice(128, 128), u1_s, kept * dw1b + dw1_s.slice(128, 128).load(EC).to(gl.float32))
        dw1b = warpgroup_mma(z_s.slice(128, 128), do_s, dw1b)
        gl.thread_barrier()
        fetch(z_s, move2_ptr + slot, 0, E, D, D, LINES)
        async_copy.commit_group()
        # the chunk before, if there is one, in the place of what has been read for the last time
        rows, tokens = gl.where(n > 0, E, 0), gl.where(n > 0, 64, 0)
        fetch(afresh(slope_room), slope_ptr + wide - H * E * 64, 0, rows, 64, 64, LINES)
        fetch(afresh(slow_k_room), slow_k_ptr + head * D, begin - 64, tokens, stride, D, LINES)
        fetch(afresh(late_u1_room), late_u1_ptr + head * D, begin - 64, tokens, stride, D, LINES)
        fetch(afresh(slow_u1_room), slow_u1_ptr + head * D, begin - 64, tokens, stride, D, LINES)
        async_copy.commit_group()
        pushed(dw2a, dspeed2_ptr + base, dspeed2_s, carried, grown, 0, D, E, EC)
        pushed(dw2b, dspeed2_ptr + base, dspeed2_s, carried, grown, 128, D, E, EC)
        curve_s, k_s = afresh(curve_room), afresh(late_k_room)
        dw2a = warpgroup_mma(curve_s.slice(0, 128), k_s, kept * dw2a)
        dw2b = warpgroup_mma(curve_s.slice(128, 128), k_s, kept * dw2b)
        gl.thread_barrier()
        fetch(afresh(curve_room), curve_ptr + wide - H * E * 64, 0, rows, 64, 64, LINES)
        fetch(afresh(late_k_room), late_k_ptr + head * D, begin - 64, tokens, stride, D, LINES)
        async_copy.commit_group()
        async_copy.wait_group(2)
        gl.thread_barrier()
        z_s, dw1_s = afresh(z_room), afresh(dw1_room)
        dw2a += z_s.slice(0, 128).load(EC).to(gl.float32)
        dw2b += z_s.slice(128, 128).load(EC).to(gl.float32)
        dw1_s.slice(0, 128).store(dw1a.to(DOT))
        dw1_s.slice(128, 128).store(dw1b.to(DOT))
        z_s.slice(0, 128).store(dw2a.to(DOT))
        z_s.slice(128, 128).store(dw2b.to(DOT))
        gl.thread_barrier()
        put(move1_ptr + slot, dw1_s, E, D, LINES)
        put(move2_ptr + slot, z_s, E, D, LINES)
        put(push1_ptr + slot, afresh(dspeed1_room), E, D, LINES)
        put(push2_ptr + slot, afresh(w1_room), E, D, LINES)
        gl.thread_barrier()
    async_copy.wait_group(0)
    keep(dw1_ptr + base, dw1a, 0, D, E, EC)
    keep(dw1_ptr + base, dw1b, 128, D, E, EC)
    keep(dw2_ptr + base, dw2a, 0, D, E, EC)
    keep(dw2_ptr + base, dw2b, 128, D, E, EC)
