"""The reverse scan for Hopper in Gluon: both weights' adjoints stay in registers from the last chunk to the first.

``write_backward_kernels.scan_backward`` says what each step means; ``resident_kernels`` what is assumed of dtype and sizes.

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
from .resident_lead_backward import lead_backward_resident
from .resident_link import linked_end, moved, own_move, steep
from .resident_tiles import add2, add3, fetch, half, keep, put


@gluon.jit
def hidden(x):
    """A number as it is, but one that the compiler knows nothing about: it keeps no address made of it for the next chunk."""
    return gl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [x], dtype=gl.int64, is_pure=False, pack=1)


@gluon.jit
def afresh(room):
    """The tile of a room [1,...] of shared memory, its address made once more rather than kept (and spilled) through the loop."""
    return room.index(gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1))


@gluon.jit
def errors(dw2, late_k_s, slope_s, curve_s, da_s, L: gl.constexpr):
    """du2 = -dW2 (late k)': in shared memory, curve becomes curve du2, and da is slope du2."""
    du2 = warpgroup_mma(dw2, late_k_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, L), use_acc=False)
    da_s.store((slope_s.load(L).to(gl.float32) * du2).to(da_s.dtype))
    curve_s.store((curve_s.load(L).to(gl.float32) * du2).to(da_s.dtype))


@gluon.jit
def hidden_errors(dw1, late_u1_s, w1_s, do_s, curve_s, slope_s, scale, LINK: gl.constexpr, L: gl.constexpr):
    """dH = curve du2 + slope (s dO W1 - dW1 (late u1)'), in the place of curve du2."""
    dz = warpgroup_mma(w1_s, do_s.permute((1, 0)), gl.zeros([128, 64], gl.float32, L), use_acc=False)
    if LINK > 0:
        dz *= scale
    dz = warpgroup_mma(dw1, late_u1_s.permute((1, 0)), dz)
    curve_s.store((curve_s.load(L).to(gl.float32) + slope_s.load(L).to(gl.float32) * dz).to(curve_s.dtype))


