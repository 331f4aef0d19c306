"""Several processes on one device that take trials from one list, and one writer of results.

At the sizes of the laboratory a device waits for its next kernel most of the time, so a few processes side by side
are faster than one after the other.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch

from .trial import OutOfTimeError, Trial, perform


class Report(NamedTuple):
    """What became of a trial: a result, or the reason why there is none."""

    trial: Trial
    result: dict[str, Any] | None
    reason: str = ""
    failed: bool = False


def attempt(trial: Trial, device: torch.device, deadline: float) -> Report:
    """Perform a trial before a deadline, in seconds since the epoch."""
    try:
        return Report(trial, perform(trial, device, seconds=deadline - time.time()))
    except OutOfTimeError as error:
        return Report(trial, None, str(error))
    except Exception:
        return Report(trial, None, traceback.format_exc(), failed=True)


def work(pipe: Connection, device: str, deadline: float) -> None:
    """A process of the crew: one trial after the other, until there are no more or one has failed."""
    torch.set_num_threads(1)
    while (trial := pipe.recv()) is not None:
        report = attempt(trial, torch.device(device), deadline)
        pipe.send(report)
        if report.failed:  # a device that has once reported an error reports nothing else
            return


class Crew:
    """So many processes at once; ``tell`` is called with each report, one at a time."""

    def __init__(
        self,
        trials: Sequence[Trial],
        *,
        workers: int,
        device: torch.device,
        deadline: float,
        fits: Callable[[Trial], bool],
        tell: Callable[[Report], None],
    ) -> None:
        self.waiting: Iterator[Trial] = iter(trials)
        self.workers, self.device, self.deadline = workers, device, deadline
        self.fits, self.tell = fits, tell
        self.lock = threading.Lock()

    def run(self) -> None:
        """Work off the list."""
        threads = [threading.Thread(target=self._lead) for _ in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _next(self) -> Trial | None:
        with self.lock:
            return next((trial for trial in self.waiting if self.fits(trial)), None)

    def _start(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, str(self.device), self.deadline), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _lead(self) -> None:
        """Hand trials to one process, and start another when it has failed."""
        hired: tuple[BaseProcess, Connection] | None = None
        while (trial := self._next()) is not None:
            process, pipe = hired = hired or self._start()
            try:
                pipe.send(trial)
                report: Report = pipe.recv()
            except (EOFError, OSError):
                process.join()
                report = Report(trial, None, f"the process ended with exit code {process.exitcode}", failed=True)
            with self.lock:
                self.tell(report)
            if report.failed:
                hired = None
        if hired is not None:
            hired[1].send(None)
            hired[0].join()
