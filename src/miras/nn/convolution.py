"""Short causal depthwise convolutions that carry their window from call to call and stop at a sequence's start.

B batch, T time, C channels, W taps, R sequences, N tokens of a packed batch
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .functional import takes_kernels
from .packing import Places


def taps(x: Tensor, window: Tensor, places: Places | None) -> tuple[list[Tensor], Tensor]:
    """x at each token, the token before it, and so on to the window's length, and the window after the last token.

    x ``[B,T,C]`` with a window ``[B,W-1,C]``, or packed, ``[1,N,C]`` with ``[R,W-1,C]``.
    """
    reach = window.shape[1]
    window = window.to(x.dtype)
    if places is None:
        seen = torch.cat([window, x], 1)
        time = x.shape[1]
        # a window that stays must not hold the whole call's tokens
        return [seen[:, reach - back : reach - back + time] for back in range(reach + 1)], seen[:, time:].clone()
    # windows first, tokens behind them: an index points into either
    seen = torch.cat([window.flatten(0, 1), x[0]])
    token = torch.arange(x.shape[1], device=x.device)

    def pointed(row: Tensor, position: Tensor, token: Tensor) -> Tensor:
        return torch.where(position >= 0, len(window) * reach + token, (row + 1) * reach + position)

    shifted = [seen[pointed(places.row, places.position - back, token - back)][None] for back in range(reach + 1)]
    back = torch.arange(-reach, 0, device=x.device)
    row = torch.arange(len(window), device=x.device)[:, None]
    after = pointed(row, places.lengths[:, None] + back, places.bounds[1:, None] + back)
    return shifted, seen[after]


class Filtered(torch.autograd.Function):
    """y_t = sum_i w_i x_(t-i) over rows, the window standing before the first token: W passes over x, and nothing copied.

    x ``[B,T,C]``, window ``[B,W-1,C]``, weight ``[C,W]``, its last tap for the token itself, all of one dtype.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, window: Tensor, weight: Tensor) -> Tensor:
        time, reach = x.shape[1], window.shape[1]
        y = x * weight[:, reach]
        for back in range(1, reach + 1):
            inside = min(back, time)
            y[:, back:].addcmul_(x[:, : time - inside], weight[:, reach - back])
            y[:, :inside].addcmul_(window[:, reach - back : reach - back + inside], weight[:, reach - back])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, window, weight = ctx.saved_tensors
        time, reach = x.shape[1], window.shape[1]
        to_x, to_window = gradient * weight[:, reach], torch.zeros_like(window)
        taps = [(gradient * x).sum((0, 1))]
        for back in range(1, reach + 1):
            inside = min(back, time)
            before = slice(reach - back, reach - back + inside)
            to_x[:, : time - inside].addcmul_(gradient[:, back:], weight[:, reach - back])
            to_window[:, before].addcmul_(gradient[:, :inside], weight[:, reach - back])
            here = (gradient[:, back:] * x[:, : time - inside]).sum((0, 1))
            taps.insert(0, here + (gradient[:, :inside] * window[:, before]).sum((0, 1)))
        return to_x, to_window, torch.stack(taps, 1)


def fuses(x: Tensor, weight: Tensor) -> bool:
    """Whether one kernel runs the convolution over rows ``[B,T,C]``; elsewhere it is several passes of plain PyTorch."""
    if not takes_kernels(x):
        return False
    from ..kernels import convolution

    return convolution.takes(x, weight)


class ShortConvolution(nn.Module):
    """y_t = sum_i w_i * x_(t-i), one filter a channel."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.width)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, window: Tensor, places: Places | None = None, *, silu: bool = False) -> tuple[Tensor, Tensor]:
        """``[B,T,C] -> [B,T,C]`` and the window ``[B,W-1,C]`` to go on with; the last tap acts on the token itself.

        With ``silu`` y is silu of the sum; the window is of x all the same.
        """
        # a compiler fuses the definition by itself
        if places is not None or torch.compiler.is_compiling():
            y, after = self._defined(x, window, places)
            return F.silu(y) if silu else y, after
        before = window.to(x.dtype)
        time, reach = x.shape[1], self.width - 1
        # a copy: what stays must not hold the whole call's tokens
        after = x[:, time - reach :].clone() if time >= reach else torch.cat([before[:, time:], x], 1)
        if fuses(x, self.weight):
            from ..kernels.convolution import convolution

            return convolution(x, before, self.weight, silu), after
        y = Filtered.apply(x, before, self.weight.to(x.dtype))  # type: ignore[no-untyped-call]
        return F.silu(y) if silu else y, after

    def _defined(self, x: Tensor, window: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        weight = self.weight.to(x.dtype)
        shifted, after = taps(x, window, places)
        y = shifted[0] * weight[:, self.width - 1]
        for back, tap in enumerate(shifted[1:], 1):
            y = torch.addcmul(y, tap, weight[:, self.width - 1 - back])
        return y, after


class TokenShift(nn.Module):
    """Each of several streams sees its own mixture of a token and the one before it: x_t + m * (x_(t-1) - x_t)."""

    def __init__(self, channels: int, streams: int) -> None:
        super().__init__()
        self.mixture = nn.Parameter(torch.empty(streams, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.mixture, 0.5)

    def forward(self, x: Tensor, window: Tensor, places: Places | None = None) -> tuple[list[Tensor], Tensor]:
        """The streams, ``[B,T,C]`` each, and the window ``[B,1,C]`` to go on with."""
        (now, before), window = taps(x, window, places)
        return [now + share.to(x.dtype) * (before - now) for share in self.mixture], window

    def __repr__(self) -> str:
        return f"TokenShift(streams={len(self.mixture)})"
