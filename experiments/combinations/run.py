"""Run every meaningful combination of memory, bias, retention and algorithm over a long sequence, token by token.

Each combination is one line of ``results.jsonl``: whether everything stayed finite, how large the outputs and the weights grew,
how long it took. What is there already is skipped, so an interrupted run goes on where it stopped. The page
``docs/results/combinations.md`` is made from the file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests"))

from catalogue import ALGORITHMS, RETENTIONS, combinations, meaningful  # noqa: E402
from inputs import draw  # noqa: E402
from miras import Spec, bias, memorize, memory  # noqa: E402
from miras.lab.provenance import source  # noqa: E402
from miras.lab.tables import Table, markdown  # noqa: E402

HERE = Path(__file__).resolve().parent
PAGE = ROOT / "docs" / "results" / "combinations.md"

MEMORIES = [memory.Vector(), memory.Matrix(), memory.MLP(expansion=2)]
BIASES = [
    *(bias.DotProduct(), bias.L2(), bias.Lp(), bias.L1()),
    *(bias.Huber(form=form) for form in ("coordinate", "norm", "mixture")),
    bias.ValueShift(),
]
ROOMS = ("memory", "bias", "retention", "algorithm")
# beyond this a float32 memory is finite but says nothing any more
HUGE = 1e6


def specs() -> list[Spec]:
    """Every combination that is not refused."""
    return list(meaningful(MEMORIES, BIASES, RETENTIONS, ALGORITHMS))


def refused() -> int:
    """How many combinations have no meaning."""
    return sum(bool(reasons) for _, reasons in combinations(MEMORIES, BIASES, RETENTIONS, ALGORITHMS))


def largest(tensors: list[Tensor]) -> float | None:
    """The largest absolute value, None where one is not finite."""
    value = max(float(x.abs().max()) for x in tensors)
    return value if math.isfinite(value) else None


def run(spec: Spec, settings: dict[str, Any]) -> dict[str, Any]:
    """One combination over all tokens, in float32."""
    q, k, v, gates, keywords = draw(spec, B=1, H=1, dtype=torch.float32, **settings)
    began = time.perf_counter()
    with torch.no_grad():
        y, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    seconds = time.perf_counter() - began
    kept = [x for x in pytree.tree_leaves(state) if isinstance(x, Tensor) and x.is_floating_point()]
    return {
        **{room: getattr(spec, room).label for room in ROOMS},
        "finite": all(bool(torch.isfinite(x).all()) for x in (y, *kept)),
        "largest_y": largest([y]),
        "largest_W": largest(pytree.tree_leaves(state.weights)),
        "seconds": round(seconds, 3),
    }


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """What names a combination."""
    return tuple(row[room] for room in ROOMS)


def read(path: Path, settings: dict[str, Any]) -> dict[tuple[str, ...], dict[str, Any]]:
    """The combinations that were run already with these settings, the last result of each."""
    if not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return {key(row): row for row in rows if row["settings"] == settings}


def run_missing(path: Path, settings: dict[str, Any], limit: int | None, shard: tuple[int, int], again: str | None) -> None:
    """Run what is not in the file yet, or whose name contains ``again``, and append it line by line; of several shards, one."""
    done = {names for names in read(path, settings) if again is None or again not in " + ".join(names)}
    mine = specs()[shard[0] :: shard[1]]
    missing = [spec for spec in mine if tuple(getattr(spec, room).label for room in ROOMS) not in done]
    made = source()
    with path.open("a") as file:
        for spec in with_progress(missing[:limit], len(mine) - len(missing), len(mine)):
            file.write(json.dumps({**run(spec, settings), "settings": settings, **made}, allow_nan=False) + "\n")
            file.flush()


def with_progress(missing: list[Spec], done: int, total: int) -> Iterator[Spec]:
    """The specs, with a bar on a terminal and a line every hundred elsewhere."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total, completed=done)
        for i, spec in enumerate(missing):
            progress.update(bar, description=str(spec)[:60])
            if not console.is_terminal and i % 100 == 0:
                print(f"{done + i} of {total}: {spec}", file=sys.stderr, flush=True)
            yield spec
            progress.advance(bar)


