"""The page of an experiment: its question, a section a stage, what is still to be run, where the results come from."""

from __future__ import annotations

from pathlib import Path

from ..train.metrics import Line
from . import results
from .evidence import UNITS, all_alike, choice_table, chooses, entries, long_reads, place_table, stage_table, unit_of
from .plan_file import Plan
from .questions import needle_table, zero_shot_table
from .tables import markdown


def stage_of(plan: Plan, picture: Path) -> str:
    """The stage that a picture shows, by its name."""
    return picture.stem.removeprefix(f"{plan.experiment}-").rpartition("-")[0]


def missing(plan: Plan, found: list[Line]) -> list[str]:
    """The runs that are planned and have no result or not all of it, and what is known of them."""
    latest = results.latest(found)
    lines = []
    for run in plan.runs:
        if run.name in latest:
            lines += [f"- `{run.name}`: {latest[run.name]['said']}"] if latest[run.name]["status"] == "unread" else []
            continue
        config = run.config({})
        seconds = results.pace(found, run.model, [config.data.length, config.data.batch])
        devices = ", ".join(dict.fromkeys(row["device"] for row in found if row["model"] == run.model))
        lines.append(f"- `{run.name}`{f': about {seconds * config.steps:.0f} seconds on {devices}' if seconds else ''}")
    return lines


def thrown_off(plan: Plan, found: list[Line], stage: str) -> list[str]:
    """A line a run of a stage that diverged at a rate and has a later result at another, or was thrown off and ended yet."""
    latest = results.latest(found)
    said = []
    for run in plan.of_stage(stage):
        for row in (row for row in found if row["run"] == run.name):
            rate, back = row["options"]["optim.lr"], results.set_back(row)
            if row["status"] == "diverged" and row["key"] != latest[run.name]["key"]:
                said.append(f"`{row['run']}` was thrown off at a rate of {rate:g}, after {row['steps']} steps.")
            elif row["status"] == "finished" and back is not None:
                said.append(
                    f"`{row['run']}` was thrown off at a rate of {rate:g}, though it ended: after {back.tokens / 1e6:.2g} "
                    f"million tokens its loss stood {back.bits:.2f} bits above its best, by gradients of {back.gradient:.2g}."
                )
    return said


def folded(said: str, text: str) -> str:
    """What opens when a reader asks for it."""
    return f"<details><summary>{said}</summary>\n\n{text}\n\n</details>"


ALL = (
    "Every model that was trained on as many tokens and as long sequences as most here, the best first. `stage` is the section "
    "that says what the model is; `far` is the loss at 8 to 16 times the length of training, the last column of the section's "
    "places."
)


def page(plan: Plan, found: list[Line], pictures: list[Path]) -> str:
    """The whole page."""
    folder = f"experiments/{plan.experiment}"
    parts = [
        f"# {plan.experiment.replace('_', ' ').capitalize()}",
        f"Made by `python experiments/report.py {plan.experiment}` from `{folder}/results.jsonl`; do not edit. The runs are "
        f"those of `{folder}/plan.yaml`, the rules those of [experiments](../experiments.md). Where a model has several seeds, "
        "± is half the distance of the two that lie furthest apart.",
        f"The question: {plan.claim}" if plan.claim else "",
    ]
    whole = all_alike(plan, found)
    if whole is not None:
        parts += ["## All of them", ALL, markdown(whole)]
    for stage, why in plan.stages.items():
        own = entries(plan, found, stage)
        if not own:
            continue
        table = choice_table(plan, found, stage) if chooses(plan, stage) else stage_table(plan, own)
        parts += [
            f"## {stage}",
            f"{why[:1].upper()}{why[1:]}{'' if why.endswith(('?', '.', '.)')) else '.'}" if why else "",
            made := markdown(table),
        ]
        parts += ["† the best rate tried lies at the end of those that were."] if "†" in made else []
        parts += thrown_off(plan, found, stage)
        for name in long_reads(own):
            said = f"{UNITS[unit_of(plan)].capitalize()} by place, <code>{name}</code>"
            parts.append(folded(said, markdown(place_table(plan, own, name))))
        for said, asked in (
            ("Questions of the zero-shot sets, answered without any training on them:", zero_shot_table(own)),
            ("Needles, after the same short course for all, by length in tokens:", needle_table(own)),
        ):
            parts += [said, markdown(asked)] if asked is not None else []
        parts += [f"![{picture.stem}]({picture.name})" for picture in pictures if stage_of(plan, picture) == stage]
    left = missing(plan, found)
    listed = folded(f"{len(left)} of {len(plan.runs)} runs", "\n".join(left))
    parts += ["## Not run", listed if left else "Everything that was planned was run."]
    parts += ["## Where", "\n".join(f"- {line}" for line in places(found))]
    return "\n\n".join(part for part in parts if part) + "\n"


def places(found: list[Line]) -> list[str]:
    """Machines, versions and commits of the results."""
    said = []
    for row in found:
        versions, commit = row.get("versions", {}), str(row.get("commit"))
        changed = ", changed since" if commit.endswith("-changed") else ""
        said.append(f"{row.get('device')}, torch {versions.get('torch')}, commit {commit[:12]}{changed}")
    return sorted(set(said))
