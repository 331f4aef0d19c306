"""Multi-query associative recall, as "Zoology" (Arora et al., 2023) sets it.

B rows, T time, P pairs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import Questions, Task, TokenTask, lengthened
from .draws import Filler, ask, distinct, room, vocabulary


@dataclass(frozen=True, kw_only=True)
class MQAR(TokenTask):
    """P pairs of a key and a value, all different; then each key once more, and its value is asked for.

    The gap before a key returns follows a power law, p(r) proportional to r^(power-1). Keys are tokens of the lower half of the
    vocabulary, values of the upper; what stands between the queries is any token (``filler="random"``, as published, so that
    a key may stand there by accident), or blank.
    """

    name: ClassVar[str] = "mqar"
    vocab: int = 8192
    pairs: int = 32
    length: int = 256
    power: float = 0.01
    filler: Filler = "random"

    def __post_init__(self) -> None:
        vocabulary(self.vocab, self.pairs, self.pairs)
        room(self.length, self.pairs, self.pairs)

    @property
    def chance(self) -> float:
        return 1 / (self.vocab - self.vocab // 2)

    def draw(self, rows: int, random: torch.Generator) -> Questions:
        half = self.vocab // 2
        keys = 1 + distinct(rows, half - 1, self.pairs, random)
        values = half + distinct(rows, self.vocab - half, self.pairs, random)
        return ask(
            keys,
            values,
            keys,
            values,
            length=self.length,
            vocab=self.vocab,
            power=self.power,
            filler=self.filler,
            random=random,
        )

    def readings(self) -> dict[str, Task]:
        """The same pairs with longer gaps."""
        return lengthened(self)
