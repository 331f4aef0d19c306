"""Selective copying, after Jing et al. (2019) and "Mamba" (Gu and Dao, 2023).

B rows, T time, N items
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ...types import require
from .base import Questions, Task, TokenTask, lengthened
from .draws import distinct


@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(TokenTask):
    """N items stand at random places among blanks; at the end N marks ask for them in the order in which they stood.

    Token 0 is blank, 1 the mark, the others are items.
    """

    name: ClassVar[str] = "copying"
    vocab: int = 18
    items: int = 16
    length: int = 256

    def __post_init__(self) -> None:
        require(self.vocab >= 4, f"vocab must be 4 or more, of which 2 are items, got {self.vocab}")
        require(
            self.length > 2 * self.items,
            f"length={self.length} is too short for {self.items} items and as many marks: give {2 * self.items + 1} or more",
        )

    @property
    def chance(self) -> float:
        return 1 / (self.vocab - 2)

    def draw(self, rows: int, random: torch.Generator) -> Questions:
        # one more token behind the marks, for the label of the last
        marks = self.length - self.items - 1
        items = torch.randint(2, self.vocab, (rows, self.items), generator=random, device=random.device)
        places = distinct(rows, marks, self.items, random).sort(1).values
        ids = torch.zeros(rows, self.length, dtype=torch.long, device=random.device).scatter(1, places, items)
        ids[:, marks : marks + self.items] = 1
        where = torch.arange(marks, marks + self.items, device=random.device).expand(rows, -1)
        return Questions(ids, where, items)

    def readings(self) -> dict[str, Task]:
        """As many items among more blanks."""
        return lengthened(self)
