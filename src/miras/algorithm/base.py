"""The room of algorithms: how the memory moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..types import Gate, Part, Rule


@dataclass(frozen=True, kw_only=True)
class Algorithm(Part, ABC):
    """How a memory's weights follow from what it has read."""

    room: ClassVar[str] = "algorithm"
    short: ClassVar[str]  # its name in the paper's table

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The gates this algorithm reads."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Descent(Algorithm, ABC):
    """An algorithm that moves fast weights along the surprise of one pair at a time."""

    remembers: ClassVar[bool] = False  # carries a momentum

    @property
    def pairs(self) -> int:
        """How many key-value pairs it learns a token."""
        return 1

    @property
    def fixed_eta(self) -> float | None:
        """The step, where it is fixed instead of a gate."""
        return None

    def rate(self, eta: Tensor, curvature: Tensor | None) -> Tensor:
        """The step along the gradient, ``[B,H,D or 1]``; ``curvature`` is k.k, given for a linear memory."""
        return eta

    def move(self, momentum: Tensor | None, step: Tensor, mu: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """The new momentum S and what is subtracted from the weight, given the step ``eta g``."""
        return None, step

    @abstractmethod
    def rule(self, gradient: Rule, rate: Rule, place: Rule) -> tuple[Rule | None, Rule]:
        """A line of its own, if it needs one, and what is subtracted from the weights, as formulas.

        Given are the gradient's formula, the name of the step, and the weights at which the surprise is measured.
        """
