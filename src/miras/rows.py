"""Rows of a state: where each stands in its chunk, and their numbers on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .types import AnyState, State


def places(state: AnyState) -> list[int]:
    """How far into its chunk each row stands; read where it lies, which is the CPU unless somebody moved it."""
    if not isinstance(state, State) or state.chunk is None:
        return [0] * len(pytree.tree_leaves(state.weights)[0])
    found: list[int] = state.chunk.position.tolist()
    return found


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Numbers on a device, which nobody waits for."""
    return torch.tensor(numbers, dtype=torch.long).to(device, non_blocking=True)
