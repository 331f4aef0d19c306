"""What becomes of a layer's projections: queries, keys and values of every head, in the form that a memory takes.

B batch, T time, H heads, D channels of a head, C channels of all projections
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .functional import EPS, positive, unit_rms, worth_fusing
from .recipes import Recipe


class Part(NamedTuple):
    """How one projection becomes heads: how many, of how many channels, times what; eps of their RMS norm, or None."""

    heads: int
    channels: int
    factor: float = 1.0
    eps: float | None = None
    positive: bool = False

    @property
    def width(self) -> int:
        """The projection's channels."""
        return self.heads * self.channels


def parts_of(recipe: Recipe, heads: int, keys: int, values: int, pairs: int, tied: bool) -> tuple[Part, ...]:
    """Those of q, of k, unless it is tied to the decay, and of v: unit length is a unit RMS over sqrt(D)."""
    unit = recipe.treatment == "unit length"
    length, eps = (keys**-0.5, EPS / keys) if unit else (1.0, None)
    key = Part(pairs * heads, keys, length, eps, recipe.treatment == "positive")
    query = key._replace(heads=heads, factor=length * keys**-0.5 if recipe.scaled else length)
    value = Part(pairs * heads, values, eps=EPS if recipe.value_norm else None)
    return (query, value) if tied else (query, key, value)


def treated(x: Tensor, part: Part) -> Tensor:
    """One projection ``[B,T,H D]`` as its heads, ``[B,T,H,D]``."""
    x = x.reshape(*x.shape[:-1], part.heads, part.channels)
    x = x if part.eps is None else unit_rms(x, part.eps)
    x = positive(x) if part.positive else x
    return x if part.factor == 1 else x * part.factor


def fuses(x: Tensor, parts: Sequence[Part]) -> bool:
    """Whether kernels make the heads: where some are scaled, for else there is nothing to be gained."""
    scaled = any(part.eps is not None or part.factor != 1 for part in parts)
    return scaled and not any(part.positive for part in parts) and worth_fusing(x)


def heads_of(joined: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """The projections side by side, ``[B,T,C]``, as their heads, ``[B,T,H,D]`` each."""
    if fuses(joined, parts):
        from ..kernels import heads

        given = tuple(part[:4] for part in parts)
        if heads.takes(joined, given):
            return list(heads.as_heads(joined, given))
    split = torch.split(joined, [part.width for part in parts], -1)
    return [treated(x, part) for x, part in zip(split, parts, strict=True)]


def each_treated(projected: Sequence[Tensor], parts: Sequence[Part], silu: bool) -> list[Tensor]:
    """Projections ``[B,T,H D]`` that stand alone, through SiLU or not, as their heads, ``[B,T,H,D]`` each."""
    return [treated(F.silu(x) if silu else x, part) for x, part in zip(projected, parts, strict=True)]
