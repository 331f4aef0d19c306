"""What the results say of each claim: a verdict by rule, and the numbers it rests on.

Nothing here is typed: a claim names what it compares, and the files of results decide. A claim of which a part was not run is
open, whatever the rest says.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ..train.metrics import Line
from . import results
from .evidence import read_of, unit_of
from .plan_file import load
from .questions import mean_of
from .summary import Section, sections
from .tables import Table, markdown

Verdict = Literal["holds here", "holds in part", "not told apart", "does not hold here", "open"]
# one number a seed, by model
Figures = Mapping[str, Sequence[float]]


class Finding(NamedTuple):
    """A verdict, and what it rests on in words; ``weak`` where no model has two seeds, so that chance may have decided."""

    verdict: Verdict
    said: str
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.verdict}, one seed" if self.weak and self.verdict != "open" else self.verdict


class Measure(NamedTuple):
    """How figures are told: their unit and digits, and whether more is better."""

    unit: str
    digits: int
    more: bool = False

    def told(self, values: Sequence[float]) -> str:
        """A mean."""
        return f"{statistics.fmean(values):.{self.digits}f}"

    def gain(self, values: Sequence[float], other: Sequence[float]) -> float:
        """By how much the first are better, as far as the digits tell."""
        ahead = statistics.fmean(values) - statistics.fmean(other)
        return round(ahead if self.more else -ahead, self.digits)

    def best(self, figures: Figures) -> str:
        """The model with the best mean."""
        return (max if self.more else min)(figures, key=lambda name: statistics.fmean(figures[name]))


BITS, PERCENT, RATIO = Measure("bits/byte", 3), Measure("%", 1, more=True), Measure("times", 3, more=True)
PERPLEXITY = Measure("perplexity", 2)


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

    def figures(self, place: str, value: Callable[[Line], float | None], models: Iterable[str] = ()) -> dict[str, list[float]]:
        """A value of the finished runs of ``experiment/stage``, by model (and variant); of some models, or of all."""
        experiment, _, stage = place.partition("/")
        found: dict[str, list[float]] = {}
        for row in results.latest(self.rows(experiment)).values():
            if row["stage"] == stage and row["status"] == "finished" and (not models or row["model"] in models):
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

    def read(self, place: str, name: str, models: Iterable[str] = ()) -> dict[str, list[float]]:
        """How well a text was predicted, in the unit of the experiment."""
        unit = self.unit(place)
        return self.figures(place, lambda row: (read_of(row, name) or {}).get(unit), models)

    def beside(self, experiment: str, name: str) -> dict[str, list[float]]:
        """How well a text was predicted in every stage of an experiment: what its seeds say of each other."""
        stages = dict.fromkeys(row["stage"] for row in self.rows(experiment))
        each = {stage: self.read(f"{experiment}/{stage}", name) for stage in stages}
        return {f"{stage}: {model}": own for stage, found in each.items() for model, own in found.items()}

    def far(self, place: str, name: str, models: Iterable[str] = ()) -> dict[str, list[float]]:
        """How well the last stretch of long windows was predicted."""
        unit = self.unit(place)

        def last(row: Line) -> float | None:
            read = read_of(row, name)
            return None if read is None else read["places"][-1][unit]

        return self.figures(place, last, models)

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


class Gain(NamedTuple):
    """By how much a model is better than another, and what seeds alone could make of the distance of two means."""

    by: float
    margin: float


def deviation(*every: Figures) -> float | None:
    """The standard deviation of a model's seeds, over all models together; None where no model has two."""
    several = [own for figures in every for own in figures.values() if len(own) > 1]
    if not several:
        return None
    squares = sum(sum((value - statistics.fmean(own)) ** 2 for value in own) for own in several)
    return math.sqrt(squares / sum(len(own) - 1 for own in several))


def gain_of(own: Sequence[float], other: Sequence[float], measure: Measure, noise: float | None) -> Gain:
    """The distance of two means, and twice its standard error, 0 where nothing tells that."""
    return Gain(measure.gain(own, other), 2 * (noise or 0.0) * math.sqrt(1 / len(own) + 1 / len(other)))


def seeds(noise: float | None, own: bool = True) -> str:
    """How far seeds lie apart, in words: those of the models that are compared, or of others beside them."""
    if noise is None:
        return "One seed each."
    of = "Seeds of one model" if own else "One seed each; seeds of one model of other stages"
    return f"{of} have a standard deviation of {noise:.3f}."


def compared(gains: Mapping[str, Gain | None]) -> Verdict:
    """A verdict on models that should be ahead, by how much they are; None for one that was not run."""
    run = [gain for gain in gains.values() if gain is not None]
    if not run or len(run) < len(gains):
        return "open"
    ahead = [gain for gain in run if gain.by > gain.margin]
    if ahead:
        return "holds here" if len(ahead) == len(run) else "holds in part"
    behind = any(gain.by < -gain.margin for gain in run)
    return "does not hold here" if behind else "not told apart"


