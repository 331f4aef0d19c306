"""Which fused operator runs an MLP memory: the 1-layer one has its own, the 2-layer one the deep kernels, all chunks at once or one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..memory import MLP
from ..spec import Spec
from ..types import Gates, State
from . import deep_op, linear_op, own_step, proven


def why_not(
    spec: Spec, device: torch.device, dtype: torch.dtype, channels: int, size: int, gates: Gates | None = None
) -> str | None:
    """Why no kernel runs a call, or None where one does; without ``gates`` those are taken to fit."""
    if _single(spec):
        return linear_op.why_not(spec, device, dtype, channels, size)
    if own_step.takes(spec):
        return own_step.why_not(spec, device, dtype, channels, size)
    return deep_op.why_not(spec, device, dtype, channels, size, gates)


def widths(spec: Spec, device: torch.device, dtype: torch.dtype, size: int) -> list[int]:
    """The channels a head that kernels run a spec at, of those that they were compared at in a dtype."""
    _, compared = (linear_op if _single(spec) else deep_op).PROVEN.get(dtype, ((), ()))
    return [channels for channels in compared if why_not(spec, device, dtype, channels, size) is None]


def by_name_alone(spec: Spec, device: torch.device) -> str | None:
    """Why kernels that can run a call wait to be asked for, or None where they are taken."""
    return proven.elsewhere(device) or own_step.uncompared(spec, device)


def operator(spec: Spec) -> Callable[..., tuple[Tensor, State]]:
    """What runs a call of a spec: ``run`` of its memory's kernels."""
    if _single(spec):
        return linear_op.run
    return own_step.run if own_step.takes(spec) else deep_op.run


def _single(spec: Spec) -> bool:
    return isinstance(spec.memory, MLP) and spec.memory.depth == 1
