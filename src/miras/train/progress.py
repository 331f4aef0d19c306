"""The live line: how far, how well, how fast, how much longer."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from .metrics import Line

if TYPE_CHECKING:
    from rich.live import Live


class Progress:
    """One line that renews itself on a terminal; plain lines, every so often, elsewhere."""

    def __init__(self, steps: int, every: int, shown: bool) -> None:
        self.steps, self.every, self.shown = steps, every, shown
        self.live: Live | None = None
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            self.live = Live(console=console, refresh_per_second=4, transient=True)
        # the last response to noise that was measured
        self.noise: float | None = None
        self.begin(0)

    def begin(self, step: int) -> None:
        """Time runs from here: so many steps were taken before."""
        self.start, self.began = step, time.monotonic()

    def __enter__(self) -> Progress:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def step(self, line: Line) -> None:
        """Show a step's metrics."""
        if not self.shown:
            return
        done = line["step"]
        text = self.text(line, done)
        if self.live is not None:
            self.live.update(text)
        elif done % self.every == 0 or done == self.steps:
            self.say(text)

    def text(self, line: Line, done: int) -> str:
        """The line itself."""
        left = (time.monotonic() - self.began) / max(done - self.start, 1) * (self.steps - done)
        noise = "" if self.noise is None else f"noise {self.noise:.0e}  "
        return (
            f"step {done}/{self.steps}  loss {line['loss']:.3f}  {line['bits_per_byte']:.3f} bits/byte  "
            f"{line['tokens_per_second']:,.0f} tokens/s  {line['memory_gb']:.1f} GB  {noise}{clock(left)} left"
        )

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self.live is not None:
            self.live.console.print(text, soft_wrap=True, markup=False)
        elif self.shown:
            print(text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """A duration in its two largest units.

    >>> clock(42), clock(125), clock(7260)
    ('42s', '2m05s', '2h01m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
