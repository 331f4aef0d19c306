"""The short causal depthwise convolution, with SiLU or without, and its gradients.

B batch, T time, C channels, W taps
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .around import added, blocks, once, readable, watched
from .convolution_kernels import backward, forward

# a longer filter does not fit a program's registers
WIDEST = 8
# tokens of a program, one warp that walks along them, and how many it loads at once
STRETCH, GROUP = 64, 8


def _layout(x: Tensor, time: int, taps: int, channels: int) -> tuple[int, int, dict[str, Any]]:
    """Stretches of ``time`` tokens, blocks of channels, and what the kernels are told at compile time.

    ``channels`` are those of a thread with up to 4 taps; more taps need twice the registers for each.
    """
    block = 32 * (channels if taps <= 4 else channels // 2)
    told = {"W": taps, "BT": STRETCH, "BC": block, "GROUP": GROUP, "num_warps": 1}
    return blocks(time, STRETCH), blocks(x.shape[2], block), told


def _rows(x: Tensor) -> Tensor:
    """x as the kernels take it: any strides, but channels side by side."""
    return x if x.stride(2) == 1 else x.contiguous()


def _convolved(x: Tensor, window: Tensor, weight: Tensor, silu: bool) -> Tensor:
    taps, y = weight.shape[1], x.new_empty(x.shape)
    x, window = _rows(x), _rows(window)
    stretches, groups, told = _layout(x, x.shape[1], taps, 16 // x.element_size())
    with torch.cuda.device(x.get_device()):
        forward[(x.shape[0] * stretches * groups,)](
            x, window, weight.contiguous(), y, *x.shape[1:], stretches, groups, *x.stride()[:2], *window.stride()[:2],
            SILU=silu, **told,
        )  # fmt: skip
    return y


class Convolution(torch.autograd.Function):
    """The convolution and its gradients; the sums that SiLU's derivative needs are made again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Tensor, weight: Tensor, silu: bool) -> Tensor:
        ctx.save_for_backward(x, window, weight)
        ctx.silu = silu
        return _convolved(x, window, weight, silu)

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        x, window, weight = saved
        taps = weight.shape[1]
        dx, dwindow = x.new_empty(x.shape), window.new_empty(window.shape)
        x, window, dy = _rows(x), _rows(window), _rows(dy)
        stretches, groups, told = _layout(x, x.shape[1] + taps - 1, taps, 4)
        # a share of each stretch, added in one order
        shares = x.new_empty(x.shape[0] * stretches, taps, x.shape[2], dtype=torch.float32)
        with torch.cuda.device(x.get_device()):
            backward[(x.shape[0] * stretches * groups,)](
                x, window, weight.contiguous(), dy, dx, dwindow, shares, *x.shape[1:], stretches, groups,
                *x.stride()[:2], *window.stride()[:2], *dy.stride()[:2], SILU=ctx.silu, **told,
            )  # fmt: skip
        return dx, dwindow, added(shares, weight).mT.contiguous() if ctx.needs_input_grad[2] else None, None


def convolution(x: Tensor, window: Tensor, weight: Tensor, silu: bool) -> Tensor:
    """y_t = sum_i w_i x_(t-i), or silu of it, the window standing before the first token; sums in float32.

    x ``[B,T,C]``, window ``[B,W-1,C]``, weight ``[C,W]``, its last tap for the token itself; y is of x's dtype.
    """
    # a token that is decoded comes through here too, and waits for every call
    if not watched():
        return _convolved(x, window, weight, silu)
    y: Tensor = Convolution.apply(x, window, weight, silu)  # type: ignore[no-untyped-call]
    return y


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels read such rows on a GPU."""
    return readable(x, weight) and weight.shape[1] <= WIDEST
