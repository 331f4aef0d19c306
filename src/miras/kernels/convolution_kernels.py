"""A short causal depthwise convolution and its gradients, both in one pass: a program walks along a stretch of tokens.

The last taps, what is still owed to earlier tokens and the sums of the weight's gradient stay in registers, so that every token is
read once, but for the few at a stretch's edge. A group of rows is loaded before any of it is used, to have many loads in flight.

B batch, T time, C channels, W taps; BT tokens of a stretch, BC channels of a program, GROUP rows loaded at once
"""

# Triton has no iterable unpacking
# ruff: noqa: ANN001, ANN201, RUF005
# mypy: ignore-errors
# fmt: off
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row(inside, c, C):
    """Where there is a channel, in a row that lies inside; Triton's interpreter cannot join a number's truth to a vector's."""
    return c < tl.where(inside, C, 0)


@triton.jit
def seen(x_ptr, window_ptr, t, T, x_time, window_time, c, C, W: tl.constexpr):
    """x at t, or the window where t lies before the first token, or zeros where neither is."""
    now = tl.load(x_ptr + t * x_time, mask=row((t >= 0) & (t < T), c, C), other=0.0)
    before = tl.load(window_ptr + (t + W - 1) * window_time, mask=row((t < 0) & (t > -W), c, C), other=0.0)
    return now.to(tl.float32) + before.to(tl.float32)


@triton.jit
def filtered(taps, weights, W: tl.constexpr):
    """z_t = sum_i w_i x_(t-i), of the taps from the oldest to the token itself."""
    z = weights[W - 1] * taps[W - 1]
    for tap in tl.static_range(W - 1):
        z += weights[tap] * taps[tap]
    return z


@triton.jit
def owed(g, debts, weights, W: tl.constexpr):
    """dx_(t-i) += w_i g_t for the last W tokens, of which the oldest now has all it gets."""
    debts, paid = debts + (tl.zeros_like(g),), ()
    for tap in tl.static_range(W):
        paid = paid + (debts[tap] + weights[tap] * g,)
    return paid


@triton.jit
def silu_slope(z):
    """d silu(z) / dz."""
    s = tl.sigmoid(z)
    return s * (1 + z * (1 - s))


@triton.jit
def forward(
    x_ptr, window_ptr, weight_ptr, y_ptr, T, C, stretches, blocks, x_batch, x_time, window_batch, window_time,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, GROUP: tl.constexpr, SILU: tl.constexpr,
):
    """y_t = z_t or silu(z_t) for a stretch of tokens."""
    # neighbouring programs have neighbouring channels: together they read whole rows
    number = tl.program_id(0)
    c, stretch = (number % blocks) * BC + tl.arange(0, BC), number // blocks
    batch, start = (stretch // stretches).to(tl.int64), (stretch % stretches).to(tl.int64) * BT
    there = c < C
    x_ptr, window_ptr, y_ptr = x_ptr + batch * x_batch + c, window_ptr + batch * window_batch + c, y_ptr + batch * T * C + c
    weights, before = (), ()
    for tap in tl.static_range(W):
        weights = weights + (tl.load(weight_ptr + c * W + tap, mask=there, other=0.0).to(tl.float32),)
    for back in tl.static_range(W - 1):
        before = before + (seen(x_ptr, window_ptr, start + back - (W - 1), T, x_time, window_time, c, C, W),)
    for first in range(start, tl.minimum(start + BT, T), GROUP):
        rows = ()
        for i in tl.static_range(GROUP):
            rows = rows + (tl.load(x_ptr + (first + i) * x_time, mask=row(first + i < T, c, C), other=0.0),)
        for i in tl.static_range(GROUP):
            taps = before + (rows[i].to(tl.float32),)
            y = filtered(taps, weights, W)
            if SILU:
                y = y * tl.sigmoid(y)
            tl.store(y_ptr + (first + i) * C, y, mask=row(first + i < T, c, C))
            before = taps[1:]


@triton.jit
def backward(
    x_ptr, window_ptr, weight_ptr, dy_ptr, dx_ptr, dwindow_ptr, dweight_ptr, T, C, stretches, blocks,
    x_batch, x_time, window_batch, window_time, dy_batch, dy_time,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, GROUP: tl.constexpr, SILU: tl.constexpr,
):
    """g_t = dy_t, times silu'(z_t); dx_s = sum_i w_i g_(s+i); dw_i = sum_t g_t x_(t-i), the stretch's share of it.

    A stretch's own are dw of its tokens, and dx as it becomes complete: of tokens up to W-1 before, the window's among them.
    """
    number = tl.program_id(0)
    c, stretch = (number % blocks) * BC + tl.arange(0, BC), number // blocks
    batch, start = (stretch // stretches).to(tl.int64), (stretch % stretches).to(tl.int64) * BT
    there = c < C
    x_ptr, window_ptr, dy_ptr = x_ptr + batch * x_batch + c, window_ptr + batch * window_batch + c, dy_ptr + batch * dy_batch + c
    dx_ptr, dwindow_ptr = dx_ptr + batch * T * C + c, dwindow_ptr + batch * (W - 1) * C + c
    nothing = tl.zeros([BC], dtype=tl.float32)
    weights, before, debts, sums = (), (), (), ()
    for tap in tl.static_range(W):
        weights = weights + (tl.load(weight_ptr + c * W + tap, mask=there, other=0.0).to(tl.float32),)
        sums = sums + (nothing,)
    for back in tl.static_range(W - 1):
        before = before + (seen(x_ptr, window_ptr, start + back - 2 * (W - 1), T, x_time, window_time, c, C, W),)
        debts = debts + (nothing,)
    # what the last tokens before the stretch owe
    for back in tl.static_range(W - 1):
        t = start + back - (W - 1)
        taps = before + (seen(x_ptr, window_ptr, t, T, x_time, window_time, c, C, W),)
        g = tl.load(dy_ptr + t * dy_time, mask=row((t >= 0) & (t < T), c, C), other=0.0).to(tl.float32)
        if SILU:
            g = g * silu_slope(filtered(taps, weights, W))
        debts, before = owed(g, debts, weights, W)[1:], taps[1:]
    for first in range(start, tl.minimum(start + BT, T + W - 1), GROUP):
        rows, outer = (), ()
        for i in tl.static_range(GROUP):
            inside = row(first + i < T, c, C)
            rows = rows + (tl.load(x_ptr + (first + i) * x_time, mask=inside, other=0.0),)
            outer = outer + (tl.load(dy_ptr + (first + i) * dy_time, mask=inside, other=0.0),)
        for i in tl.static_range(GROUP):
            taps, g = before + (rows[i].to(tl.float32),), outer[i].to(tl.float32)
            if SILU:
                g = g * silu_slope(filtered(taps, weights, W))
            added = ()
            for tap in tl.static_range(W):
                added = added + (sums[tap] + g * taps[tap],)
            paid, complete = owed(g, debts, weights, W), first + i - (W - 1)
            tl.store(dx_ptr + complete * C, paid[0], mask=row((complete >= 0) & (complete < T), c, C))
            tl.store(dwindow_ptr + (complete + W - 1) * C, paid[0], mask=row(complete < 0, c, C))
            sums, debts, before = added, paid[1:], taps[1:]
    for tap in tl.static_range(W):
        tl.store(dweight_ptr + (stretch.to(tl.int64) * W + tap) * C + c, sums[tap], mask=there)
