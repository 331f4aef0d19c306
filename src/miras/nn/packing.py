"""Batches with padding as packed sequences, and back: what is not there is never computed.

B batch, T time, N tokens that are there, R sequences, C channels
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import require


class Places(NamedTuple):
    """Where each token of a packed batch stands: its sequence and its place in it, ``[N]``; the bounds and lengths of all."""

    row: Tensor
    position: Tensor
    bounds: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor) -> Places:
        """The places that bounds ``[R+1]`` give."""
        lengths = cu_seqlens.diff()
        row = torch.repeat_interleave(torch.arange(len(lengths), device=cu_seqlens.device), lengths)
        position = torch.arange(len(row), device=cu_seqlens.device) - cu_seqlens[row]
        return cls(row, position, cu_seqlens, lengths)


def there(mask: Tensor, name: str = "mask", packed: str = "cu_seqlens") -> Tensor:
    """The tokens that a mask says are there, as truth values; ``packed`` names what packed documents are told by.

    A mask to be added to scores says the opposite, and is all zeros where everything is there; one that numbers documents says
    what no mask can.
    """
    if mask.dtype == torch.bool or not mask.numel():
        return mask.to(torch.bool)
    wrong = mask[(mask != 0) & (mask != 1)]
    first = wrong[0].item() if len(wrong) else None
    rule = f"{name} must be 1 where there is a token and 0 elsewhere, got"
    require(first is None or not first > 1, f"{rule} {first}: documents that are packed are told by {packed}")
    require(first is None, f"{rule} {first}: one to be added to scores is not taken")
    added = mask.is_floating_point() and not bool(mask.any())
    require(not added, f"{rule} {mask.dtype} of zeros alone: one to be added to scores is not taken")
    return mask.to(torch.bool)


class Packing(NamedTuple):
    """The tokens that are there, one sequence behind the other.

    ``where`` ``[N]`` is where a token stands in the flattened batch, ``cu_seqlens`` ``[R+1]`` bounds the sequences, ``last``
    ``[B]`` is the last sequence of each row of the batch, ``shape`` is (B, T).
    """

    where: Tensor
    cu_seqlens: Tensor
    last: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Tensor, starts: Tensor | None = None) -> Packing:
        """From a mask ``[B,T]`` of the tokens that are there, and optionally of those that start a sequence of their own.

        A row is one sequence and each further start in it another; a row without tokens is an empty sequence.
        """
        require(mask.dim() == 2, f"a mask must be [B,T], got {list(mask.shape)}")
        mask = there(mask)
        where = mask.flatten().nonzero().squeeze(1)
        begins = torch.zeros_like(mask) if starts is None else starts & mask
        # a row's first token starts its sequence anyhow
        begins = begins & (mask.cumsum(1) > 1)
        sequences = 1 + begins.sum(1)
        last = sequences.cumsum(0) - 1
        sequence = (last - sequences + 1)[:, None] + begins.cumsum(1)
        counts = torch.bincount(sequence.flatten()[where], minlength=int(sequences.sum()))
        return cls(where, F.pad(counts.cumsum(0), (1, 0)), last, (mask.shape[0], mask.shape[1]))

    def pack(self, x: Tensor) -> Tensor:
        """``[B,T,...] -> [1,N,...]``."""
        require(x.shape[:2] == self.shape, f"mask must be {list(x.shape[:2])}, got {list(self.shape)}")
        return x.flatten(0, 1)[self.where][None]

    def unpack(self, x: Tensor) -> Tensor:
        """``[1,N,...] -> [B,T,...]``, zeros where there is no token."""
        flat = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        return flat.index_put((self.where,), x[0]).reshape(*self.shape, *x.shape[2:])
