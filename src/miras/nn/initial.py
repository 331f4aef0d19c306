"""The weights a memory starts from: learned, of unit scale, in the space the retention accumulates in.

H heads, V value channels
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..algorithm import NonParametric
from ..retention import Lq, Retention
from ..spec import Spec
from ..types import Weights

# spread of the logits a simplex starts from: uniform weights would learn nothing
SPREAD = 1.5


class Scale(NamedTuple):
    """What a parameter of unit scale is multiplied by, and std(W_0) * std(A_0), the eta of a relative step of 1."""

    factor: float
    unit: float


def link_factor(retention: Lq, drawn: Tensor, size: float = 1.0) -> float:
    """What A is multiplied by so that link(A) has a standard deviation of ``size``.

    The printed link scales as s^(3-q), the exact one as s; at q = 3 the printed one has no scale to set.
    """
    degree = 1.0 if retention.link == "exact" else 3.0 - retention.q
    return float((retention.to_weight(drawn).std() / size) ** (-1 / degree)) if degree else size


@functools.cache
def scale_of(retention: Retention, shape: tuple[int, ...], size: float = 1.0) -> Scale:
    """The scale at which the memory reads weights of about ``size``, measured on one draw from a generator of its own.

    On a simplex, whose weights have the size that its mass gives them, ``size`` widens the logits instead.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randn(1, 1, *shape, generator=generator, dtype=torch.float64, device="cpu")
    factor = size
    if isinstance(retention, Lq):
        factor = link_factor(retention, drawn, size)
    elif not retention.zero_start:
        factor = SPREAD * size
    held = retention.start(factor * drawn)
    if torch.equal(held.weight, held.accumulated):
        return Scale(factor, factor**2)
    return Scale(factor, float(held.weight.std() * held.accumulated.std()))


def learns_start(spec: Spec) -> bool:
    """Whether a memory has initial weights to learn: zeros are a place to start for the others."""
    return not (spec.zero_start or isinstance(spec.algorithm, NonParametric))


class InitialMemory(nn.Module):
    """Initial weights ``[H,...]`` of unit scale, and gain and shift ``[H,V]`` of an MLP's LayerNorm."""

    def __init__(self, spec: Spec, heads: int, keys: int, values: int, size: float = 1.0) -> None:
        super().__init__()
        shapes = spec.memory.shapes(keys, values) if learns_start(spec) else ()
        self.scales = [scale_of(spec.retention, shape, size) for shape in shapes]
        self.names = [f"w{number + 1}" for number in range(len(shapes))]
        for name, shape in zip(self.names, shapes, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(heads, *shape)))
        normed = spec.memory.normed
        self.gain = nn.Parameter(torch.empty(heads, values)) if normed else None
        self.shift = nn.Parameter(torch.empty(heads, values)) if normed else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.weights:
            nn.init.normal_(weight)
        if self.gain is not None and self.shift is not None:
            nn.init.ones_(self.gain)
            nn.init.zeros_(self.shift)

    @property
    def weights(self) -> Weights:
        """The parameters, outermost first."""
        # plain tensors under torch.func.functional_call
        return tuple(getattr(self, name) for name in self.names)

    @property
    def unit(self) -> float:
        """The eta of a relative step of 1, the mean over the weights, which share it; 1 where they start from zero."""
        return sum(scale.unit for scale in self.scales) / len(self.scales) if self.scales else 1.0

    def forward(self) -> tuple[Weights, Tensor | None, Tensor | None]:
        """The parameters themselves; asked for by a call, so that hooks which bring offloaded ones in see it."""
        return self.weights, self.gain, self.shift

    def start(self) -> Tensor | Weights | None:
        """The weights as ``memorize`` takes them."""
        weights, _, _ = self()
        scaled = tuple(scale.factor * weight for scale, weight in zip(self.scales, weights, strict=True))
        return scaled[0] if len(scaled) == 1 else scaled or None

    def norm(self) -> tuple[Tensor, Tensor] | None:
        """Gain and shift as ``memorize`` takes them."""
        _, gain, shift = self()
        return None if gain is None or shift is None else (gain, shift)
