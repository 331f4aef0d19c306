"""``miras eval needle``: needles in haystacks, asked for or written to learn from."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from ..types import require
from .extras import needed
from .measuring import about, add_shared, bar, loaded, names, numbers, precision, table
from .models import named_tokenizer

if TYPE_CHECKING:
    from ..eval import Haystack, NeedleResult


def add_needle(command: argparse.ArgumentParser) -> None:
    """The options of ``miras eval needle``."""
    command.description = (
        "Hide a number or a UUID in a long text and ask for it (RULER's S-NIAH-1 to 3), at every length and depth; or, with "
        "--write, make such texts to learn from."
    )
    add_shared(command, needs_model=False)
    command.add_argument("--haystack", metavar="PATH", type=Path, help="prose for s-niah-2 and -3: a text, .jsonl, or a folder")
    command.add_argument("--data.field", dest="field", metavar="NAME", default="text", help="the text of a line (default text)")
    command.add_argument("--tasks", metavar="A,B,...", help="of s-niah-1, s-niah-2, s-niah-3 (default: all)")
    command.add_argument("--lengths", metavar="N,N,...", default="1024,2048,4096", help="tokens (default 1024,2048,4096)")
    command.add_argument("--depths", metavar="D,D,...", help="from 0 to 1 (default 0,0.25,0.5,0.75,1)")
    command.add_argument(
        "--count", type=int, default=10, metavar="N", help="needles of each kind, or in all with --write (default 10)"
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the needles (default 0)")
    command.add_argument("--no-generate", action="store_true", help="score the answer in one pass and generate nothing")
    command.add_argument("--out", metavar="DIR", type=Path, default=Path("needle"), help="for the files (default ./needle)")
    command.add_argument(
        "--write", metavar="OUT", type=Path, help="write needles to learn from as JSON lines, and measure nothing"
    )
    command.set_defaults(run=run_needle, parser=command)


def run_needle(arguments: argparse.Namespace) -> None:
    """``miras eval needle``."""
    needed("eval", "numpy", "eval")
    from ..eval.needles import needle_tasks_of

    lengths = numbers("--lengths", arguments.lengths)
    tasks = names(arguments.tasks)
    haystack = haystack_at(arguments.haystack, arguments.field)
    needle_tasks_of(tasks, haystack)
    if arguments.write is not None:
        write_needles(arguments, tasks, lengths, haystack)
    else:
        measure_needles(arguments, tasks, lengths, haystack)


def haystack_at(path: Path | None, field: str) -> Haystack | None:
    """The prose at a path."""
    from ..eval import documents_of, haystack_of

    return None if path is None else haystack_of(documents_of(path, field=field)[0], str(path))


def write_needles(
    arguments: argparse.Namespace, tasks: tuple[str, ...] | None, lengths: list[int], haystack: Haystack | None
) -> None:
    """``miras eval needle --write``."""
    from ..eval import training_needles
    from ..files import check_target, write_lines

    check_target(arguments.write, "cannot write", (arguments.haystack, arguments.model))
    require(arguments.depths is None, "--depths is for measuring: with --write they are drawn evenly from 0 to 1")
    named = arguments.tokenizer is not None or arguments.model is not None
    require(named, "lengths are counted in tokens: give MODEL, or --tokenizer")
    tokenizer = named_tokenizer(arguments.tokenizer) if arguments.tokenizer is not None else loaded(arguments).tokenizer
    some = training_needles(
        tokenizer, lengths=lengths, count=arguments.count, seed=arguments.seed, tasks=tasks, haystack=haystack
    )
    write_lines(arguments.write, (dataclasses.asdict(one) for one in some))
    print(f"Wrote {arguments.count:,} needles: {arguments.write}")


def measure_needles(
    arguments: argparse.Namespace, tasks: tuple[str, ...] | None, lengths: list[int], haystack: Haystack | None
) -> None:
    """``miras eval needle`` without ``--write``."""
    needed("eval", "matplotlib")
    from ..eval import needle
    from ..eval.heat_map import draw
    from ..eval.needle import DEPTHS
    from ..files import write_lines

    require(arguments.model is not None, "there is no MODEL to ask (--write makes needles without one)")
    depths = DEPTHS if arguments.depths is None else depths_of(arguments.depths)
    # a folder that cannot be made is found out before the work, not after it
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = loaded(arguments)
    with bar("asking", "needles") as progress:
        found = needle(
            *model,
            tasks=tasks,
            lengths=lengths,
            depths=depths,
            count=arguments.count,
            seed=arguments.seed,
            haystack=haystack,
            generate=not arguments.no_generate,
            batch_tokens=arguments.batch_tokens,
            autocast=precision(arguments),
            progress=progress,
        )
    known = {**about(arguments, model), "haystack": str(arguments.haystack), "seed": arguments.seed}
    write_lines(arguments.out / "needle.jsonl", ({**outcome.to_dict(), **known} for outcome in found.outcomes))
    title = model.model.config.label or Path(arguments.model).name
    draw(found.cells, [arguments.out / "needle.png", arguments.out / "needle.svg"], title)
    print(
        f"{shares(found)}\nTook {found.seconds:.1f} s. See {arguments.out / 'needle.png'} and {arguments.out / 'needle.jsonl'}."
    )


def depths_of(text: str) -> list[float]:
    """The shares of a comma list."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--depths takes shares such as 0,0.5,1, got {text!r}") from None


def shares(found: NeedleResult) -> str:
    """By task and length, over all depths."""
    rows = [["task", "length", "needles", "exact", "found"]]
    kinds = dict.fromkeys((outcome.task, outcome.length) for outcome in found.outcomes)
    for task, length in kinds:
        some = [outcome for outcome in found.outcomes if (outcome.task, outcome.length) == (task, length)]
        exact = sum(outcome.exact for outcome in some) / len(some)
        decoded = [outcome.found for outcome in some if outcome.found is not None]
        share = f"{100 * sum(decoded) / len(decoded):.1f} %" if decoded else "-"
        rows.append([task, f"{length:,}", f"{len(some):,}", f"{100 * exact:.1f} %", share])
    return table(rows)
