"""What the recall experiment leaves behind: a table, a picture, a file of all numbers."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import __version__
from ..algorithm import NonParametric
from ..files import replacing
from .overview import is_deep
from .recall import Outcome, Settings
from .stream import MAGNITUDE
from .tables import Table
from .untrained import GRID, RIDGE, SCALE_POWERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# after Paul Tol's muted scheme, told apart with every common colour blindness; markers tell apart what shares a colour
DEEP = ("#332288", "#117733", "#999933", "#CC6677", "#882255")
SHALLOW = ("#777777", "#88CCEE", "#AA4499", "#DDCC77", "#44AA99", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:g} %"


def seeds_of(settings: Settings) -> str:
    """How many seeds, in words."""
    return "1 seed" if settings.seeds == 1 else f"{settings.seeds} seeds"


def headline(settings: Settings) -> str:
    """What the table shows."""
    return (
        f"Recall of {settings.pairs} random pairs in dimension {settings.dim}: mean cosine to the true value over "
        f"{seeds_of(settings)} (1 perfect, 0 chance),\nwith a share of the values replaced by noise {MAGNITUDE:g} times as "
        f"large; gates tuned at {percent(settings.outliers[settings.middle])}."
    )


def table(outcomes: Mapping[str, Outcome], settings: Settings) -> Table:
    """Mean cosine at each outlier share, and of the newest and the oldest pairs at the middle one."""
    middle = percent(settings.outliers[settings.middle])
    headings = ["model", *(percent(share) for share in settings.outliers), f"newest at {middle}", f"oldest at {middle}"]
    rows = []
    for name, outcome in outcomes.items():
        ages = outcome.levels[settings.middle].by_age
        numbers = [*(level.cosine for level in outcome.levels), ages[0], ages[-1]]
        rows.append([name, *("-" if number is None else f"{number:.2f}" for number in numbers)])
    return Table(headings, {"": rows}, numeric=True)


def most_robust(outcomes: Mapping[str, Outcome]) -> str:
    """The preset that recalls best at the largest outlier share; softmax attention, which keeps every pair, stands aside."""
    fixed = {name: one for name, one in outcomes.items() if not isinstance(one.spec.algorithm, NonParametric)} or outcomes
    return max(fixed, key=lambda name: fixed[name].levels[-1].cosine)


def as_json(outcomes: Mapping[str, Outcome], settings: Settings) -> dict[str, Any]:
    """Every number of the experiment, with what is needed to repeat it."""
    return {
        "miras": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "settings": dataclasses.asdict(settings),
        "outlier_magnitude": MAGNITUDE,
        "tuned_at": settings.outliers[settings.middle],
        "grid": {**GRID, "ridge": [RIDGE], "scale": [settings.dim**power for power in SCALE_POWERS]},
        "ages": settings.ages,
        "presets": {name: of_one(outcome) for name, outcome in outcomes.items()},
    }


def of_one(outcome: Outcome) -> dict[str, Any]:
    """One preset's numbers as plain JSON values."""
    algorithm = outcome.spec.algorithm
    return {
        "spec": outcome.spec.to_dict(),
        "chosen": {"scale": algorithm.scale} if isinstance(algorithm, NonParametric) else outcome.grid,
        "gates": outcome.gates,
        "tuning_cosine": outcome.tuning_cosine,
        "levels": [level._asdict() for level in outcome.levels],
    }


def picture(outcomes: Mapping[str, Outcome], settings: Settings) -> bytes:
    """A PNG of two panels: recall against age, and recall against the share of outliers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.6), dpi=150, layout="constrained")
    by_age, by_share = figure.subplots(1, 2, sharey=True)
    centres = [(first + last) / 2 for first, last in settings.ages]
    shares = [100 * share for share in settings.outliers]
    for (name, outcome), style in zip(outcomes.items(), styles(outcomes), strict=True):
        ages = [math.nan if cosine is None else cosine for cosine in outcome.levels[settings.middle].by_age]
        by_age.plot(centres, ages, label=name, **style)
        by_share.plot(shares, [level.cosine for level in outcome.levels], label=name, **style)
    middle = percent(settings.outliers[settings.middle])
    decorate(by_age, f"New and old pairs, with {middle} of the values replaced by noise", "age of the pair (1 = read last)")
    decorate(by_share, "All pairs that were not replaced", "share of the values replaced by noise (%)")
    by_age.set_xlim(left=0)
    by_share.set_xticks(shares)
    by_age.set_ylabel("recall: mean cosine to the true value\n(1 = perfect, 0 = chance)")
    figure.suptitle(
        f"How well untrained memories recall {settings.pairs} random pairs (dimension {settings.dim}, "
        f"noise {MAGNITUDE:g} times as large as a value, mean of {seeds_of(settings)})"
    )
    handles, labels = by_age.get_legend_handles_labels()
    legend = "solid: deep memory\ndashed: shallow memory"
    figure.legend(handles, labels, loc="outside right center", frameon=False, title=legend, handlelength=3.2)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def styles(outcomes: Mapping[str, Outcome]) -> Iterator[dict[str, Any]]:
    """How the line of each preset looks: solid for a deep memory, dashed for a shallow one."""
    deep, shallow, markers = itertools.cycle(DEEP), itertools.cycle(SHALLOW), itertools.cycle(MARKERS)
    for outcome in outcomes.values():
        shape: dict[str, Any] = {"marker": next(markers), "markersize": 5.5}
        if is_deep(outcome.spec):
            yield {**shape, "color": next(deep), "linestyle": "-", "linewidth": 2.2}
        else:
            yield {**shape, "color": next(shallow), "linestyle": "--", "linewidth": 1.6}


def decorate(axes: Axes, title: str, below: str) -> None:
    """Title, axis label, grid and the line of chance."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(below)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(alpha=0.3)
    axes.set_ylim(top=1.04)
    axes.spines[["top", "right"]].set_visible(False)


def save(outcomes: Mapping[str, Outcome], settings: Settings, folder: Path) -> None:
    """Write ``recall.json`` and ``recall.png``."""
    numbers = json.dumps(as_json(outcomes, settings), indent=2, allow_nan=False)
    for name, content in (("recall.json", f"{numbers}\n".encode()), ("recall.png", picture(outcomes, settings))):
        with replacing(folder / name) as fresh:
            fresh.write_bytes(content)
