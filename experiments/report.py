"""Make the pages and pictures of the experiments from their results: ``docs/results/NAME.md`` and pictures beside it.

python experiments/report.py                 # every experiment that has results
python experiments/report.py enwik8
"""

from __future__ import annotations

import argparse
from pathlib import Path

from miras.lab import results
from miras.lab.curves import pictures
from miras.lab.page import page
from miras.lab.plan_file import load

HERE = Path(__file__).resolve().parent
TINY = Path("out/tiny")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="experiments (default: those that have results)")
    parser.add_argument(
        "--docs", type=Path, help="the folder for pages and pictures (default docs/results, out/tiny of a rehearsal)"
    )
    parser.add_argument("--results", type=Path, help="another file of results, for one experiment")
    parser.add_argument("--tiny", action="store_true", help="of a rehearsal, whose results are in out/tiny")
    given = parser.parse_args()
    given.docs = given.docs or (TINY if given.tiny else HERE.parent / "docs" / "results")
    known = sorted(path.parent.name for path in HERE.glob("*/plan.yaml") if (path.parent / "results.jsonl").exists())
    for name in given.names or known:
        plan = load(HERE / name, tiny=given.tiny)
        found = results.rows(given.results or (TINY / name if given.tiny else plan.folder) / "results.jsonl")
        given.docs.mkdir(parents=True, exist_ok=True)
        drawn = pictures(plan, found, given.docs)
        (given.docs / f"{name}.md").write_text(page(plan, found, drawn))
        print(f"{name}: {len(found)} results, {given.docs / name}.md and {len(drawn)} pictures")


if __name__ == "__main__":
    main()
