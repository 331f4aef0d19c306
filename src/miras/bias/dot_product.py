"""Dot-product bias: the Hebbian loss -<M(k), v>."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import Rule
from .base import Bias


@dataclass(frozen=True, kw_only=True)
class DotProduct(Bias):
    """-<M(k), v>, gradient -v: the write does not depend on what the memory holds."""

    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return -(prediction * value).sum(-1)

    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return -value.expand_as(prediction)

    def rule(self) -> Rule:
        return Rule("(-v_t)", r"(-\mathbf{v}_t)")