def summary(rows: list[dict[str, Any]], room: str) -> Table:
    """For each part of a room: how many of its combinations stayed finite, and how large they grew."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[room], []).append(row)

    def number(values: list[float | None], choose: Callable[[list[float]], float]) -> str:
        finite = [value for value in values if value is not None]
        return f"{choose(finite):.3g}" if finite else "-"

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    table = []
    for part, own in groups.items():
        ys, ws = [row["largest_y"] for row in own], [row["largest_W"] for row in own]
        finite = sum(row["finite"] for row in own)
        large = [number(ys, median), number(ys, max), number(ws, median), number(ws, max)]
        table.append([part, str(len(own)), str(finite), *large, number([row["seconds"] for row in own], median)])
    headings = [room, "combinations", "finite", "median of max y", "max y", "median of max W", "max W", "median seconds"]
    return Table(headings, {"": table}, numeric=True)


def why(row: dict[str, Any]) -> str:
    """Why a combination did not stay finite, where that is known."""
    if row["bias"] == "Lp" and row["algorithm"] == "GradientDescent(eta=0.05)" and row["memory"] == "Matrix":
        return ": the gradient of a third power grows with the square of the error, and a fixed step diverges, in float64 too"
    if row["retention"].startswith("FDivergence(g=hellinger"):
        return ": the multiplier is missed where the entry with the smallest update has almost no weight"
    return ""


def exceptions(rows: list[dict[str, Any]]) -> str:
    """The combinations that did not stay finite, and those that grew huge, by name."""

    def listed(title: str, chosen: list[dict[str, Any]]) -> str:
        if not chosen:
            return f"{title}: none."
        names = [" + ".join(f"`{row[room]}`" for room in ROOMS) + why(row) for row in chosen]
        return "\n".join([f"{title}: {len(chosen)}.", "", *(f"- {name}" for name in names)])

    infinite = [row for row in rows if not row["finite"]]
    huge = [row for row in rows if row["finite"] and max(row["largest_y"], row["largest_W"]) > HUGE]
    return "\n\n".join([listed("Not finite", infinite), listed(f"Finite, but beyond {HUGE:g}", huge)])


def page(rows: list[dict[str, Any]], settings: dict[str, Any]) -> str:
    """The summary as a page."""
    total = len(specs())
    finite = sum(row["finite"] for row in rows)
    made = "; ".join(
        sorted({f"commit {row['commit']}, {row['date']}, torch {row['torch']}, {row['processor']}" for row in rows})
    )
    tables = "\n\n".join(f"## By {room}\n\n{markdown(summary(rows, room))}" for room in ROOMS)
    return f"""# Every combination, over {settings["T"]} tokens

Made by `python experiments/combinations/run.py` from `experiments/combinations/results.jsonl`; do not edit.

{len(MEMORIES)} memories, {len(BIASES)} biases, {len(RETENTIONS)} retentions and {len(ALGORITHMS)} algorithms make
{total + refused()} combinations; {refused()} have no meaning and are refused, {total} are left, {len(rows)} of them were run:
{settings["T"]} tokens, one head of {settings["K"]} channels, float32, the recurrent form, one thread. Keys have unit norm,
steps are uniform in [0, {settings["eta"]:g}], the decay (minus log alpha) in [0, {2 * settings["decay"]:g}], gates
channel-wise wherever that is allowed.
**{finite} of {len(rows)} stayed finite**, outputs and the whole state. "max y" and "max W" are the largest absolute output of
any token and the largest final weight, over the combinations of a row or as their median.

{exceptions(rows)}

{tables}

Run with {made}.
"""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000, help="length of the sequence (default 2000)")
    parser.add_argument("--limit", type=int, help="run at most so many combinations now, the rest another time")
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th from the I-th on, to run N of them at once")
    parser.add_argument("--again", metavar="TEXT", help="run those again whose name contains this, say a part that has changed")
    parser.add_argument("--out", type=Path, default=HERE / "results.jsonl", help="the file of results")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page made from it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # every operation is tiny
    settings = {"T": arguments.tokens, "K": 8, "eta": 0.02, "decay": 0.01, "seed": 0}
    first, every = map(int, arguments.shard.split("/"))
    run_missing(arguments.out, settings, arguments.limit, (first, every), arguments.again)
    rows = list(read(arguments.out, settings).values())
    arguments.page.parent.mkdir(parents=True, exist_ok=True)
    arguments.page.write_text(page(rows, settings))
    print(
        f"{len(rows)} of {len(specs())} combinations are there, {sum(row['finite'] for row in rows)} finite: {arguments.page}"
    )


if __name__ == "__main__":
    main()
