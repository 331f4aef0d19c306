"""``miras eval zero-shot``: the paper's zero-shot sets, from local files or through lm-eval-harness."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..types import require
from .extras import needed
from .measuring import about, add_shared, bar, loaded, names, precision, table

if TYPE_CHECKING:
    from ..eval import ZeroShot


def add_zero_shot(command: argparse.ArgumentParser) -> None:
    """The options of ``miras eval zero-shot``."""
    command.description = (
        "The paper's zero-shot sets, with the prompts and the scoring of lm-eval-harness: from local JSON lines (--data), "
        "or through the harness itself, which fetches its data (--harness)."
    )
    add_shared(command)
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", metavar="FOLDER", type=Path, help="holds NAME.jsonl (or .jsonl.xz, .jsonl.gz) for each task")
    source.add_argument("--harness", action="store_true", help="through lm-eval-harness: pip install 'miras-torch[harness]'")
    command.add_argument("--tasks", metavar="A,B,...", help="such as lambada,piqa (default: all eight)")
    command.add_argument("--limit", type=int, metavar="N", help="the first N questions of each task")
    command.add_argument("--context", type=int, default=2048, metavar="N", help="tokens read at most, the last (default 2048)")
    command.add_argument("--json", metavar="OUT", type=Path, help="write all numbers to a file")
    command.add_argument("--answers", action="store_true", help="the likelihood of every choice, too, in that file")
    command.set_defaults(run=run_zero_shot, parser=command)


def run_zero_shot(arguments: argparse.Namespace) -> None:
    """``miras eval zero-shot``."""
    needed("eval", "numpy", "eval")
    from ..eval import harness, zero_shot
    from ..eval.tasks import tasks_of
    from ..files import check_target, write_json

    require(not arguments.answers or arguments.json is not None, "--answers go into the file of --json, which was not given")
    if arguments.json is not None:
        check_target(arguments.json, "cannot write", (arguments.data, arguments.model))
    tasks = names(arguments.tasks)
    tasks_of(tasks)
    if arguments.harness:
        needed("eval", "lm_eval", "harness")
    model = loaded(arguments)
    options = {"limit": arguments.limit, "context": arguments.context, "autocast": precision(arguments)}
    if arguments.harness:
        try:
            found = harness(*model, tasks, **options)
        except OSError as error:
            raise ValueError(f"lm-eval-harness could not get its data ({error}): --data takes local files") from error
    else:
        with bar("scoring", "choices") as progress:
            found = zero_shot(*model, arguments.data, tasks, **options, batch_tokens=arguments.batch_tokens, progress=progress)
    if arguments.json is not None:
        by = "lm-eval-harness" if arguments.harness else "miras"
        write_json(arguments.json, {**about(arguments, model), "scored_by": by, **found.to_dict(arguments.answers)})
    print(scores(found))


def scores(found: ZeroShot) -> str:
    """The result for people; what the paper prints is marked."""
    rows = [["task", "questions", "metric", "value", "error", "paper's"]]
    for result in found.tasks:
        for metric in result.metrics:
            share = metric.name != "ppl"
            value = f"{100 * metric.value:.2f} %" if share else f"{metric.value:,.2f}"
            error = "-" if metric.error is None else f"{100 * metric.error:.2f} %"
            mark = "yes" if metric.name in result.task.paper else ""
            rows.append([result.task.name, f"{len(result.answers):,}", metric.name, value, error, mark])
    return f"{table(rows)}\nTook {found.seconds:.1f} s."
