"""Work through an experiment's plan: each run once, in order, as far as the time goes.

    python experiments/run.py enwik8 --seconds 560 --lease 1500 --side-by-side 2

Give it again to go on: what is finished is skipped, what was begun goes on from its checkpoint. With several experiments,
named with commas, what waits in one makes room for the next. Results are added to ``out/NAME/results.jsonl``; ``--keep``
moves them to ``experiments/NAME/results.jsonl``, which the reports are made from.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from miras.lab.bench import Bench
    from miras.lab.plan_file import Plan

HERE = Path(__file__).resolve().parent
# a worker that has met an error is started again, since it wrote down which run it was, but not for ever
TRIES = 20
# how a worker ends that was told to stop
STOPPED = {sign * number + add for number in (signal.SIGINT, signal.SIGTERM) for sign, add in ((1, 128), (-1, 0))}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names",
        type=lambda text: text.split(","),
        metavar="NAME",
        help="a folder of experiments/ with a plan.yaml; several with commas, the most important first",
    )
    parser.add_argument(
        "--data", type=Path, default=Path("out/data"), help="folders of shards, as experiments/prepare.py makes"
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="where runs live until they are finished (default out)")
    parser.add_argument("--seconds", type=float, help="the time of this call: it saves and ends then")
    parser.add_argument("--lease", type=float, help="the time for which --out stays: a run that would take longer is not begun")
    parser.add_argument(
        "--only", default="", help="only runs whose name begins so: a stage, or a stage and a model; several with commas"
    )
    parser.add_argument("--side-by-side", type=int, default=1, help="processes that work through the plan together (default 1)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="an option of every run")
    parser.add_argument("--copy", type=Path, help="a second file for the results of this call")
    parser.add_argument("--commit", help="the commit of the code, where it lies without its history")
    parser.add_argument("--again", action="store_true", help="try runs again that failed or diverged")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with the plan's smallest options, in out/tiny")
    parser.add_argument("--list", action="store_true", help="say what there is to do, and do nothing")
    parser.add_argument("--keep", action="store_true", help="add results of --out and --copy to those that are kept, and end")
    parser.add_argument("--probe", action="store_true", help="a few steps of each model, to know its pace, and no more")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--since", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tiny and given.keep:
        parser.error("results of a rehearsal are not kept: give --keep without --tiny")
    return given


def loaded(given: argparse.Namespace) -> list[Plan]:
    """The plans that are named."""
    from miras.lab.plan_file import load

    try:
        return [load(HERE / name, tiny=given.tiny) for name in given.names]
    except ValueError as error:
        raise SystemExit(f"run.py: {error}") from None


def worker(given: argparse.Namespace) -> None:
    """Work through the plans in this process."""
    from miras.lab.bench import Bench
    from miras.lab.plan_file import KNOWN
    from miras.lab.runs import chosen, why_not, with_rate, work_through
    from miras.train.options import converted

    plans = loaded(given)
    options: dict[str, Any] = {}
    for text in given.set:
        name, _, value = text.partition("=")
        if name not in KNOWN:
            raise SystemExit(f"--set {text}: no option {name}")
        options[name] = converted(value, KNOWN[name][0], f"--set {name}")
    bench = Bench(
        data=given.data,
        out=given.out / "tiny" if given.tiny else given.out,
        seconds=given.seconds,
        lease=given.lease,
        options=options,
        copy=given.copy,
        commit=given.commit,
        again=given.again,
        probe=given.probe,
        **({"since": given.since} if given.since else {}),
    )
    if given.keep:
        for plan in plans:
            keep(plan, bench)
    elif given.list:
        from miras.lab import results

        # whoever reads the list may have read enough of it
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for plan, run in ((own, run) for own in plans for run in own.runs if chosen(run, given.only)):
            ready = with_rate(plan, run, bench)
            found = results.rows(*bench.files(plan))
            said = ready if isinstance(ready, str) else why_not(plan, ready, found, bench) or "to do"
            print(f"{run.name:50} {said}")
    else:
        for said in work_through(plans, bench, given.only):
            print(f"-- {said}", flush=True)


def keep(plan: Plan, bench: Bench) -> None:
    """Add new results to those that are kept."""
    from miras.lab import results

    kept, here = bench.files(plan)
    known = {tuple(sorted(map(str, row.items()))) for row in results.rows(kept)}
    found = results.rows(here, *([bench.copy] if bench.copy else []))
    last = {(row["key"], row["status"]): row for row in found}
    fresh = [
        row
        for row in found
        if tuple(sorted(map(str, row.items()))) not in known
        # of what was read bit by bit, what came of it in the end
        and (row["status"] != "unread" or (row is last[row["key"], "unread"] and (row["key"], "finished") not in last))
    ]
    for row in fresh:
        results.add(kept, row)
    print(f"{len(fresh)} new results in {kept}")


def check(given: argparse.Namespace) -> None:
    """Refuse what no worker could do, once and before they start."""
    from miras.lab.reading_of import folder_of
    from miras.lab.runs import chosen

    plans = loaded(given)
    wanted = [(plan, run) for plan in plans for run in plan.runs if chosen(run, given.only)]
    for only in given.only.split(","):
        if not any(chosen(run, only) for _, run in wanted):
            raise SystemExit(f"run.py: no run of {', '.join(given.names)} begins with {only!r}: --list names them")
    folders = [given.data / plan.data for plan, _ in wanted]
    if not given.probe:
        folders += [folder_of(read, given.data, plan.data) for plan, run in wanted for read in run.reads]
    for folder in dict.fromkeys(folders):
        if not folder.is_dir():
            raise SystemExit(f"run.py: there is no {folder}: python experiments/prepare.py {folder.name} makes it")


def main() -> None:
    """The command."""
    given = arguments()
    if given.worker or given.list or given.keep:
        worker(given)
        return
    check(given)
    from miras.lab.sharing import shared_gpu

    with shared_gpu(given.side_by_side):
        sys.exit(lead(given))


def stop(number: int, frame: object) -> NoReturn:
    """End by a signal as by an error, so that nothing is left running."""
    raise SystemExit(128 + number)


def lead(given: argparse.Namespace) -> int:
    """Start the workers, and those that have ended by an error again; 1 where one had, else 0."""
    from miras.train.run import now

    began = time.monotonic()
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", f"--since={now()}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

    def started() -> subprocess.Popen[bytes]:
        spent = time.monotonic() - began
        limits = [f"--{name}={value - spent}" for name, value in (("seconds", given.seconds), ("lease", given.lease)) if value]
        return subprocess.Popen([*command, *limits], env=environment)

    signal.signal(signal.SIGTERM, stop)
    workers = [started() for _ in range(given.side_by_side)]
    tries, failed = TRIES, False
    try:
        while workers:
            for process in [process for process in workers if process.poll() is not None]:
                workers.remove(process)
                if process.returncode in STOPPED:
                    return 128 + abs(process.returncode) % 128
                failed |= process.returncode != 0
                if process.returncode != 0 and tries:
                    tries -= 1
                    workers.append(started())
            time.sleep(0.2)
    finally:
        # a training that is told so saves and ends
        for process in workers:
            process.terminate()
        for process in workers:
            process.wait()
    return int(failed)


if __name__ == "__main__":
    main()
