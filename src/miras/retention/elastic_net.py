"""Elastic-net retentions: soft forgetting by decay, hard forgetting by a soft threshold (the paper's variants 2 and 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Held, Rule, require
from .base import Rates, Retention, decay


def soft_threshold(z: Tensor, gamma: Tensor) -> Tensor:
    """S_gamma(z) = sign(z) max(0, |z| - gamma)."""
    return z.sign() * torch.relu(z.abs() - gamma)


def smooth_threshold(z: Tensor, gamma: Tensor) -> Tensor:
    """The paper's |z| atan(z/gamma) / (pi/2), which shrinks large z by 2 gamma/pi only; z itself at gamma = 0."""
    positive = (gamma > 0).expand_as(z)
    angle = torch.atan(z / torch.where(positive, gamma, 1.0))
    return torch.where(positive, z.abs() * angle / (math.pi / 2), z)


@dataclass(frozen=True, kw_only=True)
class ElasticNet(Retention):
    """W = S_gamma(lambda W_prev - zeta g), lambda = b/(b + eta), zeta = eta lambda, gamma = zeta / a.

    Ret = ||W - W_prev||^2 / (2 eta) + ||W||^2 / (2 b) + ||W||_1 / a. ``smooth`` takes the paper's arctangent threshold.
    """

    a: float = 10.0
    b: float = 10.0
    smooth: bool = False
    sums_thresholds = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.a > 0, f"ElasticNet needs a > 0, got {self.a}")
        require(self.b > 0, f"ElasticNet needs b > 0, got {self.b}")

    def rates(self, eta: Tensor, log_alpha: Tensor | None) -> Rates:
        kept = self.b / (self.b + eta)
        return Rates(-torch.log1p(eta / self.b), eta * kept, eta * kept / self.a)

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        assert threshold is not None
        shrink = smooth_threshold if self.smooth else soft_threshold
        weight = shrink(decay(held.weight, log_decay, None) - update, threshold)
        return Held(weight, weight)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        if self.smooth:
            return super().penalty(weight, held, eta, log_alpha, anchor)
        local = ((weight - held.weight) ** 2 / (2 * eta)).sum()
        return local + (weight**2).sum() / (2 * self.b) + weight.abs().sum() / self.a

    def rule(self, update: Rule) -> Rule:
        return Rule(
            f"W_t = S_(zeta_t/a)(lambda_t W_(t-1) - {update.text}), lambda_t = b/(b + eta_t), zeta_t = eta_t lambda_t",
            rf"W_t = \mathcal{{S}}_{{\zeta_t / a}}\left(\lambda_t W_{{t-1}} - {update.latex}\right), \quad "
            r"\lambda_t = \tfrac{b}{b + \eta_t}, \quad \zeta_t = \eta_t \lambda_t",
        )

    @property
    def rate_rule(self) -> Rule:
        return Rule("zeta_t", r"\zeta_t")


@dataclass(frozen=True, kw_only=True)
class ElasticNetFTRL(Retention):
    """A = A_prev - eta g ; W = S_(eta/a)(A).

    Ret = (||W||^2/2 - <W, A_prev>) / eta + ||W||_1 / a, the follow-the-regularised-leader objective when eta is constant.
    Before the first step there is no threshold: W_0 = A_0. ``smooth`` takes the paper's arctangent threshold.
    """

    a: float = 10.0
    smooth: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.a > 0, f"ElasticNetFTRL needs a > 0, got {self.a}")

    def rates(self, eta: Tensor, log_alpha: Tensor | None) -> Rates:
        return Rates(None, eta, eta / self.a)

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        assert threshold is not None
        accumulated = held.accumulated - update
        return Held(accumulated, (smooth_threshold if self.smooth else soft_threshold)(accumulated, threshold))

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        if self.smooth:
            return super().penalty(weight, held, eta, log_alpha, anchor)
        return ((0.5 * weight**2 - weight * held.accumulated) / eta).sum() + weight.abs().sum() / self.a

    def rule(self, update: Rule) -> Rule:
        return Rule(
            f"A_t = A_(t-1) - {update.text},  W_t = S_(eta_t/a)(A_t)",
            rf"A_t = A_{{t-1}} - {update.latex}, \quad W_t = \mathcal{{S}}_{{\eta_t / a}}(A_t)",
        )
