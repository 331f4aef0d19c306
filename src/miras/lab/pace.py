"""How long a run will take on this machine: its training, and what is read of it afterwards."""

from __future__ import annotations

from ..train.metrics import Line
from . import results
from .bench import SHORTEST, Bench
from .plan_file import Options, Plan, Run
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
    shape = [config.data.length, config.data.batch]
    here = [row for row in found if row["device"] == device()]
    seconds = results.pace(here, run.model, shape) or results.pace(twins(plan, run, bench), run.model, shape)
    return seconds and seconds * (config.steps + reading(plan, run, bench))


def twins(plan: Plan, run: Run, bench: Bench) -> list[Line]:
    """Rows of other experiments on this device whose model is this run's, whatever it is called there."""
    own = told(run.options)
    kept, here = plan.folder.parent.glob("*/plan.yaml"), bench.out.glob("*/results.jsonl")
    found = results.rows(*(path.with_name("results.jsonl") for path in kept), *here)
    same = (row for row in found if "options" in row and row["device"] == device() and told(row["options"]) == own)
    return [{**row, "model": run.model} for row in same]


def told(options: Options) -> Options:
    """What of a run's options its pace depends on, beside the shape of its batches."""
    return {name: value for name, value in options.items() if name.startswith("model.") or name == "data.tokenizer"}


def time_to_train(plan: Plan, run: Run, bench: Bench) -> float:
    """Seconds of the lease that a training may take, so that there is time for what is read of it."""
    left = bench.lease_left()
    if bench.probe or left == float("inf"):
        return left
    steps = run.config(bench.options).steps
    return max(left * steps / (steps + reading(plan, run, bench)), SHORTEST)
