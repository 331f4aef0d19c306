"""Pictures of an experiment: how losses fell, and how they go on beyond the training length."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..eval import heat_map
from ..eval.needle import Cell
from ..files import write_figure
from ..train.metrics import Line
from .evidence import UNITS, Entry, chooses, entries, long_reads, read_of, unit_of
from .plan_file import Plan
from .report import DEEP, MARKERS, SHALLOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEEP_WORDS = ("titans", "moneta", "yaad", "memora", "ttt_mlp", "elastic", "bregman", "value", "f-", "huber", "lp-")
# more lines than that are told apart by nobody
MOST = 16


def pictures(plan: Plan, found: list[Line], folder: Path) -> list[Path]:
    """Draw what there is, as PNG and SVG; the PNGs."""
    drawn = []
    for stage in plan.stages:
        own = entries(plan, found, stage)[:MOST]
        curved = any(len(row.get("valid_curve") or ()) > 1 for one in own for row in one.rows)
        if curved and not chooses(plan, stage):
            drawn.append(curve_picture(plan, stage, own, folder))
        drawn += [place_picture(plan, stage, own, name, folder) for name in long_reads(own)[:1]]
        drawn += [picture for entry in own if (picture := needle_picture(plan, stage, entry, folder)) is not None]
    return drawn


def needle_picture(plan: Plan, stage: str, entry: Entry, folder: Path) -> Path | None:
    """Needles found by length and depth, of an entry's first run; None where none were asked for."""
    read = read_of(entry.rows[0], "needles")
    if read is None:
        return None
    cells = [Cell(**cell, found=None) for cell in read["cells"]]
    name = folder / f"{plan.experiment}-{stage}-needles_{entry.name.replace('-', '_').replace(', ', '_')}"
    heat_map.draw(cells, [name.with_suffix(".png"), name.with_suffix(".svg")], entry.name)
    return name.with_suffix(".png")


def curve_picture(plan: Plan, stage: str, own: list[Entry], folder: Path) -> Path:
    """Validation against tokens."""
    figure, axes = canvas()
    for entry, style in zip(own, styles(own), strict=True):
        for number, row in enumerate(row for row in entry.rows if row.get("valid_curve")):
            tokens, bits = zip(*row["valid_curve"], strict=True)
            label = entry.name if number == 0 else None
            axes.plot([count / 1e6 for count in tokens], bits, label=label, markevery=max(len(bits) // 6, 1), **style)
    decorate(axes, f"{plan.experiment}, {stage}: validation", "million tokens trained on", "bits per byte")
    return saved(figure, folder / f"{plan.experiment}-{stage}-curves")


def place_picture(plan: Plan, stage: str, own: list[Entry], name: str, folder: Path) -> Path:
    """The loss by place in windows many times as long as those of training."""
    figure, axes = canvas()
    unit, trained = unit_of(plan), set()
    for entry, style in zip(own, styles(own), strict=True):
        reads = [read for row in entry.rows if (read := read_of(row, name)) is not None]
        if not reads:
            continue
        trained |= {read["unit"] for read in reads}
        edges = [place["to"] for place in reads[0]["places"]]
        values = [statistics.fmean(read["places"][number][unit] for read in reads) for number in range(len(edges))]
        axes.plot(edges, values, label=entry.name, **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    title = f"{plan.experiment}, {stage}: {name} (dotted: the length of training)"
    decorate(axes, title, "place in the window, up to", UNITS[unit])
    for length in trained:
        axes.axvline(length, color="black", linewidth=0.8, linestyle=":")
    return saved(figure, folder / f"{plan.experiment}-{stage}-places")


def canvas() -> tuple[Any, Axes]:
    """An empty picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    return figure, figure.subplots()


def styles(own: list[Entry]) -> list[dict[str, Any]]:
    """How the line of each entry looks: solid for a deep memory, dashed for the others, open markers for an anchored one."""
    deep, shallow, markers = itertools.cycle(DEEP), itertools.cycle(SHALLOW), itertools.cycle(MARKERS)
    found = []
    for entry in own:
        inside = any(word in entry.name for word in DEEP_WORDS)
        style: dict[str, Any] = {"marker": next(markers), "markersize": 5, "color": next(deep if inside else shallow)}
        style |= {"linestyle": "-", "linewidth": 1.9} if inside else {"linestyle": "--", "linewidth": 1.5}
        found.append(style | ({"markerfacecolor": "white"} if "anchored" in entry.name else {}))
    return found


def decorate(axes: Axes, title: str, below: str, beside: str) -> None:
    """Title, labels, grid, legend; the axis stays where the losses of models that learn lie."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    values = sorted(y for line in axes.get_lines() for y in map(float, line.get_ydata()) if math.isfinite(y))  # type: ignore[arg-type]
    if values and axes.get_legend_handles_labels()[0]:
        low, typical = values[0], values[len(values) // 2]
        high = min(values[-1], typical + 3 * max(typical - low, 0.05 * typical))
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def saved(figure: Any, path: Path) -> Path:
    """The picture in both formats; the PNG's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        write_figure(figure, path.with_name(path.name + suffix))
    return path.with_name(path.name + ".png")
