"""The pairs of the recall experiment: random keys and values, a share of the values replaced by large noise.

S outlier shares, T pairs, H repeats (they run as heads), D channels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAGNITUDE = 10.0


class Stream(NamedTuple):
    """Keys and values ``[T,H,D]``, what a memory gets to see of the values ``[S,T,H,D]``, where that is noise ``[S,T,H]``."""

    keys: Tensor
    values: Tensor
    seen: Tensor
    noisy: Tensor


def draw(*, pairs: int, repeats: int, dim: int, shares: Sequence[float], seed: int) -> Stream:
    """Unit keys, standardised values; at each share that part of the values is replaced by noise ``MAGNITUDE`` times as large.

    A pair that is noise at one share is noise at every larger one, so shares differ by what is added and by nothing else.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(pairs, repeats, dim, generator=generator)

    keys = F.normalize(normal(), dim=-1)
    values, noise = standardised(normal()), MAGNITUDE * standardised(normal())
    rank = torch.rand(pairs, repeats, generator=generator).argsort(0).argsort(0)
    noisy = torch.stack([rank < outlier_count(share, pairs) for share in shares])
    return Stream(keys, values, torch.where(noisy[..., None], noise, values), noisy)


def outlier_count(share: float, pairs: int) -> int:
    """How many of the pairs are outliers at a share."""
    return round(share * pairs)


def standardised(x: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the channels: what a memory that ends in a LayerNorm can represent, and any other too."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / centred.square().mean(-1, keepdim=True).sqrt()
