"""How long a run will take on this machine: its training, and what is read of it afterwards."""

from __future__ import annotations

from ..train.metrics import Line
from . import results
from .bench import SHORTEST, Bench
from .plan_file import Plan, Run
from .reading_of import cost
from .record import device


def begun(run: Run, bench: Bench) -> bool:
    """Whether there is a checkpoint of a run to go on from."""
    return (bench.out / run.experiment / run.name / "checkpoints").exists()


def reading(plan: Plan, run: Run, bench: Bench) -> float:
    """Steps of training that take about as long as all that is read of a run."""
    config = run.config(bench.options)
    tokens = sum(cost(wanted, bench.data, plan.data) for wanted in run.reads)
    return tokens / (config.data.length * config.data.batch)


def predicted(plan: Plan, run: Run, found: list[Line], bench: Bench) -> float | None:
    """Seconds that a run will take, its reads included, by the best pace of its model on this device; None where there is none.

    What a run has done already in ``out`` is not counted off, so a run that was begun is always gone on with.
    """
    if begun(run, bench):
        return None
    config = run.config(bench.options)
    here = [row for row in found if row["device"] == device()]
    seconds = results.pace(here, run.model, [config.data.length, config.data.batch])
    return seconds and seconds * (config.steps + reading(plan, run, bench))


def time_to_train(plan: Plan, run: Run, bench: Bench) -> float:
    """Seconds of the lease that a training may take, so that there is time for what is read of it."""
    left = bench.lease_left()
    if bench.probe or left == float("inf"):
        return left
    steps = run.config(bench.options).steps
    return max(left * steps / (steps + reading(plan, run, bench)), SHORTEST)
