"""Experiments as files: a plan names models and stages, and unfolds into runs of ``miras train``, the most important first.

experiment: enwik8
data: enwik8                       # a folder of shards
common: {model: {...}, optim: {...}}   # options of every run
models:
  yaad: {model: {name: yaad-30m}}
  yaad-1.5: {rate_of: yaad, model: {...}}   # its learning rate is the one found for yaad
stages:
  - name: grid
    tokens: 15e6
    variants: {low: {optim: {lr: 7e-4}}, high: {optim: {lr: 3e-3}}}
  - name: main
    tokens: 150e6
    rate: grid                     # the best of the stage grid, of other-experiment/grid, or of several: [grid, edges]
    seeds: [0, 1]
    reads: [valid/sliding, test/sliding, test/long/16x]
tiny: {...}                        # options for a rehearsal
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..train.config import TrainConfig
from ..train.options import assembled, converted, nearest, options_of, read
from ..types import require

Options = dict[str, Any]
KNOWN = options_of(TrainConfig)
STAGE_KEYS = {"name", "why", "models", "variants", "tokens", "seeds", "rate", "reads", "keep"}
QUESTIONS = ("zero-shot", "needles")
PLAN_KEYS = {"experiment", "claim", "data", "common", "models", "stages", "tiny"}
# where something is read, kept or written, and how it is computed, is no part of what a run is
FREE = ("data.path", "data.cache", "data.workers", "engine.", "save.", "log.", "run.folder", "run.seconds", "run.finish")


@dataclass(frozen=True, kw_only=True)
class Read:
    """One thing that is asked of a finished model.

    ``valid/sliding``, ``test/long/16x``, ``test/long/65536``: how well it predicts a split of the plan's text, and
    ``wikitext2:test/sliding`` of another; ``zero-shot`` and ``needles``: questions from the folders of those names.
    """

    kind: str
    split: str = ""
    length: str = "1x"
    data: str = ""

    @classmethod
    def of(cls, text: str) -> Read:
        """From its name in a plan."""
        if text in QUESTIONS:
            return cls(kind=text)
        data, _, own = text.rpartition(":")
        split, _, rest = own.partition("/")
        kind, _, length = rest.partition("/")
        known = split in ("valid", "test") and kind in ("sliding", "long") and (length or "1x").removesuffix("x").isdigit()
        require(
            known,
            f"a read is {', '.join(QUESTIONS)}, or [TEXT:]SPLIT/sliding or [TEXT:]SPLIT/long, and /TOKENS or /16x (times the "
            f"training length), got {text!r}",
        )
        return cls(kind=kind, split=split, length=length or "1x", data=data)

    def tokens(self, trained: int) -> int:
        """The length of its windows, for a model that was trained at a length."""
        return int(self.length[:-1]) * trained if self.length.endswith("x") else int(self.length)

    def __str__(self) -> str:
        if self.kind in QUESTIONS:
            return self.kind
        return f"{self.data}{':' if self.data else ''}{self.split}/{self.kind}/{self.length}"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: its place in the plan, its options, the stages that choose its learning rate, what is read after it."""

    experiment: str
    stage: str
    model: str
    variant: str
    seed: int
    options: Options
    rate: tuple[str, ...] = ()
    rate_of: str = ""
    reads: tuple[Read, ...] = ()
    keep: bool = False

    @property
    def name(self) -> str:
        """The name of the run, good for a folder too."""
        parts = (self.stage, self.model, self.variant, f"s{self.seed}")
        return "-".join(part for part in parts if part)

    def with_rate(self, rate: float) -> Run:
        """The run at a learning rate that was found elsewhere."""
        return replace(self, options={**self.options, "optim.lr": rate}, rate=())

    def config(self, more: Options) -> TrainConfig:
        """The configuration of its training, with options that say where and how."""
        return assembled(TrainConfig, {**self.options, **more})

    @property
    def key(self) -> str:
        """The same for two runs of one name that compute the same."""
        counted = {name: value for name, value in sorted(self.options.items()) if not name.startswith(FREE)}
        return hashlib.sha256(json.dumps([self.experiment, self.name, counted], default=list).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An experiment: what it is for, its data, its runs in order."""

    experiment: str
    claim: str
    data: str
    runs: tuple[Run, ...]
    folder: Path
    stages: dict[str, str] = field(default_factory=dict)
    tiny: bool = False

    def of_stage(self, stage: str) -> list[Run]:
        """The runs of one stage."""
        return [run for run in self.runs if run.stage == stage]


def load(folder: Path, *, tiny: bool = False) -> Plan:
    """The plan of an experiment's folder, checked; ``tiny`` for a rehearsal with its smallest options."""
    path = folder / "plan.yaml"
    require(path.is_file(), f"{folder} holds no plan.yaml: an experiment is a folder with one")
    content = read(path)
    check_keys(content, PLAN_KEYS, f"{path}")
    for needed in ("experiment", "data", "models", "stages"):
        require(needed in content, f"{path}: a plan needs {needed}")
    common = flattened(content.get("common", {}), f"{path}: common")
    small = flattened(content.get("tiny", {}), f"{path}: tiny") if tiny else {}
    models = {name: model_of(entry, f"{path}: {name}") for name, entry in content["models"].items()}
    runs = [run for stage in content["stages"] for run in of_stage(content["experiment"], stage, common, models, small, path)]
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"{path}: {', '.join(twice)} is planned twice")
    return Plan(
        experiment=content["experiment"],
        claim=" ".join(content.get("claim", "").split()),
        data=content["data"],
        runs=tuple(runs),
        folder=folder,
        stages=reasons(content["stages"]),
        tiny=tiny,
    )


