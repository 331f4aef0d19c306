"""RMS normalisation with a learned gain, of the residual stream and behind a memory.

B batch, T time, H heads, V value channels of a head, D channels
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..torch_modes import multiplied_in, uncast
from .functional import worth_fusing
from .joined import untouched

OUTPUT_GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """gain * x / sqrt(mean x^2 + eps) over the last axis, ``[...,D]``, in the dtype that it is multiplied in.

    The projections behind a norm, of which a layer has up to eight, would otherwise each make a copy of their own.
    """
    to = multiplied_in(x.device, x.dtype)
    if worth_fusing(x):
        from ..kernels import norm

        if norm.takes(x, gain):
            return norm.rms_norm(x.contiguous(), gain, eps, to)
    with uncast(x.device):
        return F.rms_norm(x, gain.shape, weight=gain.to(x.dtype), eps=eps).to(to)


class Gained(nn.Module):
    """What norms have in common: a learned gain ``[D]`` and an eps."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class RMSNorm(Gained):
    """gain * x / sqrt(mean x^2 + eps) over the last axis, ``[...,D]``, in one call."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class ResidualNorm(Gained):
    """A residual stream, with a branch added or as it is, ``[...,D]``, and its RMS norm.

    One call, so that on a GPU the sum and its norm are one pass, and so are their gradients, which meet here.
    """

    def forward(self, x: Tensor, branch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x + branch, and the norm of it in the dtype that it is multiplied in."""
        if worth_fusing(x):
            from ..kernels import residual

            if residual.takes(x, branch, self.weight):
                added = x.dtype if branch is None else torch.promote_types(x.dtype, branch.dtype)
                to = multiplied_in(x.device, added)
                return residual.residual(x.contiguous(), branch, self.weight, self.eps, to)
        x = x if branch is None else x + branch
        return x, rms_norm(x, self.weight, self.eps)


def gated(y: Tensor, norm: RMSNorm | None, projected: Tensor | None, curve: str | None) -> Tensor:
    """Each head's output, normalised, times a curve of its gate's projection: ``[B,T,H,V]`` and ``[B,T,H V] -> [B,T,H V]``."""
    if worth_fusing(y) and norm is not None and projected is not None and curve is not None and untouched(norm, RMSNorm):
        from ..kernels import gated_norm

        if gated_norm.takes(y, norm.weight, projected):
            return gated_norm.gated_norm(y, norm.weight, projected, norm.eps, curve)
    y = (y if norm is None else norm(y)).flatten(2)
    return y if projected is None or curve is None else y * OUTPUT_GATES[curve](projected)
