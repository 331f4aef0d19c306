"""Which fused operator runs an MLP memory: the 1-layer one has its own, the 2-layer one the deep kernels.

B batch, T time, H heads, D channels
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory import MLP
from ..spec import Spec
from ..types import Gates, Norm, State
from . import deep_op, linear_op


def why_not(
    spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int, gates: Gates | None = None
) -> str | None:
    """Why no kernel runs a call, or None where one does; without ``gates`` those are taken to fit."""
    if _single(spec):
        return linear_op.why_not(spec, device, dtype, channels, size)
    return deep_op.why_not(spec, device, dtype, channels, size, gates)


def run(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    norm: Norm | None,
    state: State,
    size: int,
    lengths: list[int],
) -> tuple[Tensor, State]:
    """Tokens ``[B,T,H,D]`` by the operator of their memory; ``lengths`` are those of the sequences, one behind the other."""
    operator = linear_op.run if _single(spec) else deep_op.run
    return operator(spec, q, k, v, gates, norm, state, size, lengths)


def _single(spec: Spec) -> bool:
    return isinstance(spec.memory, MLP) and spec.memory.depth == 1
