"""l2 bias: regression, the delta rule's loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import Rule
from .base import Bias


@dataclass(frozen=True, kw_only=True)
class L2(Bias):
    """1/2 ||e||^2, gradient e."""

    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return 0.5 * ((prediction - value) ** 2).sum(-1)

    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return prediction - value

    def rule(self) -> Rule:
        return Rule("e_t", r"e_t")
