"""Time several ways of doing a thing, side by side in one process."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Forward = Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something to time: ``forward`` gives an output, gradients flow from it to ``leaves``."""

    name: str
    forward: Forward
    leaves: list[Tensor]
    rounds: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of every round, forward alone and with the backward pass."""

    forward: list[float]
    both: list[float]
    finite: bool

    def as_json(self) -> dict[str, object]:
        """All numbers, and the smallest and the median of each kind."""
        kinds = {"forward": self.forward, "forward_backward": self.both}
        numbers = {
            kind: {"min": min(values), "median": statistics.median(values), "all": [round(value, 5) for value in values]}
            for kind, values in kinds.items()
        }
        return {**numbers, "finite": self.finite}


def seconds(case: Case) -> tuple[float, float, bool]:
    """One forward pass without a graph, one with it and back: the time of each, and whether the output is finite."""
    gc.collect()
    began = time.perf_counter()
    with torch.no_grad():
        case.forward()
    forward = time.perf_counter() - began
    began = time.perf_counter()
    y = case.forward()
    torch.autograd.grad(y, case.leaves, torch.ones_like(y), allow_unused=True)
    return forward, time.perf_counter() - began, bool(torch.isfinite(y).all())


def alternate(cases: list[Case]) -> dict[str, Times]:
    """Every case once to warm up, then round after round until each has had its number."""
    found: dict[str, list[tuple[float, float, bool]]] = {case.name: [] for case in cases}
    rounds = max(case.rounds for case in cases)
    for i in range(-1, rounds):
        for case in cases:
            if i < case.rounds:
                done = seconds(case)
                if i >= 0:
                    found[case.name].append(done)
        say(f"round {i + 1} of {rounds}" if i >= 0 else "warmed up")
    return {
        name: Times(forward=[a for a, _, _ in own], both=[b for _, b, _ in own], finite=all(c for *_, c in own))
        for name, own in found.items()
    }


def say(text: str) -> None:
    """Show how far it is."""
    print(f"  {text}", file=sys.stderr, flush=True)
