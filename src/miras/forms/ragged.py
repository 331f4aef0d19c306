"""Packed sequences as rows of a batch, and back.

B batch, T time, R sequences
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from ..types import Gates


def buckets(bounds: list[int], size: int) -> Iterator[list[int]]:
    """The sequences by length, each bucket at most twice as long as it is short, counted in chunks.

    Empty sequences, which only hand their state on, go with the shortest of the others.
    """
    lengths = [right - left for left, right in itertools.pairwise(bounds)]
    shortest = min((length for length in lengths if length), default=0)
    kinds = [_kind(length or shortest, size) for length in lengths]
    for kind in sorted(set(kinds)):
        yield [row for row, own in enumerate(kinds) if own == kind]


def _kind(length: int, size: int) -> int:
    return (-(-length // size) - 1).bit_length()


def positions(bounds: list[int], rows: list[int], pairs: int, device: torch.device) -> Tensor:
    """Where each row's tokens stand in the packed batch, ``[R,T]``, -1 where it has none."""
    longest = max(bounds[row + 1] - bounds[row] for row in rows) * pairs
    index = torch.full((len(rows), longest), -1, dtype=torch.long)
    for i, row in enumerate(rows):
        left, right = bounds[row] * pairs, bounds[row + 1] * pairs
        index[i, : right - left] = torch.arange(left, right)
    return index.to(device, non_blocking=True)


def unpacked(x: Tensor, index: Tensor) -> Tensor:
    """``[1,T,...] -> [R,T,...]``, zeros where a row has no token."""
    rows = x[0][index.clamp_min(0)]
    return torch.where((index >= 0).reshape(*index.shape, *[1] * (x.dim() - 2)), rows, 0.0)


def repacked(x: Tensor, lengths: list[int]) -> list[Tensor]:
    """``[R,T,...] -> [1,length,...]`` of each row, without what filled it up."""
    sizes = [n for length in lengths for n in (length, x.shape[1] - length)]
    return list(x.flatten(0, 1)[None].split(sizes, 1)[::2])  # type: ignore[no-untyped-call]


def unpacked_gates(gates: Gates, tokens: Tensor, pairs: Tensor) -> Gates:
    """The gates of each row; a missing token neither decays nor learns."""
    cuts = {name: pairs if name == "eta" else tokens for name in Gates._fields if name != "ridge"}
    given = {name: gate for name, gate in gates._asdict().items() if gate is not None}
    return Gates(**{name: unpacked(gate, cuts[name]) if name in cuts else gate for name, gate in given.items()})
