"""The short causal depthwise convolution, with SiLU or without, as custom operators.

B batch, T time, C channels, W taps
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

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
    return triton.cdiv(time, STRETCH), triton.cdiv(x.shape[2], block), told


def _rows(x: Tensor) -> Tensor:
    """x as the kernels take it: any strides, but channels side by side."""
    return x if x.stride(2) == 1 else x.contiguous()


@torch.library.custom_op("miras::convolution", mutates_args=())
def convolution(x: Tensor, window: Tensor, weight: Tensor, silu: bool) -> Tensor:
    """y_t = sum_i w_i x_(t-i), or silu of it, the window standing before the first token; sums in float32.

    x ``[B,T,C]``, window ``[B,W-1,C]``, weight ``[C,W]``, its last tap for the token itself; y is of x's dtype.
    """
    taps, y = weight.shape[1], x.new_empty(x.shape)
    x, window = _rows(x), _rows(window)
    stretches, blocks, told = _layout(x, x.shape[1], taps, 16 // x.element_size())
    with torch.cuda.device(x.get_device()):
        forward[(x.shape[0] * stretches * blocks,)](
            x, window, weight.contiguous(), y, *x.shape[1:], stretches, blocks, *x.stride()[:2], *window.stride()[:2],
            SILU=silu, **told,
        )  # fmt: skip
    return y


@convolution.register_fake
def _(x, window, weight, silu):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return x.new_empty(x.shape)


@torch.library.custom_op("miras::convolution_backward", mutates_args=())
def convolution_backward(x: Tensor, window: Tensor, weight: Tensor, dy: Tensor, silu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """dx, d window and d weight from dy; the sums that SiLU's derivative needs are made again."""
    taps = weight.shape[1]
    dx, dwindow = x.new_empty(x.shape), window.new_empty(window.shape)
    x, window, dy = _rows(x), _rows(window), _rows(dy)
    stretches, blocks, told = _layout(x, x.shape[1] + taps - 1, taps, 4)
    # a share of each stretch, added in one order
    shares = x.new_empty(x.shape[0] * stretches, taps, x.shape[2], dtype=torch.float32)
    with torch.cuda.device(x.get_device()):
        backward[(x.shape[0] * stretches * blocks,)](
            x, window, weight.contiguous(), dy, dx, dwindow, shares, *x.shape[1:], stretches, blocks,
            *x.stride()[:2], *window.stride()[:2], *dy.stride()[:2], SILU=silu, **told,
        )  # fmt: skip
    return dx, dwindow, shares.sum(0).mT.to(weight.dtype).contiguous()


@convolution_backward.register_fake
def _(x, window, weight, dy, silu):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return tuple(given.new_empty(given.shape) for given in (x, window, weight))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.silu = inputs[3]


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return (*convolution_backward(*ctx.saved_tensors, dy, ctx.silu), None)


convolution.register_autograd(_backward, setup_context=_remember)
