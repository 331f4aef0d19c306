"""What tasks of recall in tokens share: pairs one behind the other, then keys in places drawn by a power law.

B rows, N pairs, P queries
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...types import require
from .base import Questions, TokenTask
from .draws import power_law

Filler = Literal["random", "blank"]
BLANK = 0


@dataclass(frozen=True, kw_only=True)
class RecallTask(TokenTask):
    """Pairs of a key and a value, then keys whose value is asked for.

    Keys are tokens of the lower half of the vocabulary, values of the upper. The gap before a key returns follows a power law,
    p(r) proportional to r^(power-1); what stands between the queries is any token (``filler="random"``), or blank.
    """

    power: float = 0.01
    filler: Filler = "blank"

    @property
    def chance(self) -> float:
        return 1 / (self.vocab - self.vocab // 2)

    def ask(self, keys: Tensor, values: Tensor, asked: Tensor, answers: Tensor, random: torch.Generator) -> Questions:
        """Pairs ``[B,N]`` one behind the other, then the keys ``asked`` ``[B,P]``. The answers never stand in the sequence."""
        rows, shown = keys.shape
        places = room(self.length, shown, asked.shape[1])
        where = 2 * shown + 2 * power_law(rows, places, asked.shape[1], self.power, random)
        if self.filler == "random":
            ids = torch.randint(self.vocab, (rows, self.length), generator=random, device=random.device)
        else:
            ids = torch.full((rows, self.length), BLANK, device=random.device)
        ids[:, : 2 * shown] = torch.stack([keys, values], 2).flatten(1)
        return Questions(ids.scatter(1, where, asked), where, answers)


def vocabulary(vocab: int, keys: int, values: int) -> int:
    """The number of keys: tokens 1 to half of the vocabulary are keys, the upper half are values, 0 is blank."""
    half = vocab // 2
    require(half - 1 >= keys, f"vocab={vocab} has {half - 1} keys, fewer than the {keys} that differ: make it larger")
    require(vocab - half >= values, f"vocab={vocab} has {vocab - half} values, fewer than the {values} that differ: enlarge it")
    return half


def room(length: int, shown: int, queries: int) -> int:
    """Places for queries, every second one, behind the pairs that are shown."""
    places = (length - 2 * shown) // 2
    require(
        places >= queries,
        f"length={length} leaves {places} places for {queries} queries behind {shown} pairs: give {2 * (shown + queries)}",
    )
    return places
