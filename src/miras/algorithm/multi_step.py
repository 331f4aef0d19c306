"""Several steps a token (DeltaProduct)."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import Gate, Rule, require
from .base import Descent


@dataclass(frozen=True, kw_only=True)
class MultiStep(Descent):
    """n steps of gradient descent a token, each on a pair (k, v) and a step eta of its own; the decay is taken once, first.

    k, v and eta have length T * n, q and the other gates length T.
    """

    short = "MGD"
    n: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n >= 1, f"MultiStep needs n >= 1, got {self.n}")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return (Gate("eta", "value"),)

    @property
    def pairs(self) -> int:
        return self.n

    def rule(self, gradient: Rule, rate: Rule, place: Rule) -> tuple[Rule | None, Rule]:
        line = Rule(
            f"for each of the token's {self.n} pairs (alpha_t with the first alone)",
            rf"\text{{for each of the token's }} {self.n} \text{{ pairs (}} \alpha_t \text{{ with the first alone)}}",
        )
        return line, Rule(f"{rate.text} {gradient.text}", f"{rate.latex} {gradient.latex}")
