"""Random choices that need no loop: distinct numbers, evenly or by a power law.

B rows, N choices, S places
"""

from __future__ import annotations

import torch
from torch import Tensor


def distinct(rows: int, among: int, count: int, random: torch.Generator) -> Tensor:
    """``count`` different numbers below ``among`` in random order, ``[B,N]``."""
    return torch.rand(rows, among, generator=random, device=random.device).topk(count, dim=1).indices


def power_law(rows: int, places: int, count: int, power: float, random: torch.Generator) -> Tensor:
    """``count`` different places below S, one after the other with p(r) proportional to (r+1)^(power-1), ``[B,N]``.

    Adding Gumbel noise to log p and taking the largest draws without replacement.
    """
    rank = torch.arange(1, places + 1, device=random.device, dtype=torch.float32)
    noise = -torch.log(-torch.log(torch.rand(rows, places, generator=random, device=random.device).clamp(1e-9, 1 - 1e-7)))
    return ((power - 1) * rank.log() + noise).topk(count, dim=1).indices
