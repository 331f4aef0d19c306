"""Make the tables and pictures of the recall laboratory from its file of results.

    python experiments/recall/report.py

Writes ``docs/results/recall.md`` and the pictures beside it.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from pathlib import Path

from figures import curves, length_sections, noise_sections, overview, readings, save

from miras.lab.plan import Result, identity, read_plan
from miras.lab.results import rows as lines
from miras.lab.summary import Entry, Section, sections, title_of
from miras.lab.tables import Table, markdown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def shown(score: float | None) -> str:
    """A score in percent."""
    return "lost" if score is None else f"{100 * score:.1f}"


def row(label: str, entry: Entry, section: Section) -> list[str]:
    """A model's line."""
    best = entry.best
    solved = [str(result["solved_at"] or "-") for result in best]
    first, *others = section.readings
    return [
        label,
        f"{best[0]['parameters']['body'] / 1000:.0f}k",
        f"{entry.rate:g} of {len(entry.tried)}",
        " / ".join(shown(result["readings"][first]) for result in best),
        " / ".join(solved),
        *(shown(entry.reading(name)) for name in others),
        f"{1000 * best[0]['seconds_a_step']:.0f}",
    ]


def table(section: Section) -> Table:
    """All models at one task."""
    first, *others = section.readings
    headings = ["model", "parameters", "rate", f"{first}, by seed", "solved after", *others, "ms a step"]
    return Table(headings, {"": [row(label, entry, section) for label, entry in section.entries.items()]}, numeric=True)


def table_of_rates(section: Section) -> Table | None:
    """Every rate that was tried, where there were several."""
    rates = sorted({rate for entry in section.entries.values() for rate in entry.tried})
    if len(rates) < 2:
        return None
    first = section.readings[0]
    rows = []
    for label, entry in section.entries.items():
        tried = {rate: sorted(own, key=lambda r: int(r["trial"]["seed"])) for rate, own in entry.tried.items()}
        cells = [" / ".join(shown(result["readings"][first]) for result in tried.get(rate, [])) for rate in rates]
        rows.append([label, *cells])
    return Table(["model", *(f"{rate:g}" for rate in rates)], {"": rows}, numeric=True)


def text_of(section: Section) -> str:
    """A section of the page."""
    task, size, settings = section.task, section.size, section.settings
    bodies = [result["parameters"]["body"] for entry in section.entries.values() for result in entry.best]
    said = f"""{size["depth"]} layers of {size["width"]} channels, heads: {size["heads"]}, at most {settings["steps"]} steps of
        {settings["rows"]} sequences, {settings["precision"]}. Chance is {100 * task.chance:.2g} %; solved is
        {100 * task.solved:g} % on the sequences of a check. Parameters without embeddings differ by
        {100 * (max(bodies) / min(bodies) - 1):.1f} % at most."""
    parts = [f"## {section.title}", wrapped(said), markdown(table(section))]
    rates = table_of_rates(section)
    if rates is not None:
        parts += ["Every rate, by seed:", markdown(rates)]
    return "\n\n".join(parts)


def wrapped(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(" ".join(text.split()), 128)


def missing(plan: Path, results: list[Result]) -> str:
    """How many trials of a plan have no result, by task; those whose rate is yet to be chosen are not counted."""
    done = {identity(result["trial"]) for result in results}
    # a plan is worked off in one precision, on a graphics card bf16
    cards = any(result["trial"]["precision"] == "bf16" for result in results)
    own = read_plan(plan, "bf16" if cards else "float32", results)
    left = Counter(title_of(trial.task) for trial in own if identity(trial.to_dict()) not in done)
    if not left:
        return f"Everything that `{plan.name}` asks for was run."
    rows = [[task, str(number)] for task, number in left.items()]
    said = f"Of {len(own)} trials of `{plan.name}`, but for rates yet to be chosen, {sum(left.values())} were not run:"
    return f"{said}\n\n{markdown(Table(['task', 'trials'], {'': rows}, numeric=True))}"


def page(results: list[Result], found: list[Section], pictures: dict[str, str], command: str, plan: Path) -> str:
    """The page."""
    made = sorted(
        {f"commit {r['commit']}, {r['date']}, torch {r['versions']['torch']}, {r['device']}, `{r['command']}`" for r in results}
    )
    introduction = f"""{len(results)} trials of the [recall laboratory](../recall_laboratory.md), which says what the tasks and
        the columns are. Scores are in percent, on held-out sequences. "rate" is the learning rate that did best with the first
        seed, and how many were tried; "solved after" the steps until the task counted as solved, for each seed; the columns
        behind it longer or harder sequences, the mean over seeds."""
    parts = [
        "# Recall laboratory: results",
        f"Made by `{command}`; do not edit.",
        wrapped(introduction),
        *(f"![{words}]({name}.png)" for name, words in pictures.items()),
        *map(text_of, found),
        "## Not run",
        missing(plan, results),
        "## Run with",
        "\n".join(f"- {line}" for line in made),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, nargs="+", default=[HERE / "results.jsonl"], help="files of results")
    parser.add_argument("--name", default="recall", help="what the files are called (default recall)")
    parser.add_argument("--plan", type=Path, default=HERE / "plans" / "laboratory.yaml", help="what was to be run")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "results", help="the folder for page and pictures")
    given = parser.parse_args()
    results = lines(*given.results)
    if not results:
        parser.error(f"there are no results in {', '.join(map(str, given.results))}: run experiments/recall/run.py first")
    found = sections(results)
    longer, noisier = length_sections(found), noise_sections(found)
    drawn = {"overview": (overview(found), "Score of every model at every task"), "curves": (curves(found), "Learning curves")}
    if longer:
        drawn["lengths"] = (readings(longer, "Read at up to 16 times the length of training"), "Score against length")
    if noisier:
        drawn["noise"] = (readings(noisier, "Read with fewer and more wrong presentations"), "Score against noise")
    given.docs.mkdir(parents=True, exist_ok=True)
    for name, (figure, _) in drawn.items():
        save(figure, given.docs / f"{given.name}_{name}")
    files = " ".join(f"experiments/recall/{path.name}" for path in given.results)
    plan = f" --plan experiments/recall/plans/{given.plan.name}" if given.plan != parser.get_default("plan") else ""
    command = f"python experiments/recall/report.py --name {given.name} --results {files}{plan}"
    path = given.docs / f"{given.name}.md"
    path.write_text(
        page(results, found, {f"{given.name}_{name}": words for name, (_, words) in drawn.items()}, command, given.plan)
    )
    print(f"{len(results)} results; see {path}")


if __name__ == "__main__":
    main()