@gluon.jit
def scan_backward_resident(
    k_ptr, late_ptr, late_k_ptr, kept_ptr, u1_ptr, late_u1_ptr, unit_ptr, pull_ptr, bend_ptr, inverse_ptr, mean_ptr, starts1_ptr,
    z_ptr, slope_ptr, curve_ptr, du1_ptr, do_ptr, move1_ptr, move2_ptr, dw1_ptr, dw2_ptr,
    starts2_ptr, end1_ptr, end2_ptr, norms_ptr, dscale_ptr,
    lead_k_ptr, lead_v_ptr, lead_eta_ptr, lead_log_ptr, lead_delta_ptr, log_anchor1_ptr, log_anchor2_ptr, lead_o_ptr, before1_ptr, before2_ptr, gain_ptr, shift_ptr,
    dlead_k_ptr, dlead_v_ptr, dlead_eta_ptr, dlead_log_ptr, dlead_delta_ptr, dlog_anchor1_ptr, dlog_anchor2_ptr, dlead_gain_ptr, dlead_shift_ptr,
    first_ptr, length_ptr, chunk_ptr, H: gl.constexpr, D: gl.constexpr, E: gl.constexpr,
    LINK: gl.constexpr, FLOOR: gl.constexpr, MASS1: gl.constexpr, MASS2: gl.constexpr,
    BIAS: gl.constexpr, SLOPE: gl.constexpr, DELTA_SLOPE: gl.constexpr, P: gl.constexpr, HAS_DELTA: gl.constexpr, ANCHORED: gl.constexpr,
):
    """``write_backward_kernels.scan_backward`` with both adjoints in registers, those of the chunk's end until all products have read them.

    Tiles that no product reads go straight to registers. The chunk before is copied into every tile that has been read for the last
    time, but where a link needs the room for W2 once more, or a mass for the weights before and after the first token.

    With a link, O = s Z A is seen through a norm that no scale moves, but for its epsilon: <dO, O> = r (<f, x> + <g, u1>) - <g, u1> a
    token, r = epsilon / std^2, and s receives (r (<f, x> + <g, u1>) - <g', u1>) / s, where g' is g without da A.
    """
    DOT: gl.constexpr = k_ptr.dtype.element_ty
    PLAIN: gl.constexpr = LINK == 0 and MASS1 == 0
    AHEAD: gl.constexpr = MASS1 == 0
    EC: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 64, 16])
    CD: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=EC, k_width=2)
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    dw1_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    w1_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    z_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    slope_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    curve_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    da_room = gl.allocate_shared_memory(DOT, [1, 256, 64], SWIZZLED)
    k_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    u1_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    late_u1_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)
    # late k, later dO
    late_k_room = gl.allocate_shared_memory(DOT, [1, 64, 64], SWIZZLED)

    row, head = gl.program_id(0).to(gl.int64), gl.program_id(1).to(gl.int64)
    first, length, chunk0 = gl.load(first_ptr + row), gl.load(length_ptr + row), gl.load(chunk_ptr + row)
    base, stride = (row * H + head) * E * D, H * D
    d = gl.arange(0, 64, layout=gl.SliceLayout(0, EC))
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, CD))
    j = gl.arange(0, 64, layout=gl.SliceLayout(0, CD))
    dw1a, dw1b = half(dw1_ptr + base, 0, D, E, EC), half(dw1_ptr + base, 128, D, E, EC)
    dw2a, dw2b = half(dw2_ptr + base, 0, D, E, EC), half(dw2_ptr + base, 128, D, E, EC)
    chunks = (length + 63) // 64
    if LINK > 0:
        if chunks > 0:
            state, last = (chunk0 + chunks + row) * H + head, (chunk0 + chunks - 1) * H + head
            dw1a, dw1b, dw2a, dw2b = linked_end(
                dw1a, dw1b, dw2a, dw2b, dscale_ptr + last * 5, norms_ptr + state * 2, end1_ptr + base, end2_ptr + base,
                move1_ptr + state * E * D, move2_ptr + state * E * D, D, E, LINK, FLOOR, EC,
            )
    dw1_room.index(0).slice(0, 128).store(dw1a.to(DOT))
    dw1_room.index(0).slice(128, 128).store(dw1b.to(DOT))
    if AHEAD:
        wide, begin = ((chunk0 + chunks - 1) * H + head) * E * 64, first + (chunks - 1) * 64
        rows, count = gl.where(chunks > 0, E, 0), gl.where(chunks > 0, length - (chunks - 1) * 64, 0)
        if PLAIN:
            fetch(slope_room.index(0), slope_ptr + wide, 0, rows, 64, 64, LINES)
        fetch(curve_room.index(0), curve_ptr + wide, 0, rows, 64, 64, LINES)
        fetch(z_room.index(0), z_ptr + wide, 0, rows, 64, 64, LINES)
        fetch(late_k_room.index(0), late_k_ptr + head * D, begin, count, stride, D, LINES)
        fetch(u1_room.index(0), u1_ptr + head * D, begin, count, stride, D, LINES)
        fetch(late_u1_room.index(0), late_u1_ptr + head * D, begin, count, stride, D, LINES)
        fetch(k_room.index(0), k_ptr + head * D, begin, count, stride, D, LINES)
        async_copy.commit_group()
    for back in range(chunks):
        n, head = hidden(chunks - 1 - back), hidden(gl.program_id(1).to(gl.int64))
        number = chunk0 + n
        save, wide = (number * H + head) * E * D, (number * H + head) * E * 64
        slot = ((number + row) * H + head) * E * D
        begin, count = first + n * 64, length - n * 64
        if not PLAIN:
            fetch(afresh(slope_room), slope_ptr + wide, 0, E, 64, 64, LINES)
            async_copy.commit_group()
        if not AHEAD:
            fetch(afresh(curve_room), curve_ptr + wide, 0, E, 64, 64, LINES)
            fetch(afresh(late_k_room), late_k_ptr + head * D, begin, count, stride, D, LINES)
            async_copy.commit_group()
            fetch(afresh(z_room), z_ptr + wide, 0, E, 64, 64, LINES)
            fetch(afresh(u1_room), u1_ptr + head * D, begin, count, stride, D, LINES)
            fetch(afresh(late_u1_room), late_u1_ptr + head * D, begin, count, stride, D, LINES)
            fetch(afresh(k_room), k_ptr + head * D, begin, count, stride, D, LINES)
        fetch(afresh(w1_room), starts1_ptr + save, 0, E, D, D, LINES)
        async_copy.commit_group()
        there = (t < count)[:, None] & (j < D)[None, :]
        out = (begin + t)[:, None] * stride + head * D + j[None, :]
        # early, so that they have arrived when they are needed
        rest = gl.load(du1_ptr + out, mask=there, other=0.0).to(gl.float32)
        late = gl.load(late_ptr + out, mask=there, other=0.0)
        async_copy.wait_group(1)
        fence_async_shared()
        gl.thread_barrier()
        late_k_s, slope_s, curve_s, da_s = afresh(late_k_room), afresh(slope_room), afresh(curve_room), afresh(da_room)
        errors(gl.convert_layout(dw2a.to(DOT), LEFT), late_k_s, slope_s.slice(0, 128), curve_s.slice(0, 128), da_s.slice(0, 128), EC)
        errors(gl.convert_layout(dw2b.to(DOT), LEFT), late_k_s, slope_s.slice(128, 128), curve_s.slice(128, 128), da_s.slice(128, 128), EC)
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        inverse = gl.load(inverse_ptr + (begin + t) * H + head, mask=t < count, other=0.0)
        mean_cx = gl.load(mean_ptr + (begin + t) * H + head, mask=t < count, other=0.0)
        unit, pull = gl.load(unit_ptr + out, mask=there, other=0.0), gl.load(pull_ptr + out, mask=there, other=0.0)
        bend = gl.load(bend_ptr + out, mask=there, other=0.0)
        dy1 = warpgroup_mma(afresh(z_room).permute((1, 0)), afresh(dw1_room), gl.zeros([64, 64], gl.float32, CD), use_acc=False)
        rest -= late.to(gl.float32) * dy1
        gl.thread_barrier()
        # dW1 is in registers too
        fetch(afresh(dw1_room), move1_ptr + slot, 0, E, D, D, LINES)
        async_copy.commit_group()
        scale1, scale2 = 1.0, 1.0
        if LINK > 0:
            norms = norms_ptr + ((number + row) * H + head) * 2
            scale1, scale2 = scale_of(gl.load(norms), LINK), scale_of(gl.load(norms + 1), LINK)
            g = warpgroup_mma(afresh(da_room).permute((1, 0)), afresh(w1_room), gl.zeros([64, 64], gl.float32, CD), use_acc=False)
            rest_u1 = gl.sum(rest * afresh(u1_room).load(CD).to(gl.float32), 1)
            g = g * scale1 + rest
        else:
            g = warpgroup_mma(afresh(da_room).permute((1, 0)), afresh(w1_room), rest)
        gl.store(du1_ptr + out, g, mask=there)
        unit, u1 = unit.to(gl.float32), afresh(u1_room).load(CD).to(gl.float32)
        total, along, back_u1 = gl.reduce((g, g * unit, g * u1), 1, add3)
        dc = inverse[:, None] * (g - (total / D)[:, None] - unit * (along / D)[:, None])
        f = bend.to(gl.float32) * dc
        f -= inverse[:, None] * (g * mean_cx[:, None] + pull.to(gl.float32) * (along / D)[:, None])
        f = gl.where((j < D)[None, :], f, 0.0)
        total, along = gl.reduce((f, f * unit), 1, add2)
        do = inverse[:, None] * (f - (total / D)[:, None] - unit * ((along + back_u1) / D)[:, None])
        do = gl.where((j < D)[None, :], do, 0.0).to(DOT)
        if LINK > 0:
            share1 = 1e-6 * inverse * inverse * (along + back_u1) - rest_u1
        gl.store(do_ptr + out, do, mask=there)
        afresh(late_k_room).store(do)
        fence_async_shared()
        gl.thread_barrier()
        w1_s, slope_s, curve_s, late_u1_s, do_s = afresh(w1_room), afresh(slope_room), afresh(curve_room), afresh(late_u1_room), afresh(late_k_room)
        hidden_errors(
            gl.convert_layout(dw1a.to(DOT), LEFT), late_u1_s, w1_s.slice(0, 128), do_s, curve_s.slice(0, 128), slope_s.slice(0, 128), scale1, LINK, EC,
        )
        hidden_errors(
            gl.convert_layout(dw1b.to(DOT), LEFT), late_u1_s, w1_s.slice(128, 128), do_s, curve_s.slice(128, 128), slope_s.slice(128, 128), scale1, LINK, EC,
        )
        fence_async_shared()
        gl.thread_barrier()
        # the chunk before, if there is one
        rows, tokens = gl.where(n > 0, E, 0), gl.where(n > 0, 64, 0)
        if PLAIN:
            fetch(afresh(w1_room), move2_ptr + slot, 0, E, D, D, LINES)
            async_copy.commit_group()
            fetch(afresh(slope_room), slope_ptr + wide - H * E * 64, 0, rows, 64, 64, LINES)
            async_copy.commit_group()
            async_copy.wait_group(2)
        else:
            fetch(afresh(slope_room), starts2_ptr + save, 0, E, D, D, LINES)
            async_copy.commit_group()
            async_copy.wait_group(1)
        gl.thread_barrier()
        kept = gl.load(kept_ptr + (number * H + head) * D + d, mask=d < D, other=0.0)[None, :]
        dw1_s, da_s, z_s, u1_s, do_s = afresh(dw1_room), afresh(da_room), afresh(z_room), afresh(u1_room), afresh(late_k_room)
        if LINK > 0:
            # products are added to dA / s
            dw1a, dw1b = (kept / scale1) * dw1a, (kept / scale1) * dw1b
        else:
            dw1a = kept * dw1a + dw1_s.slice(0, 128).load(EC).to(gl.float32)
            dw1b = kept * dw1b + dw1_s.slice(128, 128).load(EC).to(gl.float32)
        dw1a = warpgroup_mma(da_s.slice(0, 128), u1_s, dw1a)
        dw1b = warpgroup_mma(da_s.slice(128, 128), u1_s, dw1b)
        dw1a = warpgroup_mma(z_s.slice(0, 128), do_s, dw1a)
        dw1b = warpgroup_mma(z_s.slice(128, 128), do_s, dw1b)
        dw2a, dw2b = kept * dw2a, kept * dw2b
        gl.thread_barrier()
        curve_s, k_s, dw2_s = afresh(curve_room), afresh(k_room), afresh(w1_room)
        if not PLAIN:
            dw2_s = afresh(da_room)
            fetch(dw2_s, move2_ptr + slot, 0, E, D, D, LINES)
            async_copy.commit_group()
        if AHEAD:
            fetch(afresh(z_room), z_ptr + wide - H * E * 64, 0, rows, 64, 64, LINES)
            fetch(afresh(u1_room), u1_ptr + head * D, begin - 64, tokens, stride, D, LINES)
            fetch(afresh(late_k_room), late_k_ptr + head * D, begin - 64, tokens, stride, D, LINES)
            fetch(afresh(late_u1_room), late_u1_ptr + head * D, begin - 64, tokens, stride, D, LINES)
            async_copy.commit_group()
        if PLAIN:
            dw2a = warpgroup_mma(curve_s.slice(0, 128), k_s, dw2a)
            dw2b = warpgroup_mma(curve_s.slice(128, 128), k_s, dw2b)
            gl.thread_barrier()
            fetch(afresh(curve_room), curve_ptr + wide - H * E * 64, 0, rows, 64, 64, LINES)
            fetch(afresh(k_room), k_ptr + head * D, begin - 64, tokens, stride, D, LINES)
            async_copy.commit_group()
            async_copy.wait_group(3)
            gl.thread_barrier()
            dw2a += dw2_s.slice(0, 128).load(EC).to(gl.float32)
            dw2b += dw2_s.slice(128, 128).load(EC).to(gl.float32)
        if LINK > 0:
            async_copy.wait_group(2)
            gl.thread_barrier()
            dw1_s, w1_s, w2_s = afresh(dw1_room), afresh(w1_room), afresh(slope_room)
            norms, arrived = norms_ptr + ((number + row) * H + head) * 2, dscale_ptr + (number * H + head) * 5
            norm1, norm2 = gl.load(norms), gl.load(norms + 1)
            ds1 = gl.load(arrived) + gl.load(arrived + 2) + gl.load(arrived - H * 5 + 1, mask=n > 0, other=0.0)
            steep1 = steep(gl.sum(share1, 0) / scale1 + ds1, norm1, LINK, FLOOR)
            dw1a = moved(scale1 * dw1a, dw1_s.slice(0, 128), w1_s.slice(0, 128), steep1, 1 / norm1, LINK, EC)
            dw1b = moved(scale1 * dw1b, dw1_s.slice(128, 128), w1_s.slice(128, 128), steep1, 1 / norm1, LINK, EC)
            dw2a, share_a = own_move(dw2a, curve_s.slice(0, 128), k_s, w2_s.slice(0, 128), scale2, EC)
            dw2b, share_b = own_move(dw2b, curve_s.slice(128, 128), k_s, w2_s.slice(128, 128), scale2, EC)
            ds2 = gl.load(arrived + 3) + gl.load(arrived - H * 5 + 4, mask=n > 0, other=0.0)
            steep2 = steep(gl.sum(share_a + share_b, 0) + ds2, norm2, LINK, FLOOR)
            gl.thread_barrier()
            fetch(afresh(curve_room), curve_ptr + wide - H * E * 64, 0, rows, 64, 64, LINES)
            fetch(afresh(k_room), k_ptr + head * D, begin - 64, tokens, stride, D, LINES)
            async_copy.commit_group()
            async_copy.wait_group(2)
            gl.thread_barrier()
            dw2a = moved(dw2a, dw2_s.slice(0, 128), w2_s.slice(0, 128), steep2, 1 / norm2, LINK, EC)
            dw2b = moved(dw2b, dw2_s.slice(128, 128), w2_s.slice(128, 128), steep2, 1 / norm2, LINK, EC)
        if MASS1 > 0:
            fetch(afresh(z_room), before1_ptr + save, 0, E, D, D, LINES)
            dw2a = warpgroup_mma(curve_s.slice(0, 128), k_s, dw2a)
            dw2b = warpgroup_mma(curve_s.slice(128, 128), k_s, dw2b)
            gl.thread_barrier()
            fetch(afresh(curve_room), before2_ptr + save, 0, E, D, D, LINES)
            async_copy.commit_group()
            async_copy.wait_group(0)
            gl.thread_barrier()
            dw2a += dw2_s.slice(0, 128).load(EC).to(gl.float32)
            dw2b += dw2_s.slice(128, 128).load(EC).to(gl.float32)
            one = (number * H + head) * D
            dw1a, dw1b, dw2a, dw2b = lead_backward_resident(
                dw1a, dw1b, dw2a, dw2b, afresh(w1_room), afresh(slope_room), afresh(z_room), afresh(curve_room), u1_room.index(0)._reinterpret(gl.float32, [8, 64], FLAT),
                lead_k_ptr + one, lead_v_ptr + one, lead_eta_ptr + one, lead_log_ptr + one, lead_delta_ptr + one, log_anchor1_ptr + base, log_anchor2_ptr + base,
                lead_o_ptr + one, gain_ptr + head * D, shift_ptr + head * D, dlead_k_ptr + one, dlead_v_ptr + one, dlead_eta_ptr + one, dlead_log_ptr + one,
                dlead_delta_ptr + one, dlog_anchor1_ptr + base, dlog_anchor2_ptr + base, dlead_gain_ptr + one, dlead_shift_ptr + one,
                D, E, BIAS, SLOPE, DELTA_SLOPE, P, HAS_DELTA, ANCHORED, MASS1, MASS2, EC,
            )
        dw1_s = afresh(dw1_room)
        dw1_s.slice(0, 128).store(dw1a.to(DOT))
        dw1_s.slice(128, 128).store(dw1b.to(DOT))
        dw2_s.slice(0, 128).store(dw2a.to(DOT))
        dw2_s.slice(128, 128).store(dw2b.to(DOT))
        gl.thread_barrier()
        put(move1_ptr + slot, dw1_s, E, D, LINES)
        put(move2_ptr + slot, dw2_s, E, D, LINES)
        gl.thread_barrier()
    async_copy.wait_group(0)
    keep(dw1_ptr + base, dw1a, 0, D, E, EC)
    keep(dw1_ptr + base, dw1b, 128, D, E, EC)
    keep(dw2_ptr + base, dw2a, 0, D, E, EC)
    keep(dw2_ptr + base, dw2b, 128, D, E, EC)
