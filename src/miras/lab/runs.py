"""Works through plans: each run once, in order, as far as the time goes; what is begun is gone on with another time."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from ..hf.loading import load as load_model
from ..train.command import train_run
from ..train.metrics import Line
from ..train.watch import Ending
from ..types import require
from . import results
from .bench import Bench
from .pace import begun, predicted, time_to_train
from .plan_file import Options, Plan, Run, load
from .reading_of import cost, read_of
from .record import of_failure, of_run, source

# seconds until a process that waits for another's results looks again
PATIENCE = 2.0
DONE, WAITS, ELSEWHERE, LEFT = "is done", "waits", "is under way in another process", "is left for another time"


def work_through(plans: Sequence[Plan], bench: Bench, only: str = "") -> list[str]:
    """Do every run that is ready, not done, and fits the time; what was said about the others.

    Plan by plan, in each those first that were begun. After every run it looks from the top again, since a run may become
    ready by another, whose result chooses its learning rate.
    """
    wanted = [[(plan, run) for run in plan.runs if chosen(run, only)] for plan in plans]
    while True:
        reasons: list[tuple[Run, str]] = []
        for plan, run in (pair for pairs in wanted for pair in sorted(pairs, key=lambda pair: not begun(pair[1], bench))):
            if bench.left() <= 0:
                return [*told(reasons), "the time of this call is over"]
            reason = tried(plan, run, bench)
            if reason is None:
                break
            reasons.append((run, reason))
        else:
            found = [reason for _, reason in reasons]
            if ELSEWHERE not in found or not any(reason.startswith(WAITS) for reason in found):
                return told(reasons)
            time.sleep(PATIENCE)


def told(reasons: list[tuple[Run, str]]) -> list[str]:
    """Why runs were not done, but for those that need nothing more now."""
    return [f"{run.name} {reason}" for run, reason in reasons if reason not in (DONE, LEFT)]


def tried(plan: Plan, run: Run, bench: Bench) -> str | None:
    """Do a run where that is to be done now; None where that has settled it, else why not, or how it was left."""
    ready = with_rate(plan, run, bench)
    if isinstance(ready, str):
        return ready
    reason = why_not(plan, ready, results.rows(*bench.files(plan)), bench)
    if reason is not None:
        return reason
    with claimed(bench.out / plan.experiment / "claims" / run.name) as mine:
        if not mine:
            return ELSEWHERE
        # another process may have ended it since the file was read
        if (reason := why_not(plan, ready, results.rows(*bench.files(plan)), bench)) is not None:
            return reason
        return None if do(plan, ready, bench) else LEFT


def chosen(run: Run, only: str) -> bool:
    """Whether a run's name begins with one of some texts, between commas."""
    return run.name.startswith(tuple(only.split(",")))


def with_rate(plan: Plan, run: Run, bench: Bench) -> Run | str:
    """The run with its learning rate, where that is other stages' to choose; why it has none, as long as it has none."""
    if not run.rate:
        return run
    stages = " and ".join(run.rate)
    tried = [row for stage in run.rate for row in tried_in(plan, stage, run.rate_of, bench)]
    require(bool(tried), f"{run.name}: the stage {stages} has no runs of {run.rate_of} to choose a learning rate from")
    if any(row is None for row in tried):
        return f"{WAITS} for the runs that choose its learning rate ({stages})"
    finished = sorted((row for row in tried if row is not None and row["status"] == "finished"), key=valid_bits)
    if not finished:
        return f"has no learning rate: every run of {stages} for {run.rate_of} diverged or failed"
    return below_what_diverged(run, [row["options"]["optim.lr"] for row in finished], results.rows(*bench.files(plan)))


def tried_in(plan: Plan, stage: str, model: str, bench: Bench) -> list[Line | None]:
    """What became of each run of a model in ``stage`` of a plan, or ``experiment/stage``; None where it is yet to be run."""
    experiment, _, name = stage.rpartition("/")
    other = load(plan.folder.parent / experiment, tiny=plan.tiny) if experiment and experiment != plan.experiment else plan
    rows = results.settled(results.rows(*bench.files(other)))
    return [rows.get(each.key) for each in other.of_stage(name) if each.model == model]


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


def why_not(plan: Plan, run: Run, found: list[Line], bench: Bench) -> str | None:
    """Why a run is not to be done now, or None."""
    row = results.settled(found).get(run.key)
    if row is not None and (row["status"] == "finished" or not bench.again or row.get("time", "") > bench.since):
        return DONE if row["status"] == "finished" else f"{row['status']}: {row.get('said', '')}"
    if bench.lease_left() == float("inf"):
        return None
    seconds = predicted(plan, run, found, bench)
    if seconds is not None and seconds > bench.lease_left():
        return f"would take {seconds:.0f} seconds, and {bench.lease_left():.0f} are left"
    return None


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


def do(plan: Plan, run: Run, bench: Bench) -> bool:
    """Train and read, and write down what came out; whether the run is settled by it."""
    folder = bench.out / plan.experiment / run.name
    print(f"== {plan.experiment}: {run.name}", flush=True)
    line: Line | None = None
    try:
        ending, options = trained(plan, run, bench, folder)
        if ending.reason == "signal":
            raise SystemExit(ending.code)
        if ending.reason == "time":
            return False
        line = of_run(run, folder, ending, options)
        if ending.reason == "finished":
            line["reads"] = []
            if not read(plan, run, bench, folder, line):
                return False
    except Exception:
        # written down first, so that whoever starts again goes on with the next
        write(plan, bench, of_failure(run, traceback.format_exc(), line))
        raise
    write(plan, bench, line)
    print(f"== {run.name}: {line['status']} {line.get('said') or ''}", flush=True)
    if ending.reason == "finished" and run.keep:
        shutil.rmtree(folder / "checkpoints")
    else:
        shutil.rmtree(folder)
    return ending.reason != "slow"


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
        limits = {"run.seconds": bench.left(), "run.finish": time_to_train(plan, run, bench)}
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


def read(plan: Plan, run: Run, bench: Bench, folder: Path, line: Line) -> bool:
    """Add to a line what the plan wants to know of a finished model; whether the time sufficed, or another call has to go on.

    Before every read the line is written down as it is, since the machine may go in the middle of it.
    """
    if not run.reads:
        return True
    loaded = load_model(folder / "model")
    loaded.model.to("cuda" if torch.cuda.is_available() and bench.options.get("engine.device") != "cpu" else "cpu").eval()
    kept = folder / "reads.jsonl"
    known = {row["read"]: row for row in results.rows(kept)}
    length = run.config({}).data.length
    for wanted in run.reads:
        if str(wanted) not in known:
            write(plan, bench, {**line, "status": "unread", "said": f"trained; {wanted} and what follows are to be read"})
            if cost(wanted, bench.data, plan.data) / line["tokens_per_second"] > bench.left():
                print(f"== {run.name}: trained, to be read another time", flush=True)
                return False
            began = time.monotonic()
            row = read_of(loaded, wanted, bench.data, plan.data, length)
            results.add(kept, {"read": str(wanted), **row, "seconds": time.monotonic() - began})
            known = {row["read"]: row for row in results.rows(kept)}
        line["reads"].append(known[str(wanted)])
    return True


def write(plan: Plan, bench: Bench, line: Line) -> None:
    """Keep a line, here and, where that is asked for, in a second file."""
    whole = {**line, **source(line, bench.commit)}
    results.add(bench.files(plan)[1], whole)
    if bench.copy is not None:
        results.add(bench.copy, whole)
