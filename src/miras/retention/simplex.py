"""Slices of a weight that live on a scaled simplex, for the KL and f-divergence retentions."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from .base import Linear, weight_axes

Slice = Literal["row", "column", "matrix"]


def slice_axes(weight: Tensor, kind: Slice) -> tuple[int, ...]:
    """The axes a slice runs over: a row over the input side, a column over the output side; a vector is one slice."""
    if weight.dim() == 3 or kind == "row":
        return (-1,)
    return (-2,) if kind == "column" else weight_axes(weight)


def slice_size(weight: Tensor, kind: Slice) -> int:
    """The number of entries in a slice."""
    return math.prod([weight.shape[axis] for axis in slice_axes(weight, kind)])


def slice_mass(weight: Tensor, kind: Slice, c: float | None) -> float:
    """What a slice sums to: c, or its length."""
    return float(slice_size(weight, kind)) if c is None else c


def log_simplex(logits: Tensor, kind: Slice, c: float | None) -> Tensor:
    """log(c softmax(logits)) over each slice."""
    axes = slice_axes(logits, kind)
    # one pass each way
    shares = torch.log_softmax(logits if len(axes) == 1 else logits.flatten(-2), axes[0] if len(axes) == 1 else -1)
    return shares.reshape(logits.shape) + math.log(slice_mass(logits, kind, c))


def in_simplex(weight: Tensor, kind: Slice, c: float | None) -> Tensor:
    """Whether all weights are >= 0 and every slice has its mass."""
    mass = slice_mass(weight, kind, c)
    sums = weight.sum(slice_axes(weight, kind))
    return (weight >= 0).all() & ((sums - mass).abs() <= 1e-6 * mass).all()


def linear_in_simplex(weight: Tensor, kind: Slice, c: float | None) -> Linear:
    """W_t = W - (c/n) (G_t minus its mean over the slice of n): the softmax's derivative at uniform weights."""
    share = slice_mass(weight, kind, c) / slice_size(weight, kind)
    slope = torch.full_like(weight.mean(weight_axes(weight), keepdim=True), share)
    return Linear(weight, decays=False, slope=slope, centre=slice_axes(weight, kind))
