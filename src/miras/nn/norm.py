"""RMS normalisation with a learned gain.

D channels
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .functional import takes_kernels


class RMSNorm(nn.Module):
    """gain * x / sqrt(mean x^2 + eps) over the last axis, ``[...,D]``, in one call.

    In the dtype of x, but under autocast a float32 x gives what autocast multiplies in: the projections behind a norm, of which
    a layer has up to eight, would otherwise each make a copy of their own.
    """

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        to = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and x.dtype == torch.float32 else x.dtype
        if takes_kernels(x):
            from ..kernels import norm

            if norm.takes(x):
                return norm.rms_norm(x.contiguous(), self.weight, self.eps, to)  # type: ignore[no-any-return]
        with torch.autocast(kind, enabled=False):
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps).to(to)
