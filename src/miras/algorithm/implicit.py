"""Implicit gradient descent (Longhorn): the loss is measured after the step, not before."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import Gate, Rule
from .base import Descent


@dataclass(frozen=True, kw_only=True)
class ImplicitGD(Descent):
    """The minimiser of eta/2 ||W k - v||^2 + 1/2 ||W - retained W||^2: the l2 step with eta/(1 + eta k.k) for eta."""

    short = "Implicit GD"

    @property
    def gates(self) -> tuple[Gate, ...]:
        return (Gate("eta", "value"),)

    def rate(self, eta: Tensor, curvature: Tensor | None) -> Tensor:
        assert curvature is not None
        return eta / (1 + eta * curvature)

    def rule(self, gradient: Rule, rate: Rule, place: Rule) -> tuple[Rule | None, Rule]:
        return None, Rule(
            f"eta_t/(1 + eta_t k_t^2) {gradient.text}",
            rf"\frac{{\eta_t}}{{1 + \eta_t \mathbf{{k}}_t^2}} {gradient.latex}",
        )
