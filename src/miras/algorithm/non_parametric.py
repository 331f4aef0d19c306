"""The non-parametric solution (softmax attention): the Nadaraya-Watson estimate from all pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Rule, require
from .base import Algorithm


@dataclass(frozen=True, kw_only=True)
class NonParametric(Algorithm):
    """y_t = sum_i softmax_i(scale q_t.k_i) v_i over i <= t: the local constant fit of the l2 loss. scale None is 1/sqrt(K)."""

    short = "Nonparametric"
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.scale is None or self.scale > 0, f"NonParametric needs scale > 0, got {self.scale}")

    def scale_for(self, keys: int) -> float:
        """The scale of the logits for keys of a width."""
        return 1 / math.sqrt(keys) if self.scale is None else self.scale

    def lines(self) -> tuple[Rule, ...]:
        """Its update rule, as formulas."""
        return (
            Rule("M_t = M_(t-1) + {(k_t, v_t)}", r"\mathcal{M}_t = \mathcal{M}_{t-1} \cup \{(\mathbf{k}_t, \mathbf{v}_t)\}"),
            Rule(
                "y_t = sum_i softmax_i(scale q_t.k_i) v_i",
                r"\mathbf{y}_t = \sum_{i \le t} \mathrm{softmax}_i(s\, \mathbf{q}_t^\top \mathbf{k}_i)\, \mathbf{v}_i",
            ),
        )


def attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Nadaraya-Watson over the pairs ``seen``: q ``[B,N,H,K]``, keys ``[B,S,H,K]``, seen ``[B,S]`` to ``[B,N,H,V]``."""
    logits = scale * torch.einsum("bnhk,bshk->bhns", q, keys)
    share = torch.softmax(logits.masked_fill(~seen[:, None, None], -torch.inf), -1)
    return torch.einsum("bhns,bshv->bnhv", share, values)
