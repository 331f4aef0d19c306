"""Measure how far the chunk form drifts from the exact recurrence as the chunk grows.

Writes ``results.jsonl`` (a line for each setting and chunk size), and from it ``docs/results/chunk_drift.md`` and the picture
beside it. About two minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from measure import measure, settings
from report import page, picture

from miras.lab.provenance import source

ROOT = Path(__file__).resolve().parents[2]

HERE = Path(__file__).resolve().parent


def run(path: Path) -> None:
    """Measure everything and write it, line by line."""
    from rich.console import Console
    from rich.progress import track

    made, todo = source(), list(settings())
    console = Console(stderr=True)
    with path.open("w") as file:
        for setting in track(todo, "measuring", console=console, disable=not console.is_terminal):
            for row in measure(setting):
                file.write(json.dumps({**row, **made}, allow_nan=False) + "\n")
            file.flush()


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report-only", action="store_true", help="make page and picture from the results that are there")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl", help="the file of results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "results", help="the folder for page and picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # every operation is small
    if not arguments.report_only:
        run(arguments.results)
    rows = read(arguments.results)
    arguments.docs.mkdir(parents=True, exist_ok=True)
    (arguments.docs / "chunk_drift.md").write_text(page(rows))
    for suffix in ("png", "svg"):
        picture(rows, arguments.docs / f"chunk_drift.{suffix}")
    print(f"{len(rows)} results in {arguments.results}; see {arguments.docs / 'chunk_drift.md'}")


if __name__ == "__main__":
    main()
