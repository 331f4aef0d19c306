"""What the results say of each claim: a verdict by rule, and the numbers it rests on.

Nothing here is typed: a claim names what it compares, and the files of results decide. A claim of which a part was not run is
open, whatever the rest says.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..train.metrics import Line
from . import results
from .evidence import read_of, unit_of
from .plan_file import load
from .questions import mean_of
from .summary import Section, sections
from .tables import Table, markdown
from .verdicts import Finding, Noise, pooled

Value = Callable[[Line], float | None]


class Evidence:
    """The kept results of every experiment, by name of experiment and stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, list[Line]] = {}
        lines = {"bf16": "results.jsonl", "float32": "small_cpu.jsonl"}
        self.laboratory: list[Section] = [
            section
            for precision, name in lines.items()
            for section in sections(results.rows(folder / "recall" / name))
            if section.settings["precision"] == precision
        ]

    def rows(self, experiment: str) -> list[Line]:
        """The lines of an experiment."""
        if experiment not in self.found:
            self.found[experiment] = results.rows(self.folder / experiment / "results.jsonl")
        return self.found[experiment]

    def figures(
        self, place: str, value: Value, models: Iterable[str] = (), seeds: Callable[[int], bool] = lambda seed: True
    ) -> dict[str, list[float]]:
        """A value of the trained runs of ``experiment/stage``, by model (and variant); of some models and seeds, or of all."""
        experiment, _, stage = place.partition("/")
        found: dict[str, list[float]] = {}
        for row in results.latest(self.rows(experiment)).values():
            wanted = (not models or row["model"] in models) and seeds(row.get("seed", 0))
            if row["stage"] == stage and row["status"] in results.TRAINED and wanted:
                number = value(row)
                if number is not None:
                    found.setdefault(", ".join(filter(None, (row["model"], row["variant"]))), []).append(number)
        return found

    def ended(self, place: str, model: str) -> str | None:
        """How the last run of a model in ``experiment/stage`` ended; None where none did."""
        experiment, _, stage = place.partition("/")
        found = [
            row for row in results.latest(self.rows(experiment)).values() if (row["stage"], row["model"]) == (stage, model)
        ]
        return found[-1]["status"] if found else None

    def unit(self, place: str) -> str:
        """What an experiment's texts are measured in."""
        return unit_of(load(self.folder / place.partition("/")[0]))

    def read(
        self, place: str, name: str, models: Iterable[str] = (), seeds: Callable[[int], bool] = lambda seed: True
    ) -> dict[str, list[float]]:
        """How well a text was predicted, in the unit of the experiment."""
        return self.figures(place, self.reading(place, name), models, seeds)

    def far(self, place: str, name: str, models: Iterable[str] = ()) -> dict[str, list[float]]:
        """How well long windows were predicted at 8 to 16 times the length of training."""
        return self.figures(place, self.last(place, name), models)

    def reading(self, place: str, name: str) -> Value:
        """What a run has of :meth:`read`."""
        unit = self.unit(place)
        return lambda row: (read_of(row, name) or {}).get(unit)

    def last(self, place: str, name: str) -> Value:
        """What a run has of :meth:`far`."""
        unit = self.unit(place)

        def value(row: Line) -> float | None:
            places = (read_of(row, name) or {"places": []})["places"]
            return next((own[unit] for own in places if own["to"] == 16 * row["options"]["data.length"]), None)

        return value

    def noise(self, place: str, value: Value) -> Noise | None:
        """How far seeds of one model lie apart in a value: over all stages whose runs are as large and long as those of one."""
        experiment, _, stage = place.partition("/")
        kinds = {kind(row) for row in self.rows(experiment) if row["stage"] == stage}
        stages = dict.fromkeys(row["stage"] for row in self.rows(experiment) if kind(row) in kinds)
        return pooled(*(self.figures(f"{experiment}/{name}", value) for name in stages))

    def noise_of(self, place: str, name: str) -> Noise | None:
        """That of :meth:`read`."""
        return self.noise(place, self.reading(place, name))

    def task(self, name: str, reading: str, small: bool) -> dict[str, list[float]]:
        """What models scored at a task of the laboratory as they were trained for it, in percent; tasks of one name together.

        The large ones on a GPU, or the small ones on a processor. A trial ends once its task is solved: all that did have the
        score at which it counts as solved, and nobody has more.
        """
        found: dict[str, list[float]] = {}
        for section in self.laboratory:
            where = (section.settings["precision"] == "float32") == small
            if where and section.task.name == name and section.readings[0] == reading:
                for label, entry in section.entries.items():
                    full = section.task.solved
                    scores = [full if one["solved_at"] else min(one["readings"][reading] or 0.0, full) for one in entry.best]
                    found.setdefault(label, []).extend(100 * score for score in scores)
        return found


