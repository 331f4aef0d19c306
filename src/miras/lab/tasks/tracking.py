"""State tracking: the word problem of the symmetric groups, after Merrill et al. (2024).

B rows, T time, G elements of the group
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...types import require
from .base import Questions, Task, TokenTask, lengthened


@functools.cache
def products(degree: int) -> Tensor:
    """The table of a group, ``[G,G]``: the number of "first a, then b". Element 0 changes nothing."""
    elements = list(itertools.permutations(range(degree)))
    number = {element: i for i, element in enumerate(elements)}
    return torch.tensor([[number[tuple(b[i] for i in a)] for b in elements] for a in elements])


@dataclass(frozen=True, kw_only=True)
class StateTracking(TokenTask):
    """Random permutations of ``degree`` things; after each the product of all so far is asked for.

    With 3 things the group is solvable. With 5 it is not, and a state that moves by diagonal matrices does not suffice for
    words of every length.
    """

    name: ClassVar[str] = "tracking"
    degree: int = 3
    vocab: int = 6
    length: int = 64

    def __post_init__(self) -> None:
        require(2 <= self.degree <= 5, f"degree must be 2 to 5, got {self.degree}")
        size = len(products(self.degree))
        require(self.vocab == size, f"vocab={self.vocab}: the permutations of {self.degree} things are {size}")
        require(self.length >= 2, f"length must be 2 or more, got {self.length}")

    @property
    def chance(self) -> float:
        return 1 / self.vocab

    def draw(self, rows: int, random: torch.Generator) -> Questions:
        ids = torch.randint(self.vocab, (rows, self.length), generator=random, device=random.device)
        table = products(self.degree).to(random.device)
        state, reach = ids, 1
        while reach < self.length:  # each place holds the product of twice as many
            state = torch.cat([state[:, :reach], table[state[:, :-reach], state[:, reach:]]], 1)
            reach *= 2
        where = torch.arange(self.length - 1, device=random.device).expand(rows, -1)
        return Questions(ids, where, state[:, :-1])

    def readings(self) -> dict[str, Task]:
        """Longer words."""
        return lengthened(self)
