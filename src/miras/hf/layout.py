"""Which tokens of a batch are there and where sequences start: masks, positions and bounds as one packing.

B batch, T time, P tokens before these, R sequences, N tokens that are there
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..nn import Packing
from ..nn.packing import there as tokens_there
from ..types import require

PACKED = "position_ids that begin again, or by cu_seqlens in a batch of 1"


def packing_of(
    batch: int, time: int, mask: Tensor | None, position_ids: Tensor | None, cu_seqlens: Tensor | None
) -> Packing | None:
    """The packing of a batch, or None where every row is one sequence and every token is there.

    ``mask`` is ``[B,T]`` or ``[B,P+T]``, of which the last T columns count. ``position_ids`` ``[B or 1,T]`` start a sequence
    wherever they do not go on by one. ``cu_seqlens`` ``[R+1]`` bounds the sequences of a batch of 1.
    """
    there = None if mask is None else _recent(mask, batch, time)
    if cu_seqlens is not None:
        require(isinstance(cu_seqlens, Tensor), f"cu_seqlens must be a tensor, got {type(cu_seqlens).__name__}")
        require(batch == 1, f"cu_seqlens packs sequences in a batch of 1, got a batch of {batch}")
        require(there is None or bool(there.all()), "cu_seqlens and an attention_mask with padding were both given")
        index = torch.arange(time, device=cu_seqlens.device)
        last = torch.tensor([len(cu_seqlens) - 2], device=cu_seqlens.device)
        return Packing(index, cu_seqlens.long(), last, (batch, time))
    if there is not None and bool(there.all()):
        there = None
    starts = None if position_ids is None else _starts(position_ids, there, batch, time)
    if there is None and starts is None:
        return None
    if there is None:
        assert starts is not None
        there = torch.ones_like(starts)
    return Packing.of(there, starts)


def _recent(mask: Tensor, batch: int, time: int) -> Tensor:
    """The mask of these tokens, without that of earlier ones."""
    fits = isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[0] == batch and mask.shape[1] >= time
    got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    require(fits, f"attention_mask must be [{batch},{time}] (or longer, with the past), one a token, got {got}")
    # all of it is looked at: a mask to be added shows itself in the past's columns too
    return tokens_there(mask, "attention_mask", PACKED)[:, mask.shape[1] - time :]


def _starts(position_ids: Tensor, there: Tensor | None, batch: int, time: int) -> Tensor | None:
    """Where a token does not follow the one before it, ``[B,T]``, or None if each does."""
    fits = position_ids.dim() == 2 and position_ids.shape[0] in (1, batch) and position_ids.shape[1] == time
    require(fits, f"position_ids must be [{batch},{time}], got {list(position_ids.shape)}")
    position = position_ids.expand(batch, time).flatten()
    kept = torch.arange(batch * time, device=position.device) if there is None else there.flatten().nonzero().squeeze(1)
    row = kept // max(time, 1)
    breaks = (position[kept][1:] != position[kept][:-1] + 1) & (row[1:] == row[:-1])
    if not bool(breaks.any()):
        return None
    starts = torch.zeros(batch * time, dtype=torch.bool, device=position.device)
    starts[kept[1:][breaks]] = True
    return starts.reshape(batch, time)