def kind(row: Line) -> tuple[Any, ...]:
    """What runs have in common whose seeds lie equally far apart: the size that a model's name ends with, tokens, length."""
    options = row["options"]
    size = [part for part in options["model.name"].split("-") if part[0].isdigit()]
    return (*size, options.get("optim.tokens"), options.get("data.length"))


def found_needles(row: Line) -> float | None:
    """The share of all needles that were found, in percent, over kinds and lengths."""
    read = read_of(row, "needles")
    if read is None:
        return None
    kinds = dict.fromkeys((cell["task"], cell["length"]) for cell in read["cells"])
    return 100 * statistics.fmean(mean_of(read, *kind) for kind in kinds)


RULE = r"""
Made by `COMMAND` from the files of results; do not edit. Each verdict is a rule applied to numbers:

- *Noise* is the standard deviation between seeds of one model, pooled over all models of the experiment that have two and are
  as large, and were trained as long, as those compared.
- A model is *ahead* of another where its mean is better by more than $t \cdot$ noise $\cdot \sqrt{1/n_1 + 1/n_2}$, with $n_1$
  and $n_2$ seeds and $t$ the 97.5 % point of Student's distribution: of two models that are alike, one is called ahead one time
  in twenty. Where no such model has two seeds, any distance counts, and the verdict says "one seed": read it as a
  hint.
- A claim *holds here* where every comparison that it names is ahead. It holds *in part* where some are and none is behind, is
  *mixed* where some are ahead and some behind, *does not hold here* where none is ahead and some are behind, and is *not told
  apart* where none is either. That something is the *best* does not hold in part while a rival's mean is better. A claim is
  *open* until all that it names was run.
- There are many comparisons, so a few of these verdicts will be chance.

The models on a GPU have 4 to 30 million parameters (0.5 in the laboratory) and read 50 to 150 million tokens
([rules](../experiments.md)), those on a processor have 0.6 million (0.2 in the laboratory) and read 2 million bytes (8 where it
is said). The paper's have 340 million and more and read 15 billion tokens and more. So a claim that does not hold here may hold
there; the small models say what to look for. "Baselines" are the Transformer, GLA, DeltaNet, Gated DeltaNet and TTT-Linear, and
beside memories with shared steps Titans.""".strip()


Judge = Callable[[Evidence], Finding]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that was claimed, who claimed it, the page that has the whole tables, and the rule that judges it.

    ``small`` judges it by small models, trained on a processor, where there are some.
    """

    text: str
    by: str
    page: str
    judge: Judge
    small: Judge | None = None
    small_page: str = "small"


def page(claims: Sequence[Claim], evidence: Evidence, docs: Path, command: str) -> str:
    """The page: all verdicts at a glance, what each rests on, and the pages that hold the whole tables, those in ``docs``."""
    rows, told = [], []
    for number, claim in enumerate(claims, 1):
        finding, small = claim.judge(evidence), claim.small and claim.small(evidence)
        said = [f"**{number}. {claim.text}** ({claim.by})", ""]
        said.append(f"- 30M on a GPU: {told_of(finding, claim.page, docs)}")
        said += [f"- 0.6M on a processor: {told_of(small, claim.small_page, docs)}"] if small else []
        rows.append([str(number), claim.text, claim.by, marked(finding), marked(small) if small else "-"])
        told.append("\n".join(said))
    table = Table(["", "claim", "by", "30M on a GPU", "0.6M on a processor"], {"": rows})
    lines = ["# What the evidence says", RULE.replace("COMMAND", command), markdown(table), *told]
    lines += ["## Pages", "\n".join(f"- {line}" for line in pages(docs))]
    return "\n\n".join(lines) + "\n"


def marked(finding: Finding) -> str:
    """A verdict, in bold where there is one."""
    return str(finding) if finding.verdict == "open" else f"**{finding}**"


def told_of(finding: Finding, page: str, docs: Path) -> str:
    """A verdict, what it rests on, and the page of the whole tables where there is one."""
    whole = f" All of it: [{page}]({page}.md)." if (docs / f"{page}.md").exists() else ""
    return f"{finding}. {finding.said}{whole}"


def pages(docs: Path) -> list[str]:
    """Every page of results by its title, with the command that makes it."""
    found = []
    for path in sorted(docs.glob("*.md")):
        text = path.read_text()
        made = re.search(r"`(python [^`]+)`", text)
        if path.name != "README.md" and made is not None:
            found.append(f"[{text.splitlines()[0].removeprefix('# ')}]({path.name}): `{made.group(1)}`")
    return found
