"""Recall from noisy presentations: every pair is shown several times, and a few times with a wrong value.

This is where a bias that is not moved far by large errors (Huber, l1) should do better than l2. ``NoisyRecall`` is in tokens,
where a wrong value looks like any other; ``NoisyVectors`` in real vectors, where every value has a little noise and a wrong one
is as large as one likes.

B rows, T time, P pairs, S presentations of a pair, N = P S presentations, K key channels, V value channels
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...types import require
from .base import Questions, Task, Vectors, VectorTask
from .draws import distinct
from .recall import RecallTask, room, vocabulary


def wrong_ones(rows: int, pairs: int, shows: int, wrong: int, random: torch.Generator) -> Tensor:
    """Which presentations are wrong, ``[B,P,S]``: ``wrong`` of every pair's, at random."""
    return torch.rand(rows, pairs, shows, generator=random, device=random.device).argsort(2).argsort(2) < wrong


def shuffle(rows: int, count: int, random: torch.Generator) -> Tensor:
    """An order for each row, ``[B,N]``."""
    return torch.rand(rows, count, generator=random, device=random.device).argsort(1)


def check(shows: int, wrong: int) -> None:
    """Refuse a task that has no answer."""
    require(
        0 <= 2 * wrong < shows,
        f"wrong={wrong} of shows={shows} presentations: fewer than half may be wrong, or there is nothing to recall",
    )


@dataclass(frozen=True, kw_only=True)
class NoisyRecall(RecallTask):
    """Each of P keys is shown S times in random order, ``wrong`` of them with some other value; then its value is asked for."""

    name: ClassVar[str] = "noisy_recall"
    vocab: int = 1024
    pairs: int = 16
    shows: int = 5
    wrong: int = 1
    length: int = 256

    def __post_init__(self) -> None:
        check(self.shows, self.wrong)
        vocabulary(self.vocab, self.pairs, self.pairs)
        room(self.length, self.pairs * self.shows, self.pairs)

    def draw(self, rows: int, random: torch.Generator) -> Questions:
        half, shape = self.vocab // 2, (rows, self.pairs, self.shows)
        among = self.vocab - half
        keys = 1 + distinct(rows, half - 1, self.pairs, random)
        true = distinct(rows, among, self.pairs, random)
        other = torch.randint(1, among, shape, generator=random, device=random.device)
        seen = (true[:, :, None] + other * wrong_ones(*shape, self.wrong, random)) % among
        order = shuffle(rows, self.pairs * self.shows, random)
        shown = keys[:, :, None].expand(shape).flatten(1).gather(1, order)
        return self.ask(shown, half + seen.flatten(1).gather(1, order), keys, half + true, random)

    def readings(self) -> dict[str, Task]:
        """As trained first, then every number of wrong presentations that leaves an answer."""
        return levels(self, self.wrong, self.shows)


@dataclass(frozen=True, kw_only=True)
class NoisyVectors(VectorTask):
    """As ``NoisyRecall`` with normal keys and values: a presentation is v + ``noise`` n, a wrong one ``magnitude`` n.

    An input is (key, value, 0) where a pair is shown and (key, 0, 1) where its value is asked for, at the end, in random order.
    """

    name: ClassVar[str] = "noisy_vectors"
    keys: int = 16
    values: int = 16
    pairs: int = 8
    shows: int = 5
    wrong: int = 1
    noise: float = 0.1
    magnitude: float = 3.0
    length: int = 48

    def __post_init__(self) -> None:
        check(self.shows, self.wrong)
        exact = self.pairs * (self.shows + 1)
        require(self.length == exact, f"length={self.length}: {self.pairs} pairs shown {self.shows} times take {exact}")

    @property
    def widths(self) -> tuple[int, int]:
        return self.keys + self.values + 1, self.values

    def draw(self, rows: int, random: torch.Generator) -> Vectors:
        def normal(*shape: int) -> Tensor:
            return torch.randn(rows, self.pairs, *shape, generator=random, device=random.device)

        keys, true, noise = normal(self.keys), normal(self.values), normal(self.shows, self.values)
        bad = wrong_ones(rows, self.pairs, self.shows, self.wrong, random)[..., None]
        seen = torch.where(bad, self.magnitude * noise, true[:, :, None] + self.noise * noise)
        each = keys[:, :, None].expand(-1, -1, self.shows, -1)
        shown = F.pad(torch.cat([each, seen], -1), (0, 1)).flatten(1, 2)
        asked = F.pad(F.pad(keys, (0, self.values)), (0, 1), value=1.0)
        order, last = shuffle(rows, shown.shape[1], random), shuffle(rows, self.pairs, random)
        where = shown.shape[1] + torch.arange(self.pairs, device=random.device).expand(rows, -1)
        return Vectors(torch.cat([picked(shown, order), picked(asked, last)], 1), where, picked(true, last))

    def readings(self) -> dict[str, Task]:
        """As trained first, then every number of wrong presentations, and wrong ones ten times as large as a value."""
        return {**levels(self, self.wrong, self.shows), "wrong ones x10": dataclasses.replace(self, magnitude=10.0)}


def picked(x: Tensor, order: Tensor) -> Tensor:
    """x ``[B,N,C]`` in an order ``[B,N]``."""
    return x.gather(1, order[..., None].expand_as(x))


def levels(task: NoisyRecall | NoisyVectors, wrong: int, shows: int) -> dict[str, Task]:
    """The task at every number of wrong presentations, its own first."""
    counts = [wrong, *(count for count in range((shows + 1) // 2) if count != wrong)]
    return {f"{count} of {shows} wrong": dataclasses.replace(task, wrong=count) for count in counts}
