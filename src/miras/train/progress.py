"""The live line: how far, how well, how fast, how much longer."""

from __future__ import annotations

import time
from types import TracebackType

from .metrics import Line


class Progress:
    """One line that renews itself on a terminal; plain lines, every so often, elsewhere."""

    def __init__(self, steps: int, every: int, shown: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(stderr=True, highlight=False)
        self.steps, self.every, self.shown = steps, every, shown
        self.live = (
            Live(console=self.console, refresh_per_second=4, transient=True) if self.console.is_terminal and shown else None
        )
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
            self.console.print(text, soft_wrap=True)

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
        if self.shown:
            self.console.print(text, soft_wrap=True, markup=False)


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
