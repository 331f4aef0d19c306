"""What single models add around their memory: Mamba's step and skip, RWKV's removal key and bonus.

B batch, T time, H heads, K key channels, V value channels of a head
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..spec import Spec
from ..types import Gates
from .functional import unit_length
from .recipes import Recipe


class Extras(nn.Module):
    """Changes to the pairs before the memory learns them, and to the output after it; nothing for most models."""

    def __init__(self, spec: Spec, recipe: Recipe, heads: int, keys: int) -> None:
        super().__init__()
        self.decoupled = spec.decoupled
        self.skip = nn.Parameter(torch.empty(heads)) if recipe.skip else None
        self.bonus = nn.Parameter(torch.empty(heads, keys)) if recipe.bonus else None
        self.removal = nn.Parameter(torch.empty(heads, keys)) if spec.decoupled else None
        self.replacement = nn.Parameter(torch.empty(heads, keys)) if spec.decoupled else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight, value in ((self.skip, 1.0), (self.bonus, 0.0), (self.removal, 1.0), (self.replacement, 1.0)):
            if weight is not None:
                nn.init.constant_(weight, value)

    def forward(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The parameters themselves; asked for by a call, so that hooks which bring offloaded ones in see it."""
        return self.skip, self.bonus, self.removal, self.replacement

    def pairs(self, k: Tensor | None, v: Tensor, gates: Gates, step: Tensor | None) -> tuple[Tensor | None, Tensor, Gates]:
        """Keys, values and gates as the memory takes them; values are multiplied by Mamba's time step ``[B,T,H]``."""
        if step is not None:
            v = v * step[..., None].to(v.dtype)
        if self.decoupled:
            eta, (_, _, removal, replacement) = gates.eta, self()
            assert k is not None and eta is not None and removal is not None and replacement is not None
            gates = gates._replace(kappa=unit_length(k * removal.to(k.dtype)))
            rate = eta if eta.dim() == 4 else eta[..., None]
            k = k * (1 + (rate - 1) * replacement).to(k.dtype)
        return k, v, gates

    def output(self, y: Tensor, q: Tensor, k: Tensor | None, v: Tensor) -> Tensor:
        """The memory's output with what is added to it."""
        skip, bonus, _, _ = self()
        if skip is not None:
            y = y + skip.to(y.dtype)[:, None] * v
        if bonus is not None:
            assert k is not None
            y = y + (q * bonus.to(q.dtype) * k).sum(-1, keepdim=True) * v
        return y
