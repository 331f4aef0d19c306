"""What a task of the recall laboratory is: sequences drawn on a device from a seed and a step, and questions about them.

B rows, T time, Q questions a row, D channels of an input vector, V channels of an answer
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ...types import IGNORED

# seeds lie so far apart that no step of one is a step of another
STRIDE = 1_000_003
# steps from here on are never trained on
HELD_OUT = 500_000
# how many times as long the sequences are that a trained model is read at
TIMES = (1, 2, 4, 8, 16)


class Questions(NamedTuple):
    """Tokens ``ids`` ``[B,T]``; after the token at each place ``where`` ``[B,Q]`` that of ``answers`` ``[B,Q]`` is asked for.

    Every row has the same number of questions, so that nothing has to be counted on the device.
    """

    ids: Tensor
    where: Tensor
    answers: Tensor

    def labels(self) -> Tensor:
        """Labels ``[B,T]`` as a causal language model takes them: the answer at the place behind each question, else -100."""
        return torch.full_like(self.ids, IGNORED).scatter(1, self.where + 1, self.answers)


class Vectors(NamedTuple):
    """Real inputs ``[B,T,D]``; at each place of ``where`` ``[B,Q]`` the vector ``answers`` ``[B,Q,V]`` is asked for."""

    inputs: Tensor
    where: Tensor
    answers: Tensor


Batch: TypeAlias = Questions | Vectors


def generator(device: torch.device | str, seed: int, step: int) -> torch.Generator:
    """The random numbers of a step: the same for the same device type, seed and step, whatever was drawn before."""
    # the CPU's generator looks at 32 bits alone
    return torch.Generator(device).manual_seed((seed * STRIDE + step) % 2**32)


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task: settings, and sequences drawn from a generator on its device.

    ``solved`` is the score at which training may stop.
    """

    name: ClassVar[str]
    length: int
    solved: ClassVar[float] = 0.99

    @abstractmethod
    def draw(self, rows: int, random: torch.Generator) -> Batch:
        """So many sequences with their questions."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """The score of the best answer that does not look at the sequence."""

    def batch(self, rows: int, *, seed: int, step: int, device: torch.device | str = "cpu") -> Batch:
        """The sequences of a step: a function of the settings, the seed and the step alone."""
        return self.draw(rows, generator(device, seed, step))

    def readings(self) -> dict[str, Task]:
        """What a trained model is read at: the task itself first, then longer or harder versions of it, by name."""
        return {"1x": self}


@dataclass(frozen=True, kw_only=True)
class TokenTask(Task):
    """A task in tokens; its score is the share of questions whose answer is the likeliest token."""

    vocab: int

    @abstractmethod
    def draw(self, rows: int, random: torch.Generator) -> Questions:
        """So many sequences with their questions."""


@dataclass(frozen=True, kw_only=True)
class VectorTask(Task):
    """A task in real vectors; its score is 1 - mean |y - answer|^2 / mean |answer|^2."""

    solved: ClassVar[float] = 0.98

    @abstractmethod
    def draw(self, rows: int, random: torch.Generator) -> Vectors:
        """So many sequences with their questions."""

    @property
    @abstractmethod
    def widths(self) -> tuple[int, int]:
        """D and V."""

    @property
    def chance(self) -> float:
        return 0.0


def lengthened(task: Task) -> dict[str, Task]:
    """The task at multiples of its length."""
    return {f"{time}x": dataclasses.replace(task, length=time * task.length) for time in TIMES}
