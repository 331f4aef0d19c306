"""Overwriting: keys are given new values again and again, and the last one counts.

B rows, T time, P keys, N writes
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...types import require
from .base import TIMES, Questions, Task
from .draws import distinct
from .recall import RecallTask, room, vocabulary


@dataclass(frozen=True, kw_only=True)
class Overwriting(RecallTask):
    """N pairs of P keys in random order, each key at least once, each time with a new value; then each key's last is asked for.

    It is read with more writes of as many keys, in sequences longer by as much.
    """

    name: ClassVar[str] = "overwriting"
    vocab: int = 1024
    keys: int = 16
    writes: int = 64
    length: int = 256

    def __post_init__(self) -> None:
        require(self.writes >= self.keys, f"writes={self.writes} must be at least keys={self.keys}")
        vocabulary(self.vocab, self.keys, 1)
        room(self.length, self.writes, self.keys)

    def draw(self, rows: int, random: torch.Generator) -> Questions:
        half, device = self.vocab // 2, random.device
        keys = 1 + distinct(rows, half - 1, self.keys, random)
        again = torch.randint(self.keys, (rows, self.writes - self.keys), generator=random, device=device)
        each = torch.cat([torch.arange(self.keys, device=device).expand(rows, -1), again], 1)
        each = each.gather(1, torch.rand(rows, self.writes, generator=random, device=device).argsort(1))
        values = torch.randint(half, self.vocab, (rows, self.writes), generator=random, device=device)
        place = torch.arange(self.writes, device=device).expand(rows, -1)
        last = torch.zeros(rows, self.keys, dtype=torch.long, device=device).scatter_reduce(1, each, place, "amax")
        return self.ask(keys.gather(1, each), values, keys, values.gather(1, last), random)

    def readings(self) -> dict[str, Task]:
        """More writes in a longer sequence."""
        return {f"{t}x": dataclasses.replace(self, writes=t * self.writes, length=t * self.length) for t in TIMES}
