"""Works through a plan: each run once, in order, as far as the time goes; what is begun is gone on with another time."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gc
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from ..hf.loading import load as load_model
from ..train.command import train_run
from ..train.metrics import Line
from ..train.run import now
from ..train.watch import Ending
from ..types import require
from . import results
from .plan_file import Options, Plan, Run, load
from .reading_of import cost, read_of
from .record import device, of_failure, of_run, source

# seconds that are kept back for saving and leaving
MARGIN = 15.0
# seconds until a process that waits for another's results looks again
PATIENCE = 2.0
# a time in which nothing ends
SHORTEST = 1e-3
DONE, WAITS = "is done", "waits"


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


def work_through(plan: Plan, bench: Bench, only: str = "") -> list[str]:
    """Do every run that is ready, not done, and fits the time, those first that were begun; what was said about the others.

    A run may become ready by another, whose result chooses its learning rate: so there are several rounds.
    """
    wanted = [run for run in plan.runs if chosen(run, only)]
    while True:
        said: list[str] = []
        done = elsewhere = 0
        for run in sorted(wanted, key=lambda run: not begun(run, bench)):
            if bench.left() <= 0:
                return [*said, "the time of this call is over"]
            found = results.rows(*bench.files(plan))
            ready = with_rate(plan, run, bench)
            if isinstance(ready, str):
                said.append(f"{run.name} {ready}")
                continue
            reason = why_not(ready, found, bench)
            if reason is not None:
                said += [f"{run.name} {reason}"] if reason != DONE else []
                continue
            with claimed(bench.out / plan.experiment / "claims" / run.name) as mine:
                if not mine:
                    said.append(f"{run.name} is under way in another process")
                    elsewhere += 1
                    continue
                # another process may have ended it since the file was read
                if why_not(ready, results.rows(*bench.files(plan)), bench) is None:
                    done += do(plan, ready, bench)
        if not done and not (elsewhere and any(f" {WAITS} " in text for text in said)):
            return said
        if not done:
            time.sleep(PATIENCE)


def chosen(run: Run, only: str) -> bool:
    """Whether a run's name begins with one of some texts, between commas."""
    return run.name.startswith(tuple(only.split(",")))


def with_rate(plan: Plan, run: Run, bench: Bench) -> Run | str:
    """The run with its learning rate, where that is another stage's to choose; why it has none, as long as it has none."""
    if run.rate is None:
        return run
    experiment, _, stage = run.rate.rpartition("/")
    other = load(plan.folder.parent / experiment, tiny=plan.tiny) if experiment and experiment != plan.experiment else plan
    found = results.rows(*bench.files(plan))
    rows = results.settled(found if other is plan else results.rows(*bench.files(other)))
    wanted = [each for each in other.of_stage(stage) if each.model == run.rate_of]
    require(bool(wanted), f"{run.name}: the stage {run.rate} has no runs of {run.rate_of} to choose a learning rate from")
    tried = [rows.get(each.key) for each in wanted]
    if any(row is None for row in tried):
        return f"{WAITS} for the runs that choose its learning rate ({run.rate})"
    finished = sorted((row for row in tried if row is not None and row["status"] == "finished"), key=valid_bits)
    if not finished:
        return f"has no learning rate: every run of {run.rate} for {run.rate_of} diverged or failed"
    return below_what_diverged(run, [row["options"]["optim.lr"] for row in finished], found)


def below_what_diverged(run: Run, rates: list[float], found: list[Line]) -> Run:
    """The run at the first of some rates, the best first; where it was thrown off at one, at the best of those below.

    Where it was thrown off at all of them it is the last of those, which has a result.
    """
    ended = results.settled(found)
    ready = run.with_rate(rates[0])
    while (row := ended.get(ready.key)) is not None and (row["status"] == "diverged" or results.set_back(row) is not None):
        rates = [rate for rate in rates if rate < ready.options["optim.lr"]]
        if not rates:
            break
        ready = run.with_rate(rates[0])
    return ready


def valid_bits(row: Line) -> float:
    """What a learning rate is chosen by."""
    return float(row["valid"]["bits_per_byte"])


def why_not(run: Run, found: list[Line], bench: Bench) -> str | None:
    """Why a run is not to be done now, or None."""
    row = results.settled(found).get(run.key)
    if row is not None and (row["status"] == "finished" or not bench.again or row.get("time", "") > bench.since):
        return DONE if row["status"] == "finished" else f"{row['status']}: {row.get('said', '')}"
    seconds = predicted(run, found, bench)
    if seconds is not None and seconds > bench.lease_left():
        return f"would take {seconds:.0f} seconds, and {bench.lease_left():.0f} are left"
    return None


