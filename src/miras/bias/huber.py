"""Huber bias (Yaad): l2 for small errors, l1 for large ones, in the paper's three forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..types import Gate, Rule, require
from .base import SHARPNESS, Bias, direction, safe_norm, soft_sign, threshold

Form = Literal["coordinate", "norm", "mixture"]


def huber(a: Tensor, delta: Tensor) -> Tensor:
    """H(a) = a^2/2 where |a| <= delta, delta (|a| - delta/2) elsewhere."""
    size = a.abs()
    return torch.where(size <= delta, 0.5 * a * a, delta * (size - 0.5 * delta))


@dataclass(frozen=True, kw_only=True)
class Huber(Bias):
    """The Huber loss of each coordinate, of the error's norm, or the printed mixture that switches from l2 to delta * l1.

    ``delta`` fixes the threshold, infinite for the l2 loss; without it the gate ``delta`` sets it for each token (channel-wise
    in the coordinate form).
    ``smooth`` puts tanh(a e) for the sign in the l1 branch (coordinate and mixture). The coordinate gradient is continuous
    without it; the mixture's is not.
    """

    form: Form = "coordinate"
    delta: float | None = None
    smooth: bool = False
    sharpness: float = SHARPNESS
    endless = ("delta",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.form in get_args(Form), f"Huber form is one of {get_args(Form)}, got {self.form!r}")
        require(self.delta is None or self.delta >= 0, f"Huber needs delta >= 0, got {self.delta}")
        require(self.sharpness > 0, f"Huber needs sharpness > 0, got {self.sharpness}")
        require(
            not (self.smooth and self.form == "norm"),
            "Huber(form='norm') has no sign to smooth: e/||e|| is smooth away from 0; leave smooth=False",
        )

    @property
    def gates(self) -> tuple[Gate, ...]:
        if self.delta is not None:
            return ()
        return (Gate("delta", "value" if self.form == "coordinate" else "scalar"),)

    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        e, d = prediction - value, threshold(self.delta, delta, prediction)
        if self.form == "coordinate":
            return huber(e, d).sum(-1)
        norm = safe_norm(e)
        if self.form == "norm":
            return huber(norm, d).squeeze(-1)
        return torch.where(norm <= d, 0.5 * norm**2, d * e.abs().sum(-1, keepdim=True)).squeeze(-1)

    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        e, d = prediction - value, threshold(self.delta, delta, prediction)
        if self.form == "norm":
            small = safe_norm(e) <= d
            return torch.where(small, e, torch.where(small, 0.0, d) * direction(e))
        sign = soft_sign(e, self.sharpness) if self.smooth else e.sign()
        size = e.abs() if self.form == "coordinate" else safe_norm(e)
        # the inner where keeps an infinite threshold out of the product, whose derivative would be 0 * inf
        return torch.where(size <= d, e, torch.where(size <= d, 0.0, d) * sign)

    def rule(self) -> Rule:
        size, latex_size = ("|e_t|", "|e_t|") if self.form == "coordinate" else ("||e_t||", r"\|e_t\|")
        large, latex_large = {
            "norm": ("e_t/||e_t||", r"e_t / \|e_t\|"),
            "smooth": (f"tanh({self.sharpness:g} e_t)", rf"\tanh({self.sharpness:g} e_t)"),
            "sign": ("sign(e_t)", r"\mathrm{sign}(e_t)"),
        }["norm" if self.form == "norm" else "smooth" if self.smooth else "sign"]
        return Rule(
            f"(e_t where {size} <= delta_t, else delta_t {large})",
            rf"\begin{{cases}} e_t & {latex_size} \le \delta_t \\ \delta_t {latex_large} & \text{{otherwise}} \end{{cases}}",
        )
