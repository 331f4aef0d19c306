"""What the clock says after each step: whether a checkpoint is due, whether to leave, and how long the whole will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from .config import TrainConfig

Verdict = Literal["time", "slow"]
# the first steps compile kernels and fill caches; so many after them tell the pace, or fewer where they take long
WARM, MEASURED, LONG = 3, 8, 30.0


class Ending(NamedTuple):
    """How a training ended: at its end, by a signal, for the time it was given, before it began in earnest, or by itself."""

    reason: Literal["finished", "signal", "time", "slow", "stopped"]
    said: str = ""
    signal: int = 0

    @property
    def code(self) -> int:
        """The exit code of a program that ends so."""
        return {"signal": 128 + self.signal, "slow": 1, "stopped": 1}.get(self.reason, 0)


class Watch:
    """Keeps the time of one start of a run; ``began`` is when it was started, before anything was read or built."""

    def __init__(self, config: TrainConfig, began: float, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.run, self.save, self.steps, self.clock = config.run, config.save, config.steps, clock
        self.began, self.first = began, step
        self.saved = self.last = clock()
        self.warm = self.last
        self.judged = False
        self.said = ""

    @property
    def active(self) -> bool:
        """Whether there is anything to watch."""
        return not (self.run.seconds is None and self.run.finish is None and self.save.seconds is None)

    def after(self, step: int) -> tuple[Verdict | None, bool]:
        """After so many steps: why to leave, if there is a reason, and whether a checkpoint is due."""
        now = self.clock()
        spent, self.last = now - self.last, now
        taken = step - self.first
        if taken == WARM:
            self.warm = now
        verdict: Verdict | None = None
        if self.run.finish is not None and not self.judged and self.known(taken, now):
            self.judged = True
            whole = now - self.began + (now - self.warm) / (taken - WARM) * (self.steps - step)
            if whole > self.run.finish:
                verdict = "slow"
                self.said = f"this start would take {whole:.0f} seconds, and run.finish is {self.run.finish:g}"
        if self.run.seconds is not None and now + spent > self.began + self.run.seconds:
            verdict = verdict or "time"
        due = self.save.seconds is not None and now - self.saved >= self.save.seconds
        self.saved = now if due else self.saved
        return verdict, due

    def known(self, taken: int, now: float) -> bool:
        """Whether enough steps were taken to tell the pace."""
        return taken >= WARM + MEASURED or (taken > WARM and now - self.warm >= LONG)
