"""Where a plan is worked through, and how long."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from ..train.run import now
from .plan_file import Options, Plan

# seconds that are kept back for saving and leaving
MARGIN = 15.0
# a time in which nothing ends
SHORTEST = 1e-3


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where a plan is worked through, and how long.

    Attributes:
        data: the folder that holds folders of shards.
        out: where runs live until they are finished, and where their results are kept first.
        seconds: the time of this call.
        lease: the time for which ``out`` stays, this call included: a run that would take longer is not begun.
        options: of every run, over those of the plan: where and how it is computed.
        copy: a second file for the results of this call.
        commit: of the code, where it lies without its history.
        again: whether runs that failed or diverged before ``since`` are tried again.
        since: when the call began, as results say the time.
        probe: whether every model takes a few steps, to know its pace, and no more.
    """

    data: Path
    out: Path
    seconds: float | None = None
    lease: float | None = None
    options: Options = dataclasses.field(default_factory=dict)
    copy: Path | None = None
    commit: str | None = None
    again: bool = False
    since: str = dataclasses.field(default_factory=now)
    probe: bool = False
    began: float = dataclasses.field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds of this call that are left."""
        return float("inf") if self.seconds is None else self.began + self.seconds - time.monotonic() - MARGIN

    def lease_left(self) -> float:
        """Seconds for which ``out`` stays."""
        if self.probe:
            return SHORTEST
        lease = self.seconds if self.lease is None else self.lease
        return float("inf") if lease is None else self.began + lease - time.monotonic() - MARGIN

    def files(self, plan: Plan) -> tuple[Path, Path]:
        """The files that hold the results of an experiment: those that are kept, and those of this machine."""
        return plan.folder / "results.jsonl", self.out / plan.experiment / "results.jsonl"
