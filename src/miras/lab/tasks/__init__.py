"""The tasks of the recall laboratory: small, vectorised, a function of seed and step alone."""

from __future__ import annotations

from typing import Any

from ...types import require
from .base import HELD_OUT, Batch, Questions, Task, TokenTask, Vectors, VectorTask, generator
from .copying import SelectiveCopying
from .mqar import MQAR
from .noise import NoisyRecall, NoisyVectors
from .overwriting import Overwriting
from .regression import LinearRegression
from .tracking import StateTracking

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (MQAR, NoisyRecall, NoisyVectors, Overwriting, SelectiveCopying, LinearRegression, StateTracking)
}


def task_of(name: str, **settings: Any) -> Task:
    """A task by its name, with settings of its own.

    >>> task_of("mqar", pairs=8, length=64).length
    64
    """
    require(name in TASKS, f"unknown task {name!r}: known are {', '.join(TASKS)}")
    try:
        return TASKS[name](**settings)
    except TypeError as error:
        raise ValueError(f"the task {name} does not take these settings: {error}") from None


__all__ = [
    "HELD_OUT",
    "MQAR",
    "TASKS",
    "Batch",
    "LinearRegression",
    "NoisyRecall",
    "NoisyVectors",
    "Overwriting",
    "Questions",
    "SelectiveCopying",
    "StateTracking",
    "Task",
    "TokenTask",
    "VectorTask",
    "Vectors",
    "generator",
    "task_of",
]
