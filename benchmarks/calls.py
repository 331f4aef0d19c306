"""Tame inputs for benchmarks: unit keys and queries, relative steps, little decay, initial weights of unit scale.

B batch, T time, H heads, D channels
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from miras import Gates, Spec
from miras.lab.untrained import initial_weights, unit_step

# eta = STEP * std(W_0) * std(A_0), times 1 - MU with momentum; memories that start from zeros take the larger step
STEP, MATRIX_STEP, DECAY, DELTA, MU = 0.1, 0.5, 1e-3, 4.0, 0.5


class Call(NamedTuple):
    """The arguments of one call of ``memorize``."""

    spec: Spec
    q: Tensor
    k: Tensor
    v: Tensor
    gates: Gates
    weights: tuple[Tensor, ...] | None
    norm: tuple[Tensor, Tensor] | None

    @property
    def leaves(self) -> list[Tensor]:
        """Every tensor a gradient flows to."""
        given = (self.q, self.k, self.v, *self.gates, *(self.weights or ()), *(self.norm or ()))
        return [x for x in given if x is not None]


def draw(spec: Spec, *, time: int, heads: int, dim: int, channelwise: bool, decay: float = DECAY, seed: int = 0) -> Call:
    """Random arguments for a spec, all of them leaves that ask for a gradient; gates vary by half around their values."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q, k = (F.normalize(normal(1, time, heads, dim), dim=-1) for _ in range(2))
    weights = initial_weights(spec, heads, dim, seed)
    names = {gate.name for gate in spec.gates}
    step = MATRIX_STEP if weights is None else STEP * unit_step(spec, weights) * (1 - MU if "mu" in names else 1.0)
    values = {"eta": step, "log_alpha": -decay, "delta": DELTA, "mu": MU}
    shape = (1, time, heads, dim) if channelwise else (1, time, heads)
    gates = {name: values[name] * (0.5 + torch.rand(shape, generator=generator)) for name in sorted(names)}
    norm = None if spec.memory.linear else (torch.ones(heads, dim), torch.zeros(heads, dim))
    call = Call(spec, q, k, normal(1, time, heads, dim), Gates(**gates), weights, norm)
    for leaf in call.leaves:
        leaf.requires_grad_()
    return call
