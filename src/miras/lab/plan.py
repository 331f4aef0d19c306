"""Plans: files that list many trials, and the trials of them that are still to be done.

A plan is YAML: ``common`` settings, and ``stages`` that each name tasks, models, rates and seeds. A stage is worked off seed by
seed, then rate by rate, task by task, model by model; what a stage repeats of an earlier one is left out. With ``rates: best``
and ``grid: [...]`` a stage takes, for each task and model, the rate of the grid that did best with ``grid_seed`` (0), once the
results of the whole grid are there.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..types import require
from .contestant import Contestant
from .tasks import task_of
from .trial import Precision, Trial

Result: TypeAlias = dict[str, Any]
LISTS = ("tasks", "models", "rates", "seeds")
GRID = ("grid", "grid_seed")
SIZES = ("width", "depth", "heads", "spread")
NUMBERS = ("steps", "rows", "decay", "check")


def contestant_of(model: str | dict[str, Any], **sizes: Any) -> Contestant:
    """A model from its name, or from a mapping of its name and what is changed."""
    given = {"name": model} if isinstance(model, str) else dict(model)
    known = {field.name for field in dataclasses.fields(Contestant)}
    unknown = sorted(given.keys() - known)
    require(not unknown, f"a model does not take {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    require("name" in given, f"a model needs a name, got {given}")
    return Contestant(**{**sizes, **given})


def trials_of(stage: dict[str, Any], precision: Precision, results: Sequence[Result]) -> Iterable[Trial]:
    """The trials of a stage, in order; those whose rate is not known yet are left out."""
    allowed = (*LISTS, *GRID, *SIZES, *NUMBERS)
    unknown = sorted(stage.keys() - set(allowed))
    require(not unknown, f"a stage does not take {', '.join(unknown)}: it takes {', '.join(allowed)}")
    missing = [name for name in LISTS if not stage.get(name)]
    require(not missing, f"a stage needs {', '.join(missing)}")
    best = stage["rates"] == "best"
    require(not best or bool(stage.get("grid")), "a stage with the best rates needs the grid they are chosen from")
    sizes = {name: stage[name] for name in SIZES if name in stage}
    numbers = {name: stage[name] for name in NUMBERS if name in stage}
    # YAML takes 2e-3 for a word
    grid = [float(rate) for rate in (stage["grid"] if best else stage["rates"])]
    for seed, rate, task, model in itertools.product(stage["seeds"], [None] if best else grid, stage["tasks"], stage["models"]):
        trial = Trial(
            task=task_of(**({"name": task} if isinstance(task, str) else task)),
            model=contestant_of(model, **sizes),
            seed=seed,
            rate=rate or grid[0],
            precision=precision,
            **numbers,
        )
        chosen = best_rate(dataclasses.replace(trial, seed=stage.get("grid_seed", 0)), grid, results) if best else rate
        if chosen is not None:
            yield dataclasses.replace(trial, rate=chosen)


def standing(result: Result) -> tuple[float, float]:
    """How well a trial did on the sequences of its checks: solved early before solved late before not solved."""
    solved = result["solved_at"]
    score = result["curve"][-1][3]
    return (2.0, -solved) if solved else (-math.inf if score is None else score, 0.0)


def best_rate(trial: Trial, grid: Sequence[float], results: Sequence[Result]) -> float | None:
    """The rate of the grid at which a trial did best; None where a result is missing."""
    known = {identity(result["trial"]): result for result in results}
    names = {rate: identity(dataclasses.replace(trial, rate=rate).to_dict()) for rate in grid}
    if any(name not in known for name in names.values()):
        return None
    return max(grid, key=lambda rate: standing(known[names[rate]]))


def read_plan(path: Path, precision: Precision, results: Sequence[Result] = ()) -> list[Trial]:
    """The trials of a plan, each once, as far as the results so far say which they are."""
    import yaml

    plan = yaml.safe_load(path.read_text())
    require(isinstance(plan, dict) and "stages" in plan, f"{path} is not a plan: it has no stages")
    unknown = sorted(plan.keys() - {"common", "stages"})
    require(not unknown, f"{path} has {', '.join(unknown)}: a plan has common and stages")
    common = plan.get("common") or {}
    trials = (trial for stage in plan["stages"] for trial in trials_of({**common, **stage}, precision, results))
    return list({identity(trial.to_dict()): trial for trial in trials}.values())


def identity(trial: dict[str, Any]) -> str:
    """What makes two trials the same: all settings that were made, 2 like 2.0. None was not, nor what older results lack."""

    def made(settings: Any) -> Any:
        if not isinstance(settings, dict):
            return int(settings) if isinstance(settings, float) and settings.is_integer() else settings
        return {name: made(value) for name, value in settings.items() if value is not None}

    return json.dumps(made(trial), sort_keys=True)


def predicted(trial: Trial, results: Iterable[Result], device: str) -> float | None:
    """The seconds a trial will take at most, from the slowest trial of its kind on such a device; None where there is none."""
    wanted = trial.to_dict()
    each = [
        result["seconds_a_step"]
        for result in results
        if result["device"] == device
        and result["trial"]["task"] == wanted["task"]
        and result["trial"]["model"]["name"] == wanted["model"]["name"]
        and result["trial"]["rows"] == trial.rows
    ]
    return max(each) * trial.steps if each else None
