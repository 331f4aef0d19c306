"""What keeps a run alive: steps that are not taken, and signals that are heard between steps."""

from __future__ import annotations

import math
import signal
from types import FrameType, TracebackType
from typing import NamedTuple

from .config import SafetyConfig

# a deviation smaller than this share of the mean is noise of the estimate, not news
FLOOR = 0.02
# nor is a mean loss below so many times its lowest, however little the loss had fallen
RISEN = 1.5


class Spikes(NamedTuple):
    """The running mean and variance of the loss over good steps, how many there were, and skipped steps in a row.

    ``first`` and ``lowest`` are the first and the lowest mean over as many steps as the mean remembers.
    """

    mean: float = 0.0
    variance: float = 0.0
    good: int = 0
    skipped: int = 0
    first: float | None = None
    lowest: float | None = None


def complaint(spikes: Spikes, loss: float, norm: float, config: SafetyConfig) -> str | None:
    """Why a step should not be taken, or None. The same on every process, since loss and norm are."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm):
        return f"the gradient's norm is {norm}"
    if spikes.good < config.memory:
        return None
    limit = spikes.mean + config.spike * max(math.sqrt(spikes.variance), FLOOR * abs(spikes.mean))
    return f"the loss jumped to {loss:.4g}, above {limit:.4g}" if loss > limit else None


def after(spikes: Spikes, loss: float, taken: bool, config: SafetyConfig) -> Spikes:
    """The statistics after a step, which count it only if it was taken.

    With rate r = 1 / min(n + 1, memory) and d = loss - mean: mean += r d, variance = (1 - r)(variance + r d^2).
    """
    if not taken:
        return spikes._replace(skipped=spikes.skipped + 1)
    rate = 1 / min(spikes.good + 1, config.memory)
    distance = loss - spikes.mean
    variance = (1 - rate) * (spikes.variance + rate * distance**2)
    mean, good = spikes.mean + rate * distance, spikes.good + 1
    if good < config.memory:
        return Spikes(mean, variance, good)
    first, lowest = (mean if known is None else known for known in (spikes.first, spikes.lowest))
    return Spikes(mean, variance, good, 0, first, min(lowest, mean))


def lost(spikes: Spikes, config: SafetyConfig) -> str | None:
    """Why training should not go on, or None: what it had learned is being lost again, step by step, with no step to skip."""
    if spikes.first is None or spikes.lowest is None:
        return None
    limit = max(spikes.lowest + config.lost * (spikes.first - spikes.lowest), RISEN * spikes.lowest)
    return f"the mean loss has risen to {spikes.mean:.4g} from {spikes.lowest:.4g}" if spikes.mean > limit else None


class Signals:
    """Remembers Ctrl-C and SIGTERM, so that the loop can end between two steps; a second one ends at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, self.hear)
        return self

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
