"""l_p bias (Moneta), and l_1, the value-less memory: equation "lp-attentional-bias" of the paper."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import Rule, require
from .base import EPS, SHARPNESS, Bias, soft_abs, soft_sign


@dataclass(frozen=True, kw_only=True)
class Lp(Bias):
    """||e||_p^p, gradient p sign(e) |e|^(p-1), p >= 1.

    The smooth form (the default) puts tanh(a e) for sign(e) and sqrt(e^2 + eps) for |e| into the gradient; it is not the
    gradient of a smoothed loss.
    """

    p: float = 3.0
    smooth: bool = True
    sharpness: float = SHARPNESS
    eps: float = EPS

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.p >= 1, f"Lp needs p >= 1 (below that the gradient is infinite at e = 0), got p={self.p}")
        require(self.sharpness > 0, f"Lp needs sharpness > 0, got {self.sharpness}")
        require(self.eps > 0, f"Lp needs eps > 0, got {self.eps}")

    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return ((prediction - value).abs() ** self.p).sum(-1)

    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        e = prediction - value
        if self.smooth:
            return self.p * soft_sign(e, self.sharpness) * soft_abs(e, self.eps) ** (self.p - 1)
        return self.p * e.sign() * e.abs() ** (self.p - 1)

    def rule(self) -> Rule:
        if self.smooth:
            return Rule(
                f"{self.p:g} tanh({self.sharpness:g} e_t) * (e_t^2 + {self.eps:g})^({self.p - 1:g}/2)",
                rf"{self.p:g} \tanh({self.sharpness:g} e_t) \odot (e_t^2 + \epsilon)^{{{self.p - 1:g}/2}}",
            )
        return Rule(
            f"{self.p:g} sign(e_t) * |e_t|^{self.p - 1:g}",
            rf"{self.p:g}\, \mathrm{{sign}}(e_t) \odot |e_t|^{{{self.p - 1:g}}}",
        )


@dataclass(frozen=True, kw_only=True)
class L1(Bias):
    """||e||_1, gradient sign(e): the memory learns only on which side of its prediction the value lies."""

    smooth: bool = True
    sharpness: float = SHARPNESS

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sharpness > 0, f"L1 needs sharpness > 0, got {self.sharpness}")

    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return (prediction - value).abs().sum(-1)

    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        e = prediction - value
        return soft_sign(e, self.sharpness) if self.smooth else e.sign()

    def rule(self) -> Rule:
        if self.smooth:
            return Rule(f"tanh({self.sharpness:g} e_t)", rf"\tanh({self.sharpness:g} e_t)")
        return Rule("sign(e_t)", r"\mathrm{sign}(e_t)")
