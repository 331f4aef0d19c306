"""The results of the laboratory in order: by task, by model, by rate, by seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import mean
from typing import Any

from .contestant import Contestant
from .plan import Result, standing
from .tasks import TASKS, Task, task_of

SIZES = ("width", "depth", "heads")
# models in the order of the tables
ORDER = ("transformer", "gla", "deltanet", "gated_deltanet", "ttt_linear", "titans_lmm", "moneta", "yaad", "memora")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model's results at one task: every rate that was tried, and at the best of them every seed."""

    model: Contestant
    tried: dict[float, list[Result]]

    @property
    def rate(self) -> float:
        """The rate that did best with the first seed."""
        first = min(result["trial"]["seed"] for results in self.tried.values() for result in results)
        own = {rate: standing(r) for rate, results in self.tried.items() for r in results if r["trial"]["seed"] == first}
        return max(own, key=lambda rate: own[rate])

    @property
    def best(self) -> list[Result]:
        """The results at that rate, by seed."""
        return sorted(self.tried[self.rate], key=lambda result: int(result["trial"]["seed"]))

    def reading(self, name: str) -> float | None:
        """The mean over the seeds of a reading; None where one overflowed."""
        values = [result["readings"][name] for result in self.best]
        return None if None in values else mean(values)

    @property
    def score(self) -> float | None:
        """The mean score over the seeds."""
        return self.reading(next(iter(self.best[0]["readings"])))


@dataclass(frozen=True, kw_only=True)
class Section:
    """A task at a size of models, with an entry for each model."""

    task: Task
    size: dict[str, int]
    settings: dict[str, Any]
    entries: dict[str, Entry]

    @property
    def title(self) -> str:
        """The task in a few words."""
        return title_of(self.task)

    @property
    def readings(self) -> list[str]:
        """What models were read at."""
        return list(self.task.readings())


def title_of(task: Task) -> str:
    """A task in a few words."""
    words = {
        "mqar": lambda t: f"{t.pairs} pairs in {t.length} tokens",
        "noisy_recall": lambda t: f"{t.pairs} pairs, {t.wrong} of {t.shows} wrong",
        "noisy_vectors": lambda t: f"{t.pairs} pairs, {t.wrong} of {t.shows} wrong",
        "overwriting": lambda t: f"{t.writes} writes of {t.keys} keys",
        "copying": lambda t: f"{t.items} items in {t.length} tokens",
        "regression": lambda t: f"{t.dim} dimensions, {t.length // 2} points",
        "tracking": lambda t: f"S{t.degree}, {t.length} tokens",
    }
    return f"{task.name}: {words[task.name](task)}"


def model_of(result: Result) -> Contestant:
    """The model of a result."""
    return Contestant(**result["trial"]["model"])


def sections(results: list[Result]) -> list[Section]:
    """The results, each under its task and size."""
    found: dict[str, list[Result]] = {}
    for result in results:
        trial = result["trial"]
        size = {name: trial["model"][name] for name in SIZES}
        settings = {name: trial[name] for name in ("steps", "rows", "decay", "precision")}
        found.setdefault(json.dumps([trial["task"], size, settings], sort_keys=True), []).append(result)
    made = []
    for key, own in found.items():
        task, size, settings = json.loads(key)
        made.append(Section(task=task_of(**task), size=size, settings=settings, entries=entries(own)))
    names = list(TASKS)
    return sorted(made, key=lambda section: (names.index(section.task.name), section.title))


def entries(results: list[Result]) -> dict[str, Entry]:
    """The results of a section by model."""
    found: dict[str, dict[float, list[Result]]] = {}
    models = {}
    for result in results:
        model = model_of(result)
        models[model.label] = model
        found.setdefault(model.label, {}).setdefault(result["trial"]["rate"], []).append(result)
    return {label: Entry(model=models[label], tried=found[label]) for label in sorted(found, key=place)}


def place(label: str) -> tuple[int, str]:
    """Where a model stands in a table: with its preset, variants behind it."""
    preset = label.split(",")[0].split("-")[0]
    return (ORDER.index(preset) if preset in ORDER else len(ORDER), label)
