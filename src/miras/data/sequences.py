"""Sequences cut from the row of tokens, and the batch of every step: a pure function of (seed, step).

R rows, T tokens of a sequence, S documents in a packed batch
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..types import IGNORED, require
from .order import shuffled
from .shards import Tokens


class Batch(NamedTuple):
    """Tokens, what follows each, and where documents begin.

    Without isolated documents ``inputs`` and ``targets`` are ``[R,T]`` and ``bounds`` is None. With them they are ``[1,R*T]``,
    and ``bounds`` ``[S+1]`` (int32) says where each document, or its part in a row, begins and ends; a target that would have
    to be guessed from another document is -100.
    """

    inputs: Tensor
    targets: Tensor
    bounds: Tensor | None


class Batches(Dataset[list[Batch]]):
    """The batches of training, indexed by step, each a list of micro-batches: those of one process out of several.

    The rows of step s are places s * batch .. (s + 1) * batch - 1 of :func:`shuffled`'s order; process r of W takes the r-th
    of W equal parts, so that the rows of a step do not depend on the number of processes.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        length: int,
        batch: int,
        micro_batch: int,
        seed: int,
        process: int = 0,
        processes: int = 1,
        isolate: bool = False,
    ) -> None:
        require(
            batch % (processes * micro_batch) == 0,
            f"data.batch ({batch} sequences) must be a multiple of the processes ({processes}) times engine.micro_batch "
            f"({micro_batch})",
        )
        self.tokens, self.length, self.batch, self.micro_batch, self.seed = tokens, length, batch, micro_batch, seed
        self.process, self.processes, self.isolate = process, processes, isolate
        self.count = sequences_in(tokens, length)

    def __getitem__(self, step: int) -> list[Batch]:
        own = self.batch // self.processes
        first = step * self.batch + self.process * own
        chosen = shuffled(self.count, self.seed, np.arange(first, first + own)).tolist()
        size = self.micro_batch
        return [batch_of(self.tokens, chosen[i : i + size], self.length, self.isolate) for i in range(0, own, size)]


def sequences_in(tokens: Tokens, length: int) -> int:
    """How many whole sequences a split holds, each with the token that follows it."""
    count = (tokens.count - 1) // length
    require(
        count > 0,
        f"the {tokens.split} split has {tokens.count} tokens, fewer than one sequence (data.length {length}) and its end",
    )
    return count


def spread(tokens: Tokens, length: int, most: int) -> list[int]:
    """At most so many sequences of a split, evenly spread over it: what validation reads."""
    count = sequences_in(tokens, length)
    return list(range(count)) if count <= most else [i * count // most for i in range(most)]


def batch_of(tokens: Tokens, chosen: list[int], length: int, isolate: bool) -> Batch:
    """The sequences of some numbers, each of ``length`` tokens."""
    rows = [torch.from_numpy(tokens.read(i * length, (i + 1) * length + 1)) for i in chosen]
    inputs = torch.stack([row[:-1] for row in rows])
    targets = torch.stack([row[1:] for row in rows])
    if not isolate:
        return Batch(inputs, targets, None)
    bounds = [0]
    for number, i in enumerate(chosen):
        begins = tokens.boundaries(i * length, (i + 1) * length + 1).tolist()
        targets[number, [place - 1 for place in begins]] = IGNORED
        bounds += [number * length + place for place in begins if place < length] + [(number + 1) * length]
    return Batch(inputs.view(1, -1), targets.view(1, -1), torch.tensor(bounds, dtype=torch.int32))
