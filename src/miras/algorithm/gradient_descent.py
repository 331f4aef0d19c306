"""Gradient descent: W moves by -eta g."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import Gate, Rule, require
from .base import Descent


@dataclass(frozen=True, kw_only=True)
class GradientDescent(Descent):
    """W = retained W - eta g, one step a token.

    ``eta`` fixes the step (1 for the Hebbian models); without it the gate sets it. ``decoupled`` is RWKV-7's step for a matrix
    with the l2 bias: the gate ``kappa`` is the key whose value is removed, at the key-side rate eta, and k the key that is
    written, W = retained W - (W kappa)(eta * kappa)' + v k'.
    """

    short = "GD"
    eta: float | None = None
    decoupled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.eta is None or self.eta >= 0, f"GradientDescent needs eta >= 0, got {self.eta}")
        require(not (self.decoupled and self.eta is not None), "GradientDescent(decoupled=True) takes eta as a gate")

    @property
    def gates(self) -> tuple[Gate, ...]:
        if self.decoupled:
            return (Gate("eta", "key"), Gate("kappa", "keys only"))
        return () if self.eta is not None else (Gate("eta", "value"),)

    @property
    def fixed_eta(self) -> float | None:
        return self.eta

    def rule(self, gradient: Rule, rate: Rule, place: Rule) -> tuple[Rule | None, Rule]:
        if self.decoupled:
            return None, Rule(
                f"({place.text} kappa_t)(eta_t * kappa_t)' + v_t k_t'",
                rf"({place.latex} \kappa_t)(\eta_t \odot \kappa_t)^\top + \mathbf{{v}}_t \mathbf{{k}}_t^\top",
            )
        if self.eta == 1 and rate.text == "eta_t":
            return None, gradient
        return None, Rule(f"{rate.text} {gradient.text}", f"{rate.latex} {gradient.latex}")