def reasons(stages: list[Options]) -> dict[str, str]:
    """Why there is each stage; one that goes on with another later, with more seeds say, has its name and no reason."""
    found: dict[str, str] = {}
    for stage in stages:
        why = " ".join(stage.get("why", "").split())
        found[stage["name"]] = found.get(stage["name"]) or why
    return found


def of_stage(
    experiment: str, stage: Options, common: Options, models: Mapping[str, tuple[str, Options]], small: Options, path: Path
) -> Iterator[Run]:
    """The runs of one stage: seeds outermost, so that every model has one run before any has two."""
    where = f"{path}: stage {stage.get('name')}"
    check_keys(stage, STAGE_KEYS, where)
    named = isinstance(stage.get("name"), str) and stage["name"] != ""
    require(named, f"{where}: a stage needs a name that is text; YAML takes off, no and numbers for something else: quote them")
    chosen = stage.get("models", list(models))
    unknown = [name for name in chosen if name not in models]
    require(not unknown, f"{where}: no model {', '.join(unknown)}, there are {', '.join(models)}")
    variants = {str(name): flattened(entry, f"{where}: {name}") for name, entry in stage.get("variants", {"": {}}).items()}
    tokens = flattened({"optim": {"tokens": stage["tokens"]}}, where) if "tokens" in stage else {}
    rate = stage.get("rate", [])
    rates = (rate,) if isinstance(rate, str) else tuple(rate)
    for seed in stage.get("seeds", [0]):
        for name in chosen:
            rate_of, own = models[name]
            for variant, extra in variants.items():
                options = {**common, **tokens, **own, **extra, "run.seed": seed, **small}
                yield Run(
                    experiment=experiment,
                    stage=stage["name"],
                    model=name,
                    variant=variant,
                    seed=seed,
                    options=options,
                    rate=rates,
                    rate_of=rate_of or name,
                    reads=tuple(Read.of(text) for text in stage.get("reads", ())),
                    keep=stage.get("keep", False),
                )


def model_of(entry: Options, where: str) -> tuple[str, Options]:
    """A model of a plan: the one whose learning rate it takes, or nothing for its own, and its options."""
    entry = dict(entry)
    return entry.pop("rate_of", ""), flattened(entry, where)


def flattened(sections: Options, where: str) -> Options:
    """``section.key`` -> value, checked against what ``miras train`` takes; a Spec may be written as a table."""
    found: Options = {}
    for section, inner in sections.items():
        require(isinstance(inner, dict), f"{where}: {section} is not a table of options")
        for key, value in inner.items():
            name = f"{section}.{key}"
            # looking for what is near takes longer than all the rest of a plan
            if name not in KNOWN:
                raise ValueError(f"{where}: no option {name}{nearest(name, list(KNOWN))}")
            if name == "model.spec" and isinstance(value, dict):
                value = json.dumps(value)
            found[name] = converted(value, KNOWN[name][0], f"{where}: {name}")
    return found


def check_keys(content: Any, known: set[str], where: str) -> None:
    """Refuse what a plan does not know."""
    require(isinstance(content, dict), f"{where} is not a table")
    for key in content:
        require(
            key in known, f"{where}: no key {key!r}{nearest(str(key), sorted(known))}, there are {', '.join(sorted(known))}"
        )
