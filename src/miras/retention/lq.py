"""l_q retention (Moneta): A accumulates, W = A / ||A||_q^(q-2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..types import Gate, Held, Rule, require
from .base import Dual, Linear, decay, weight_axes

LinkName = Literal["paper", "exact"]


def lq_norm(a: Tensor, q: float, floor: float) -> Tensor:
    """max(||A||_q, floor) over each weight, kept; scaled by the largest entry so that powers neither under- nor overflow."""
    axes = weight_axes(a)
    scale = a.detach().abs().amax(axes, keepdim=True).clamp_min(floor)
    relative = a / scale
    # whole powers of squares are products, which a processor does ten times faster than others
    powers = relative.square() ** (q / 2) if q % 2 == 0 else relative.abs() ** q
    size: Tensor = scale * powers.sum(axes, keepdim=True).clamp_min(1.0) ** (1 / q)
    return size


def signed_power(a: Tensor, power: float) -> Tensor:
    """sign(A) |A|^power, with derivative 0 at A = 0."""
    nonzero = a != 0
    return torch.where(nonzero, a.sign() * torch.where(nonzero, a.abs(), 1.0) ** power, 0.0)


@dataclass(frozen=True, kw_only=True)
class Lq(Dual):
    """A = alpha A_prev - eta g, then W = A / ||A||_q^(q-2) ("paper") or sign(A) |A|^(q-1) / ||A||_q^(q-2) ("exact").

    The exact link minimises <W, eta g> + 1/2 ||W||_r^2 - <W, alpha A_prev>, r = q/(q-1), the paper's FTRL objective; it is
    homogeneous of degree one. The printed link lacks the power, minimises nothing and scales as s^(3-q), so ``floor`` holds
    its norm away from zero. The norm is taken over each weight matrix of a head. ``anchor`` pulls A towards A_0.
    """

    q: float = 4.0
    link: LinkName = "paper"
    anchor: bool = False
    floor: float = 1e-4
    scales_gradient = True
    zero_start = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.link in get_args(LinkName), f"Lq link is one of {get_args(LinkName)}, got {self.link!r}")
        low, allowed = ("1 or more", self.q >= 1) if self.link == "paper" else ("more than 1", self.q > 1)
        require(allowed, f"Lq(link='{self.link}') needs a q of {low}, got q={self.q}")
        require(self.floor > 0, f"Lq needs floor > 0, got {self.floor}")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return (Gate("log_alpha", "value"),)

    @property
    def anchored(self) -> bool:
        return self.anchor

    def to_weight(self, accumulated: Tensor) -> Tensor:
        norm = lq_norm(accumulated, self.q, self.floor)
        if self.link == "paper":
            return accumulated / norm ** (self.q - 2)
        # powers of what is no more than 1: those of A itself overflow
        return norm * signed_power(accumulated / norm, self.q - 1)

    def slope(self, accumulated: Tensor) -> Tensor:
        """dW_j/dA_j with the norm held."""
        norm = lq_norm(accumulated, self.q, self.floor)
        if self.link == "paper":
            return torch.ones_like(accumulated) / norm ** (self.q - 2)
        return (self.q - 1) * signed_power(accumulated / norm, self.q - 2).abs()

    def linear(self, held: Held, anchor: Tensor | None) -> Linear:
        """The printed link is linear while its norm is held, so its anchor moves with that norm too."""
        moving = super().linear(held, anchor)
        if self.link == "exact" or anchor is None:
            return moving
        assert moving.slope is not None
        return moving._replace(towards=anchor * moving.slope)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        if self.link == "paper":
            return super().penalty(weight, held, eta, log_alpha, anchor)
        conjugate = self.q / (self.q - 1)
        size = (weight.abs() ** conjugate).sum() ** (1 / conjugate)
        return 0.5 * size**2 - (weight * decay(held.accumulated, log_alpha, anchor)).sum()

    def rule(self, update: Rule) -> Rule:
        pull = (" + (1 - alpha_t) A_0", r" + (1 - \alpha_t) A_0") if self.anchor else ("", "")
        top, latex = (
            ("A_t", "A_t")
            if self.link == "paper"
            else (f"sign(A_t) |A_t|^{self.q - 1:g}", rf"\mathrm{{sign}}(A_t) \odot |A_t|^{{{self.q - 1:g}}}")
        )
        return Rule(
            f"A_t = alpha_t A_(t-1){pull[0]} - {update.text},  W_t = {top} / ||A_t||_{self.q:g}^{self.q - 2:g}",
            rf"A_t = \alpha_t A_{{t-1}}{pull[1]} - {update.latex}, \quad "
            rf"W_t = \frac{{{latex}}}{{\|A_t\|_{{{self.q:g}}}^{{{self.q - 2:g}}}}}",
        )
