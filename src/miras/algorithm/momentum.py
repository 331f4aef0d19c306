"""Momentum (Titans): past surprise carries on, S = mu S - eta g, W = retained W + S."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import Gate, Rule
from .base import Descent


@dataclass(frozen=True, kw_only=True)
class Momentum(Descent):
    """S = mu S - eta g ; W = retained W + S."""

    short = "GD + Momentum"
    remembers = True

    @property
    def gates(self) -> tuple[Gate, ...]:
        return (Gate("eta", "value"), Gate("mu", "value"))

    def move(self, momentum: Tensor | None, step: Tensor, mu: Tensor | None) -> tuple[Tensor | None, Tensor]:
        assert momentum is not None and mu is not None
        momentum = mu * momentum - step
        return momentum, -momentum

    def rule(self, gradient: Rule, rate: Rule, place: Rule) -> tuple[Rule | None, Rule]:
        line = Rule(
            f"S_t = mu_t S_(t-1) - {rate.text} {gradient.text}",
            rf"\mathcal{{S}}_t = \mu_t \mathcal{{S}}_{{t-1}} - {rate.latex} {gradient.latex}",
        )
        return line, Rule("(-S_t)", r"(-\mathcal{S}_t)")
