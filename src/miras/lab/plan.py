"""Plans: files that list many trials, and the trials of them that are still to be done.

A plan is YAML: ``common`` settings, and ``stages`` that each name tasks, models, rates and seeds. A stage is worked off seed by
seed, then rate by rate, task by task, model by model; what a stage repeats of an earlier one is left out.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..types import require
from .contestant import Contestant
from .tasks import task_of
from .trial import Precision, Trial

LISTS = ("tasks", "models", "rates", "seeds")
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


def trials_of(stage: dict[str, Any], precision: Precision) -> Iterable[Trial]:
    """The trials of a stage, in order."""
    unknown = sorted(stage.keys() - {*LISTS, *SIZES, *NUMBERS})
    require(not unknown, f"a stage does not take {', '.join(unknown)}: it takes {', '.join((*LISTS, *SIZES, *NUMBERS))}")
    missing = [name for name in LISTS if not stage.get(name)]
    require(not missing, f"a stage needs {', '.join(missing)}")
    sizes = {name: stage[name] for name in SIZES if name in stage}
    numbers = {name: stage[name] for name in NUMBERS if name in stage}
    for seed, rate, task, model in itertools.product(*(stage[name] for name in ("seeds", "rates", "tasks", "models"))):
        named = {"name": task} if isinstance(task, str) else task
        yield Trial(
            task=task_of(**named),
            model=contestant_of(model, **sizes),
            seed=seed,
            # YAML takes 2e-3 for a word
            rate=float(rate),
            precision=precision,
            **numbers,
        )


def read_plan(path: Path, precision: Precision) -> list[Trial]:
    """The trials of a plan, each once."""
    import yaml

    plan = yaml.safe_load(path.read_text())
    require(isinstance(plan, dict) and "stages" in plan, f"{path} is not a plan: it has no stages")
    unknown = sorted(plan.keys() - {"common", "stages"})
    require(not unknown, f"{path} has {', '.join(unknown)}: a plan has common and stages")
    common = plan.get("common") or {}
    trials = (trial for stage in plan["stages"] for trial in trials_of({**common, **stage}, precision))
    return list({identity(trial.to_dict()): trial for trial in trials}.values())


def identity(trial: dict[str, Any]) -> str:
    """What makes two trials the same: all their settings."""
    return json.dumps(trial, sort_keys=True)


def read_results(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The lines of all files that exist."""
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines() if line.strip()]


def predicted(trial: Trial, results: Iterable[dict[str, Any]], device: str) -> float | None:
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
