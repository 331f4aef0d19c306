"""Vector memory: M(w; k) = w * k, coordinate by coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..types import Norm, Rule, Weights
from .base import Factor, Map, Memory, Side


@dataclass(frozen=True)
class Diagonal:
    """The map of a materialised vector ``[B,H,D]``."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight[..., None, :]

    def transpose(self, u: Tensor) -> Tensor:
        return u * self.weight[..., None, :]


@dataclass(frozen=True, kw_only=True)
class Vector(Memory):
    """One vector a head, M(w; k) = w * k: a gated recurrent unit per channel; its gradient is error * k.

    >>> Vector().shapes(64, 64)
    ((64,),)
    """

    square = True
    linear = True
    zero_start = True

    def shapes(self, keys: int, values: int) -> tuple[tuple[int, ...], ...]:
        return ((values,),)

    def maps(self, weights: Weights) -> tuple[Map, ...]:
        return (Diagonal(weights[0]),)

    def trace(self, maps: Sequence[Map], x: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor]:
        return maps[0](x), x

    def backprop(self, maps: Sequence[Map], trace: Tensor, error: Tensor) -> tuple[Factor, ...]:
        return (Factor(error, trace),)

    def gradient(self, factor: Factor) -> Tensor:
        return (factor.error * factor.input).sum(-2)

    @property
    def sides(self) -> tuple[Side, ...]:
        return ("each",)

    def curvature(self, k: Tensor) -> Tensor:
        return k * k

    def rule(self) -> Rule:
        return Rule("M(x) = w * x", r"\mathcal{M}(x) = w \odot x")

    def gradient_rule(self, error: Rule) -> Rule:
        return Rule(f"{error.text} * k_t", rf"{error.latex} \odot \mathbf{{k}}_t")
