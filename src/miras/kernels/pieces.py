"""Tokens chunk by chunk: what all sequences have in their first chunk, in their second, and so on.

R sequences, T tokens of all of them, C tokens of a chunk
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import Rows, at_hand


class Some(NamedTuple):
    """Sequences, some of all: their numbers, and of every one whether it is among them ``[R]``."""

    numbers: Tensor
    mask: Tensor


class Piece(NamedTuple):
    """The tokens that all sequences have in one chunk, one sequence behind the other.

    ``slot`` ``[tokens]`` is each token's place among C for every sequence; ``present`` are the sequences that have one, and
    ``closing`` those whose chunk ends here, with the tokens ``ends``. None where that is all of them.
    """

    rows: Rows
    slot: Tensor
    present: Some | None
    closing: Some | None
    ends: Tensor
    lead: bool


class Order(NamedTuple):
    """All tokens chunk by chunk, those of all sequences in a chunk together: how to get there and back, and their pieces."""

    there: Tensor
    back: Tensor
    pieces: list[Piece]

    def cut(self, x: Tensor | None) -> Iterable[Tensor | None]:
        """Tokens ``[T,...]`` by pieces."""
        if x is None:
            return [None] * len(self.pieces)
        return torch.split(x.index_select(0, self.there), [len(piece.slot) for piece in self.pieces])

    def together(self, pieces: list[Tensor]) -> Tensor:
        """Pieces as tokens in their own order."""
        return torch.cat(pieces).index_select(0, self.back)


def order_of(lengths: list[int], size: int, leads: bool, device: torch.device) -> Order:
    """The order of the tokens of sequences; where a retention ``leads``, the first tokens of chunks are pieces of their own."""
    return at_hand(ORDERS, 16, _ordered, (tuple(lengths), size, leads, device))


ORDERS: dict[tuple[tuple[int, ...], int, bool, torch.device], Order] = {}


def _ordered(lengths: tuple[int, ...], size: int, leads: bool, device: torch.device) -> Order:
    counted, total = torch.tensor(lengths, device=device), sum(lengths)
    row = torch.arange(len(lengths), device=device).repeat_interleave(counted, output_size=total)
    place = torch.arange(total, device=device) - (counted.cumsum(0) - counted)[row]
    piece = 2 * (place // size) + (place % size > 0).long() if leads else place // size
    there = piece.argsort(stable=True)
    slots = (row * size + place % size)[there]
    pieces: list[Piece] = []
    for begin in range(0, max(lengths), size):
        reached = [min(max(length - begin, 0), size) for length in lengths]
        for lead in (True, False) if leads else (False,):
            counts = [min(n, 1) if lead else n - 1 if leads and n else n for n in reached]
            if any(counts):
                taken = sum(len(piece.slot) for piece in pieces)
                pieces.append(_piece(counts, reached, lead, slots[taken : taken + sum(counts)], size))
    return Order(there, there.argsort(), pieces)


def _piece(counts: list[int], reached: list[int], lead: bool, slot: Tensor, size: int) -> Piece:
    closes = [n == size and not lead for n in reached]
    ends = [end - 1 for end, close in zip(accumulate(counts), closes, strict=True) if close]
    present, closing = _some([n > 0 for n in counts], slot.device), _some(closes, slot.device)
    return Piece(Rows.of(counts, size, slot.device), slot, present, closing, torch.tensor(ends, device=slot.device), lead)


def _some(which: list[bool], device: torch.device) -> Some | None:
    if all(which):
        return None
    numbers = torch.tensor([i for i, one in enumerate(which) if one], dtype=torch.int64, device=device)
    return Some(numbers, torch.tensor(which, device=device))
