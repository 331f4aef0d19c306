"""States of a decoding step: where their rows stand, as the step takes and gives them, and rows that plain PyTorch has led.

B batch, H heads, D channels, E hidden channels
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..rows import on_device, places
from ..types import Progress, State, Weights, require


class Led(NamedTuple):
    """What plain PyTorch made of some rows: what they read ``[rows,1,H,D]``, and their state."""

    rows: list[int]
    y: Tensor
    state: State


class Places(NamedTuple):
    """The chunk, where one was begun, and the end of the token: which rows' ``[B]`` chunks are over, where rows ``[B]`` stand then.

    ``some`` and ``every``: whether some rows' chunks are over, and all rows'.
    """

    begun: Progress | None
    closes: Tensor
    reached: Tensor
    some: bool
    every: bool

    @classmethod
    def of(cls, state: State, size: int) -> Places:
        """Those of a state, one token on; a compiled step, which cannot read them, is one for rows at any."""
        if state.chunk is not None and torch.compiler.is_compiling():
            at = state.chunk.position
            torch._assert_async((at < size).all(), f"state stands too far into its chunk to go on with chunk_size={size}")
            return cls(state.chunk, (at + 1 == size).to(torch.uint8), (at + 1) % size, True, False)
        found = places(state)
        most = max(found)
        require(most < size, f"state stands {most} tokens into its chunk, so it cannot go on with chunk_size={size}")
        reached = [(place + 1) % size for place in found]
        over = [place == 0 for place in reached]
        closes = torch.tensor(over, dtype=torch.uint8)
        return cls(state.chunk if any(found) else None, closes, torch.tensor(reached), any(over), all(over))


def taken(led: Led, y: Tensor, new: list[Tensor]) -> None:
    """The rows that plain PyTorch has led, in the place of what the step made of them."""
    reached, rows = led.state, on_device(led.rows, y.device)
    assert isinstance(reached.weights, tuple) and reached.chunk is not None
    start, moved, log_decay, *_ = reached.chunk
    parts = [*rows_of(reached.weights), *rows_of(moved), *rows_of(reached.momentum), *rows_of(start), log_decay[0][..., 0]]
    # what has no momentum leaves no room for one
    for room, part in zip((x for x in (y, *new) if x.numel()), (led.y[:, 0], *parts), strict=True):
        room.index_copy_(0, rows, part.to(room.dtype).expand(-1, *room.shape[1:]))


def rows_of(weights: Weights) -> list[Tensor]:
    """W1' and W2, ``[B,H,E,D]`` each; no copy where they come from an earlier step."""
    return [weights[0].mT.contiguous(), weights[1].contiguous()] if weights else []


def weights_of(rows: list[Tensor]) -> Weights:
    """The weights of E-major ones."""
    return (rows[0].mT, rows[1]) if rows else ()


def progress_of(
    begun: Progress | None,
    start: list[Tensor],
    moved: list[Tensor],
    log_decay: Tensor | None,
    reached: Tensor,
) -> Progress:
    """The place in the chunk after the token."""
    single = start[0].new_zeros(*start[0].shape[:2], 1, 1) if begun is None else begun.threshold[0]
    decays = (single, single) if log_decay is None else (log_decay[..., None], log_decay[..., None, :])
    return Progress(weights_of(start), weights_of(moved), decays, (single, single), reached)