def against(ours: Figures, others: Figures, wanted: Sequence[str], needed: Sequence[str], measure: Measure) -> Finding:
    """Whether each of the wanted is better than the best of the others, of which all that are needed must have been run."""
    missing = [name for name in needed if name not in others]
    if not others or not ours:
        return Finding("open", "Not run yet.")
    best, noise = measure.best(others), deviation(ours, others)
    gains = {name: gain_of(ours[name], others[best], measure, noise) if name in ours else None for name in wanted}
    said = [
        f"{name} not run" if gain is None else f"{name} {measure.told(ours[name])} ({ahead(gain.by, measure)})"
        for name, gain in gains.items()
    ]
    words = f"Best of the others: {best} {measure.told(others[best])} {measure.unit}. {', '.join(said)}. {seeds(noise)}"
    if missing:
        return Finding("open", f"{words} Not run: {', '.join(missing)}.")
    return Finding(compared(gains), words, weak=noise is None)


def ahead(gain: float, measure: Measure) -> str:
    """A distance in words."""
    return "level" if gain == 0 else f"{abs(gain):.{measure.digits}f} {'ahead' if gain > 0 else 'behind'}"


def pairwise(better: Figures, worse: Figures, pairs: Mapping[str, str], measure: Measure) -> Finding:
    """Whether each first model is better than its second."""
    if not any(one in better and other in worse for one, other in pairs.items()):
        return Finding("open", "Not run yet.")
    own = ({one: better[one] for one in pairs if one in better}, {two: worse[two] for two in pairs.values() if two in worse})
    noise = deviation(*own)
    gains = {
        one: gain_of(better[one], worse[other], measure, noise) if one in better and other in worse else None
        for one, other in pairs.items()
    }
    said = [
        f"{one} not run"
        if gain is None
        else f"{one} {measure.told(better[one])} for {pairs[one]} {measure.told(worse[pairs[one]])}"
        for one, gain in gains.items()
    ]
    return Finding(compared(gains), f"{', '.join(said)} ({measure.unit}). {seeds(noise)}", weak=noise is None)


def favourite(figures: Figures, name: str, rivals: Sequence[str], measure: Measure, beside: Figures | None = None) -> Finding:
    """Whether one model is better than each of its rivals; ``beside`` tells of seeds where all of these have one."""
    if name not in figures or not any(rival in figures for rival in rivals):
        return Finding("open", "Not run yet.")
    own = deviation({one: figures[one] for one in (name, *rivals) if one in figures})
    noise = deviation(beside or {}) if own is None else own
    gains = {rival: gain_of(figures[name], figures[rival], measure, noise) if rival in figures else None for rival in rivals}
    said = [f"{rival} not run" if gain is None else f"{rival} {measure.told(figures[rival])}" for rival, gain in gains.items()]
    words = f"{name} {measure.told(figures[name])}; {', '.join(said)} ({measure.unit}). {seeds(noise, own is not None)}"
    return Finding(compared(gains), words, weak=own is None)


def found_needles(row: Line) -> float | None:
    """The share of all needles that were found, in percent, over kinds and lengths."""
    read = read_of(row, "needles")
    if read is None:
        return None
    kinds = dict.fromkeys((cell["task"], cell["length"]) for cell in read["cells"])
    return 100 * statistics.fmean(mean_of(read, *kind) for kind in kinds)


RULE = """\
Made by `{command}` from the files of results; do not edit. Each verdict is a rule applied to numbers. One model is *ahead* of
another where its mean is better by more than twice the standard error of their distance, which is taken from how far seeds of
one model lie apart, over all that are compared. Where none of them has two seeds, variants of one model are judged by the
seeds of the experiment's other models; elsewhere any distance counts. Such a verdict says "one seed" and is weak. A claim
about several models *holds here* where all of them are ahead, *in part* where some are; where none is, it *does not hold here*
if one is behind by as much, and else they are *not told apart*. It is *open* until everything that it names has been run.
Verdicts are of models of 4 to 30 million parameters (0.5 in the laboratory) that read 50 to 150 million tokens on a GPU
([rules](../experiments.md)); *small* ones have 0.6 million (0.2 in the laboratory) and read 2 million (8 where it is said) on
a processor. The paper's have 340 million and more and read 15 billion and more. So a claim that does not hold here may hold
there, and small models say what to look for, not what is so."""


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
        said = [f"**{number}. {claim.text}** ({claim.by}): {told_of(finding, claim.page, docs)}"]
        said += [f"Small: {told_of(small, claim.small_page, docs)}"] if small else []
        rows.append([str(number), claim.text, claim.by, f"**{finding}**", str(small) if small else "-"])
        told.append(" ".join(said))
    table = Table(["", "claim", "by", "verdict", "small"], {"": rows})
    lines = ["# What the evidence says", RULE.format(command=command), markdown(table), *told]
    lines += ["## Pages", "\n".join(f"- {line}" for line in pages(docs))]
    return "\n\n".join(lines) + "\n"


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
