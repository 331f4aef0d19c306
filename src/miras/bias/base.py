"""The room of attentional biases: what is minimised on each key-value pair.

Predictions, values and gradients are ``[..., V]``; e = M(k) - v.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..types import Gate, Part, Rule

SHARPNESS = 10.0
EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Bias(Part, ABC):
    """A loss at the prediction, and its gradient there in closed form."""

    room: ClassVar[str] = "bias"

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The gates this bias reads."""
        return ()

    @abstractmethod
    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        """The loss of each token: ``[..., V] -> [...]``."""

    @abstractmethod
    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        """The gradient of the loss at the prediction, ``[..., V]``; ``delta`` is ``[..., V]`` or ``[..., 1]``."""

    @abstractmethod
    def rule(self) -> Rule:
        """The gradient at the prediction, as a formula in e = M(k) - v."""


def soft_sign(x: Tensor, sharpness: float) -> Tensor:
    """sign(x) ~ tanh(a x)."""
    return torch.tanh(sharpness * x)


def soft_abs(x: Tensor, eps: float) -> Tensor:
    """|x| ~ sqrt(x^2 + eps)."""
    return torch.sqrt(x * x + eps)


def safe_norm(e: Tensor) -> Tensor:
    """||e||_2 over the last axis, kept; exactly 0 at e = 0, where its derivative is taken to be 0."""
    square = (e * e).sum(-1, keepdim=True)
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def direction(e: Tensor) -> Tensor:
    """e / ||e||_2, and 0 at e = 0."""
    norm = safe_norm(e)
    return torch.where(norm > 0, e / torch.where(norm > 0, norm, 1.0), 0.0)


def threshold(fixed: float | None, gate: Tensor | None, like: Tensor) -> Tensor:
    """The bias's own fixed delta or, without one, the gate."""
    if fixed is not None:
        return like.new_full((), fixed)
    assert gate is not None
    return gate
