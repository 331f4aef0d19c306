"""Newton (Mesa): the exact minimiser of the decayed l2 loss of all pairs so far, with a constant ridge.

B batch, H heads, K key channels, V value channels
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Gate, Rule
from .base import Algorithm


@dataclass(frozen=True, kw_only=True)
class Newton(Algorithm):
    """W_t = argmin sum_i (prod_{j=i+1..t} alpha_j) eta_i/2 ||W k_i - v_i||^2 + 1/2 ||(W - W_0) ridge^(1/2)||^2.

    The ridge does not decay; textbook recursive least squares decays it with the pairs and is something else.
    """

    short = "Newton"

    @property
    def gates(self) -> tuple[Gate, ...]:
        return (Gate("eta", "scalar"), Gate("ridge", "ridge"))

    def lines(self) -> tuple[Rule, ...]:
        """Its update rule, as formulas."""
        return (
            Rule(
                "W_t = argmin_W sum_i (alpha_(i+1)...alpha_t) eta_i/2 ||W k_i - v_i||^2 + 1/2 ||(W - W_0) ridge^(1/2)||^2",
                r"W_t = \arg\min_W \sum_{i \le t} \Big(\prod_{j=i+1}^{t} \alpha_j\Big) \tfrac{\eta_i}{2} "
                r"\|W \mathbf{k}_i - \mathbf{v}_i\|^2 + \tfrac12 \|(W - W_0) \Lambda^{1/2}\|^2",
            ),
        )


def solve(key_key: Tensor, value_key: Tensor, ridge: Tensor, anchor: Tensor) -> Tensor:
    """W = (sum v k' + W_0 ridge) (sum k k' + ridge)^-1, ``[B,H,V,K]``; ridge ``[H,K]`` is a diagonal."""
    normal = key_key + torch.diag_embed(ridge)
    weights: Tensor = torch.linalg.solve(normal, value_key + anchor * ridge[:, None, :], left=False)
    return weights
