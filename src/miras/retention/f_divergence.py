"""f-divergence retention: W = W_prev * g(-zeta - eta grad) on a scaled simplex (the paper's variant 1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from ..types import Held, Rule, require
from .base import Linear, Retention
from .simplex import (
    Slice,
    in_simplex,
    linear_in_simplex,
    log_simplex,
    slice_axes,
    slice_mass,
)

BISECTIONS = 40
REFINEMENTS = 5


class Divergence(ABC):
    """An increasing g >= 0, the inverse of f'. A g of one's own is a class with a name and three short methods.

    ``neutral`` is where g = 1 (nothing changes), ``limit`` where g becomes infinite.
    """

    known: ClassVar[dict[str, Divergence]] = {}
    neutral: ClassVar[float]
    limit: ClassVar[float] = math.inf

    def __init_subclass__(cls, *, name: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Divergence.known[name] = cls()

    @abstractmethod
    def g(self, x: Tensor) -> Tensor:
        """The factor W_t / W_(t-1)."""

    @abstractmethod
    def slope(self, x: Tensor) -> Tensor:
        """g'(x)."""

    @abstractmethod
    def f(self, ratio: Tensor) -> Tensor:
        """f(W_t / W_(t-1)), for the penalty."""


class KullbackLeibler(Divergence, name="kl"):
    """f = r log r, g = exp(x - 1)."""

    neutral = 1.0

    def g(self, x: Tensor) -> Tensor:
        return (x - 1).exp()

    def slope(self, x: Tensor) -> Tensor:
        return (x - 1).exp()

    def f(self, ratio: Tensor) -> Tensor:
        return torch.xlogy(ratio, ratio)


class ReverseKL(Divergence, name="reverse_kl"):
    """f = -log r, g = -1/x for x < 0."""

    neutral = -1.0
    limit = 0.0

    def g(self, x: Tensor) -> Tensor:
        return -1 / x

    def slope(self, x: Tensor) -> Tensor:
        return x**-2

    def f(self, ratio: Tensor) -> Tensor:
        return -ratio.log()


class ChiSquared(Divergence, name="chi2"):
    """f = (r - 1)^2, g = max(0, 1 + x/2): weights can become exactly 0, and stay so."""

    neutral = 0.0

    def g(self, x: Tensor) -> Tensor:
        return torch.relu(1 + x / 2)

    def slope(self, x: Tensor) -> Tensor:
        return torch.where(x > -2, 0.5, 0.0).to(x)

    def f(self, ratio: Tensor) -> Tensor:
        return (ratio - 1) ** 2


class Hellinger(Divergence, name="hellinger"):
    """f = (sqrt r - 1)^2, g = 1/(1 - x)^2 for x < 1."""

    neutral = 0.0
    limit = 1.0

    def g(self, x: Tensor) -> Tensor:
        return (1 - x) ** -2

    def slope(self, x: Tensor) -> Tensor:
        return 2 * (1 - x) ** -3

    def f(self, ratio: Tensor) -> Tensor:
        return (ratio.sqrt() - 1) ** 2


def solve_multiplier(divergence: Divergence, weight: Tensor, update: Tensor, axes: tuple[int, ...], mass: float) -> Tensor:
    """zeta with sum W g(-zeta - update) = mass over each slice, differentiable in W and update.

    The sum decreases in zeta. Between the multipliers that would be right if every entry had the largest or the smallest
    update it is bisected; Newton's steps then finish it. The last two are differentiated: started at the root, k of them carry
    2^k - 1 exact derivatives.
    """

    def excess(zeta: Tensor, w: Tensor, u: Tensor) -> Tensor:
        return (w * divergence.g(-zeta - u)).sum(axes, keepdim=True) - mass

    def newton(zeta: Tensor, w: Tensor, u: Tensor) -> Tensor:
        return zeta + excess(zeta, w, u) / (w * divergence.slope(-zeta - u)).sum(axes, keepdim=True)

    w, u = weight.detach(), update.detach()
    smallest = u.amin(axes, keepdim=True)
    low = -divergence.neutral - u.amax(axes, keepdim=True)
    if divergence.limit < math.inf:
        low = torch.maximum(low, -divergence.limit - smallest)
    high = -divergence.neutral - smallest
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = excess(middle, w, u) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    zeta = high
    for _ in range(REFINEMENTS):
        better = newton(zeta, w, u)
        zeta = torch.where((better >= low) & (better <= high), better, zeta)
    return newton(newton(zeta, weight, update), weight, update)


@dataclass(frozen=True, kw_only=True)
class FDivergence(Retention):
    """W = W_prev * g(-zeta - eta grad), zeta such that every slice keeps its sum c.

    It minimises <W - W_prev, eta g> + sum W_prev f(W / W_prev) over the simplex. ``g`` is named: "kl", "reverse_kl",
    "chi2" (clamped at 0), "hellinger", or one of your own (:class:`Divergence`). Initial weights are logits, W_0 = c softmax.
    """

    g: str = "kl"
    c: float | None = None
    slice: Slice = "column"
    scales_gradient = True
    zero_start = False

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ", ".join(sorted(Divergence.known))
        require(self.g in Divergence.known, f"unknown divergence {self.g!r}: known are {known}")
        require(self.c is None or self.c > 0, f"FDivergence needs c > 0, or None for the slice's length, got {self.c}")
        require(self.slice in get_args(Slice), f"FDivergence slice is one of {get_args(Slice)}, got {self.slice!r}")

    def start(self, initial: Tensor) -> Held:
        weight = log_simplex(initial, self.slice, self.c).exp()
        return Held(weight, weight)

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        divergence, axes = Divergence.known[self.g], slice_axes(held.weight, self.slice)
        # in float64: where the entry with the smallest update has almost no weight, the root lies a hair from g's pole
        previous, change = held.weight.double(), update.double()
        zeta = solve_multiplier(divergence, previous, change, axes, slice_mass(held.weight, self.slice, self.c))
        weight = (previous * divergence.g(-zeta - change)).to(held.weight.dtype)
        return Held(weight, weight)

    def linear(self, held: Held, anchor: Tensor | None) -> Linear:
        return linear_in_simplex(held.weight, self.slice, self.c)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        value = (held.weight * Divergence.known[self.g].f(weight / held.weight)).sum()
        return torch.where(in_simplex(weight, self.slice, self.c), value, torch.inf)

    def rule(self, update: Rule) -> Rule:
        name = self.g
        return Rule(
            f"W_t = W_(t-1) * g(-zeta_t - {update.text}), sum W = c, g of {name}",
            rf"W_t = W_{{t-1}} \odot g\left(-\zeta_t - {update.latex}\right), \quad g = (f')^{{-1}} \text{{ of {name}}}",
        )