def begun(run: Run, bench: Bench) -> bool:
    """Whether there is a checkpoint of a run to go on from."""
    return (bench.out / run.experiment / run.name / "checkpoints").exists()


def predicted(run: Run, found: list[Line], bench: Bench) -> float | None:
    """Seconds that a run will take by the pace of the same model on the same device; None where it was never seen there.

    What a run has done already in ``out`` is not counted off, so a run that was begun is always gone on with.
    """
    if begun(run, bench):
        return None
    config = run.config(bench.options)
    shape = [config.data.length, config.data.batch]
    paces = [
        row["seconds_a_step"] for row in found if (row["model"], row["shape"], row["device"]) == (run.model, shape, device())
    ]
    return paces[-1] * config.steps if paces and paces[-1] else None


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether a run is ours: a lock that ends with the process that holds it, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def do(plan: Plan, run: Run, bench: Bench) -> int:
    """Train and read, and write down what came out; how many runs are settled by it."""
    folder = bench.out / plan.experiment / run.name
    print(f"== {plan.experiment}: {run.name}", flush=True)
    try:
        ending, options = trained(plan, run, bench, folder)
        if ending.reason == "signal":
            raise SystemExit(ending.code)
        if ending.reason == "time":
            return 0
        line = of_run(run, folder, ending, options)
        if ending.reason == "finished":
            reads = read(plan, run, bench, folder, 1 / line["tokens_per_second"])
            if reads is None:
                return 0
            line["reads"] = reads
    except Exception:
        # written down first, so that whoever starts again goes on with the next
        write(plan, bench, of_failure(run, traceback.format_exc()))
        raise
    write(plan, bench, line)
    print(f"== {run.name}: {line['status']} {line.get('said') or ''}", flush=True)
    if ending.reason == "finished" and run.keep:
        shutil.rmtree(folder / "checkpoints")
    else:
        shutil.rmtree(folder)
    return int(ending.reason != "slow")


def trained(plan: Plan, run: Run, bench: Bench, folder: Path) -> tuple[Ending, Options]:
    """The training, in as large micro-batches as fit; how it ended, and the options it had."""
    tokenizer = run.options.get("data.tokenizer", "bytes")
    options = {
        "data.path": str(bench.data / plan.data),
        "data.tokenizer": str(bench.data / tokenizer) if (bench.data / tokenizer).is_dir() else tokenizer,
        "run.folder": str(folder),
        "log.sample": 0,
        "log.plot": False,
        **bench.options,
    }
    while True:
        limits = {"run.seconds": bench.left(), "run.finish": max(bench.lease_left(), SHORTEST)}
        timed = {name: value for name, value in limits.items() if value != float("inf")}
        try:
            return train_run(run.config({**options, **timed}), resume=True), options
        except ValueError:
            # what was begun with another text or plan would stand in the way of every other try
            if folder.exists():
                folder.rename(folder.with_name(f"{folder.name}-aside-{time.time_ns()}"))
            raise
        except torch.OutOfMemoryError:
            whole = run.config(options)
            size = (whole.engine.micro_batch or whole.data.batch) // 2
            require(size >= 1, f"{run.name}: there is no room for one sequence of {whole.data.length} tokens")
            options["engine.micro_batch"] = size
        finally:
            forget()
        print(f"== {run.name}: no room, again with micro-batches of {size}", flush=True)


def forget() -> None:
    """Make room for another training in this process."""
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def read(plan: Plan, run: Run, bench: Bench, folder: Path, seconds_a_token: float) -> list[Line] | None:
    """What the plan wants to know of a finished model; None where the time does not suffice and another call has to."""
    if not run.reads:
        return []
    loaded = load_model(folder / "model")
    loaded.model.to("cuda" if torch.cuda.is_available() and bench.options.get("engine.device") != "cpu" else "cpu").eval()
    kept = folder / "reads.jsonl"
    known = {row["read"]: row for row in results.rows(kept)}
    length = run.config({}).data.length
    for wanted in run.reads:
        if str(wanted) in known:
            continue
        if seconds_a_token * cost(wanted, bench.data, plan.data) > bench.left():
            print(f"== {run.name}: trained, to be read another time", flush=True)
            return None
        began = time.monotonic()
        row = read_of(loaded, wanted, bench.data, plan.data, length)
        results.add(kept, {"read": str(wanted), **row, "seconds": time.monotonic() - began})
    known = {row["read"]: row for row in results.rows(kept)}
    return [known[str(wanted)] for wanted in run.reads]


def write(plan: Plan, bench: Bench, line: Line) -> None:
    """Keep a line, here and, where that is asked for, in a second file."""
    whole = {**line, **source(line, bench.commit)}
    results.add(bench.files(plan)[1], whole)
    if bench.copy is not None:
        results.add(bench.copy, whole)
