"""Matrix memory: M(W; k) = W k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..products import times
from ..types import Norm, Rule, Weights
from .base import Factor, Map, Memory, Side


@dataclass(frozen=True)
class Dense:
    """The map of a materialised weight ``[B,H,out,in]``."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return times(x, self.weight)

    def transpose(self, u: Tensor) -> Tensor:
        return u @ self.weight


@dataclass(frozen=True, kw_only=True)
class Matrix(Memory):
    """One matrix a head, M(W; k) = W k with W ``[V,K]``; its gradient is error k'.

    >>> Matrix().shapes(64, 128)
    ((128, 64),)
    """

    square = False
    linear = True
    zero_start = True

    def shapes(self, keys: int, values: int) -> tuple[tuple[int, ...], ...]:
        return ((values, keys),)

    def maps(self, weights: Weights) -> tuple[Map, ...]:
        return (Dense(weights[0]),)

    def trace(self, maps: Sequence[Map], x: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor]:
        return maps[0](x), x

    def backprop(self, maps: Sequence[Map], trace: Tensor, error: Tensor) -> tuple[Factor, ...]:
        return (Factor(error, trace),)

    def gradient(self, factor: Factor) -> Tensor:
        return factor.error.mT @ factor.input

    @property
    def sides(self) -> tuple[Side, ...]:
        return ("out",)

    def curvature(self, k: Tensor) -> Tensor:
        return (k * k).sum(-1, keepdim=True)

    def rule(self) -> Rule:
        return Rule("M(x) = W x", r"\mathcal{M}(x) = W x")

    def gradient_rule(self, error: Rule) -> Rule:
        return Rule(f"{error.text} k_t'", rf"{error.latex} \mathbf{{k}}_t^\top")
