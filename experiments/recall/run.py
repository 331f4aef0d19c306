"""Train models from scratch on the tasks of the recall laboratory, one trial or a whole plan of them.

    python experiments/recall/run.py --task mqar --model yaad --seed 0 --rate 2e-3 --steps 3000
    python experiments/recall/run.py --plan experiments/recall/plans/mqar32.yaml --workers 6 --seconds 540

Each trial that ends becomes a line of ``--results``; one that stands there, or in a file of ``--known``, is not done again, so
the same command goes on where it was interrupted. With ``--seconds`` no trial is begun that is not expected to end in time,
and one that turns out not to is given up. ``report.py`` beside this file makes tables and plots.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from miras.lab import results
from miras.lab.crew import Crew, Report, attempt
from miras.lab.plan import Result, contestant_of, identity, predicted, read_plan
from miras.lab.provenance import device_name, provenance
from miras.lab.sharing import shared_gpu
from miras.lab.tasks import TASKS, task_of
from miras.lab.trial import Precision, Trial

HERE = Path(__file__).resolve().parent
# below this no trial is worth starting
LEAST_SECONDS = 20.0


def setting(text: str) -> tuple[str, Any]:
    """A setting on the command line, NAME=VALUE with the value as in YAML."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, yaml.safe_load(value)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="a file that lists trials, instead of --task and --model")
    parser.add_argument("--task", choices=sorted(TASKS), help="the task of a single trial")
    parser.add_argument("--model", help="its model: PRESET or PRESET-anchored")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2e-3, help="the largest learning rate (default 2e-3)")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=64, help="sequences of a step (default 64)")
    parser.add_argument("--check", type=int, default=100, help="steps between checks (default 100)")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="of the task: pairs=8")
    parser.add_argument("--with", type=setting, action="append", default=[], metavar="NAME=VALUE", help="its model: width=64")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl", help="the file that lines are added to")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="more files of trials that are done")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=["float32", "bf16"], help="if not given bf16 on a graphics card, else float32")
    parser.add_argument("--workers", type=int, default=1, help="processes at once (default 1, in this process)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="the time there is")
    parser.add_argument("--commit", help="the commit of the code, where it lies without its history")
    parser.add_argument("--list", action="store_true", help="print what would be done, and stop")
    given = parser.parse_args()
    if (given.plan is None) == (given.task is None or given.model is None):
        parser.error("give --plan, or --task and --model")
    return given


def asked(given: argparse.Namespace, precision: Precision, known: list[Result]) -> list[Trial]:
    """The trials that the command line asks for."""
    if given.plan is not None:
        return read_plan(given.plan, precision, known)
    model = contestant_of({"name": given.model, **dict(vars(given)["with"])})
    task = task_of(given.task, **dict(given.set))
    numbers = {name: getattr(given, name) for name in ("seed", "rate", "steps", "rows", "check")}
    return [Trial(task=task, model=model, precision=precision, **numbers)]


def title(trial: Trial) -> str:
    """A trial in a few words."""
    return f"{trial.task.name:<12} {trial.model.settled().label:<20} rate {trial.rate:<7g} seed {trial.seed}"


class Writer:
    """Adds lines to the file of results, and says on the terminal what became of each trial."""

    def __init__(self, path: Path, made: dict[str, Any]) -> None:
        self.path, self.made = path, made
        self.trials = self.told = self.failures = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def tell(self, report: Report) -> None:
        """One report."""
        self.told += 1
        self.failures += report.failed
        line = f"[{self.told}/{self.trials}] {title(report.trial)}  "
        if report.result is None:
            print(line + ("FAILED\n" if report.failed else "given up: ") + report.reason, flush=True)
            return
        result = report.result
        results.add(self.path, {**result, **self.made})
        read = "  ".join(f"{name} " + ("-" if value is None else f"{value:.3f}") for name, value in result["readings"].items())
        print(line + f"{read}  {result['steps_taken']} steps, {result['seconds']:.0f} s", flush=True)


class Call:
    """One call of the command: what is known, what is left of the time, who writes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.deadline = given, time.time() + given.seconds
        self.device = torch.device(given.device)
        self.name = device_name(self.device)
        self.precision: Precision = given.precision or ("bf16" if self.device.type == "cuda" else "float32")
        made = {"device": self.name, "workers": given.workers, **provenance("transformers", "triton", "fla-core")}
        if given.commit:
            made["commit"] = given.commit
        if given.plan is not None:  # without the folders of this machine; a plan from elsewhere is named, not placed
            ours = given.plan.resolve().parent == HERE / "plans"
            name = f"experiments/recall/plans/{given.plan.name}" if ours else given.plan.name
            made["command"] = f"python experiments/recall/run.py --plan {name}"
        self.writer = Writer(given.results, made)
        self.tried: set[str] = set()
        self.known: list[Result] = []

    def todo(self) -> list[Trial]:
        """The trials that are neither done nor tried."""
        self.known = results.rows(self.given.results, *self.given.known)
        done = {identity(result["trial"]) for result in self.known}
        trials = asked(self.given, self.precision, self.known)
        left = [trial for trial in trials if identity(trial.to_dict()) not in done | self.tried]
        print(f"{len(trials)} trials, {len(left)} of them to do", flush=True)
        return left

    def fits(self, trial: Trial) -> bool:
        """Whether a trial is expected to end in time."""
        left = self.deadline - time.time()
        return left > max(predicted(trial, self.known, self.name) or 0.0, LEAST_SECONDS)

    def work(self, todo: list[Trial]) -> None:
        """Work off a list."""
        self.tried |= {identity(trial.to_dict()) for trial in todo}
        self.writer.trials += len(todo)
        if self.given.workers == 1:
            torch.set_num_threads(1)
            for trial in filter(self.fits, todo):
                self.writer.tell(attempt(trial, self.device, self.deadline))
            return
        Crew(
            todo,
            workers=self.given.workers,
            device=self.device,
            deadline=self.deadline,
            fits=self.fits,
            tell=self.writer.tell,
        ).run()


def main() -> int:
    """The command."""
    given, began = arguments(), time.time()
    call = Call(given)
    if given.list:
        print("\n".join(map(title, call.todo())))
        return 0
    with shared_gpu(given.workers if call.device.type == "cuda" else 1):
        # results may say which trials come next
        while todo := call.todo():
            call.work(todo)
    left = call.writer.trials - call.writer.told
    print(f"{left} not begun for want of time" if left else "all begun", f"in {time.time() - began:.0f} s", flush=True)
    return 1 if call.writer.failures else 0


if __name__ == "__main__":
    sys.exit(main())
