"""Which fused operator runs an MLP memory: the 1-layer one has its own, the 2-layer one the deep kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..memory import MLP
from ..spec import Spec
from ..types import Gates, State
from . import deep_op, linear_op


def why_not(
    spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int, gates: Gates | None = None
) -> str | None:
    """Why no kernel runs a call, or None where one does; without ``gates`` those are taken to fit."""
    if _single(spec):
        return linear_op.why_not(spec, device, dtype, channels, size)
    return deep_op.why_not(spec, device, dtype, channels, size, gates)


def operator(spec: Spec) -> Callable[..., tuple[Tensor, State]]:
    """What runs a call of a spec: ``run`` of its memory's kernels."""
    return linear_op.run if _single(spec) else deep_op.run


def _single(spec: Spec) -> bool:
    return isinstance(spec.memory, MLP) and spec.memory.depth == 1
