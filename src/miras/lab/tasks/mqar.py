"""Multi-query associative recall, as "Zoology" (Arora et al., 2023) sets it.

B rows, T time, P pairs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import Questions, Task, lengthened
from .draws import distinct
from .recall import Filler, RecallTask, room, vocabulary


@dataclass(frozen=True, kw_only=True)
class MQAR(RecallTask):
    """P pairs of a key and a value, all different; then each key once more, and its value is asked for.

    What stands between the queries is any token, as published, so that a key may stand there by accident.
    """

    name: ClassVar[str] = "mqar"
    vocab: int = 8192
    pairs: int = 32
    length: int = 256
    filler: Filler = "random"

    def __post_init__(self) -> None:
        vocabulary(self.vocab, self.pairs, self.pairs)
        room(self.length, self.pairs, self.pairs)

    def draw(self, rows: int, random: torch.Generator) -> Questions:
        half = self.vocab // 2
        keys = 1 + distinct(rows, half - 1, self.pairs, random)
        values = half + distinct(rows, self.vocab - half, self.pairs, random)
        return self.ask(keys, values, keys, values, random)

    def readings(self) -> dict[str, Task]:
        """The same pairs with longer gaps."""
        return lengthened(self)
