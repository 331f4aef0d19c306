"""Bregman retention: mirror descent, W = link(link^-1(W_prev) - eta g) (the paper's variant 5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..types import Held, Rule, require
from .base import Dual


class Link(ABC):
    """A strictly increasing map and the potential f whose derivative is its inverse. Give a link of your own a name:

    >>> class Cube(Link, name="cube"):
    ...     def link(self, a): return a**3 + a
    ...     def slope(self, a): return 3 * a**2 + 1
    ...     def potential(self, w): raise NotImplementedError
    """

    known: ClassVar[dict[str, Link]] = {}

    def __init_subclass__(cls, *, name: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Link.known[name] = cls()

    @abstractmethod
    def link(self, a: Tensor) -> Tensor:
        """W = link(A)."""

    @abstractmethod
    def slope(self, a: Tensor) -> Tensor:
        """link'(A)."""

    @abstractmethod
    def potential(self, w: Tensor) -> Tensor:
        """f(W) with f' = link^-1, for the penalty."""


class Identity(Link, name="identity"):
    """f = w^2/2: plain gradient descent."""

    def link(self, a: Tensor) -> Tensor:
        return a

    def slope(self, a: Tensor) -> Tensor:
        return torch.ones_like(a)

    def potential(self, w: Tensor) -> Tensor:
        return 0.5 * w * w


class Sigmoid(Link, name="sigmoid"):
    """f = w log w + (1 - w) log(1 - w): weights stay in (0, 1)."""

    def link(self, a: Tensor) -> Tensor:
        return torch.sigmoid(a)

    def slope(self, a: Tensor) -> Tensor:
        return torch.sigmoid(a) * torch.sigmoid(-a)

    def potential(self, w: Tensor) -> Tensor:
        return torch.xlogy(w, w) + torch.xlogy(1 - w, 1 - w)


class Exp(Link, name="exp"):
    """f = w log w - w: exponentiated gradient, weights stay positive."""

    def link(self, a: Tensor) -> Tensor:
        return a.exp()

    def slope(self, a: Tensor) -> Tensor:
        return a.exp()

    def potential(self, w: Tensor) -> Tensor:
        return torch.xlogy(w, w) - w


class Tanh(Link, name="tanh"):
    """f = w atanh w + log(1 - w^2)/2: weights stay in (-1, 1)."""

    def link(self, a: Tensor) -> Tensor:
        return torch.tanh(a)

    def slope(self, a: Tensor) -> Tensor:
        return 1 - torch.tanh(a) ** 2

    def potential(self, w: Tensor) -> Tensor:
        return w * torch.atanh(w) + 0.5 * torch.log1p(-w * w)


@dataclass(frozen=True, kw_only=True)
class Bregman(Dual):
    """A = A_prev - eta g ; W = link(A). Ret = D_F(W, W_prev) / eta, F the sum of the link's potential.

    Initial weights are given as A_0 = link^-1(W_0).
    """

    link: str = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ", ".join(sorted(Link.known))
        require(self.link in Link.known, f"Bregman link {self.link!r} is unknown: known are {known}")

    def to_weight(self, accumulated: Tensor) -> Tensor:
        return Link.known[self.link].link(accumulated)

    def slope(self, accumulated: Tensor) -> Tensor:
        return Link.known[self.link].slope(accumulated)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        potential = Link.known[self.link].potential
        away = potential(weight) - potential(held.weight) - held.accumulated * (weight - held.weight)
        return (away / eta).sum()

    def rule(self, update: Rule) -> Rule:
        name = self.link
        return Rule(
            f"W_t = {name}({name}^-1(W_(t-1)) - {update.text})",
            rf"W_t = g\left(g^{{-1}}(W_{{t-1}}) - {update.latex}\right), \quad g = \mathrm{{{name}}}",
        )
