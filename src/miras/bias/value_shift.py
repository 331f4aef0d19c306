"""Value-shift bias: the worst l2 loss over values moved by at most Delta (the paper's robust regression)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import Gate, Rule, require
from .base import Bias, direction, safe_norm, threshold


@dataclass(frozen=True, kw_only=True)
class ValueShift(Bias):
    """1/2 ||e||^2 + Delta ||e|| + Delta^2/2, gradient e + Delta e/||e||, and 0 at e = 0.

    ``delta`` fixes Delta; without it the gate ``delta`` sets it for each token.
    """

    delta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.delta is None or self.delta >= 0, f"ValueShift needs delta >= 0, got {self.delta}")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return () if self.delta is not None else (Gate("delta", "scalar"),)

    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        shift = threshold(self.delta, delta, prediction)
        return (0.5 * (safe_norm(prediction - value) + shift) ** 2).squeeze(-1)

    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        e = prediction - value
        return e + threshold(self.delta, delta, prediction) * direction(e)

    def rule(self) -> Rule:
        return Rule("(e_t + delta_t e_t/||e_t||)", r"\left(e_t + \Delta_t\, e_t / \|e_t\|\right)")
