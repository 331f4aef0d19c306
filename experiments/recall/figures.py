"""The pictures of the laboratory: all tasks at a glance, learning curves, longer and noisier sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from miras.files import write_figure
from miras.lab.summary import ORDER, Section, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# after Paul Tol's muted scheme, told apart with every common colour blindness; markers tell apart what shares a colour
COLOURS = dict(
    zip(ORDER, ("#000000", "#88CCEE", "#DDCC77", "#44AA99", "#AA4499", "#332288", "#CC6677", "#117733", "#882255"), strict=True)
)
MARKERS = dict(zip(ORDER, "oPXs*^Dv<", strict=True))


# the variants of one preset share its colour
SHAPES = "v^<>spdh8"


def styles(found: list[Section]) -> dict[str, dict[str, object]]:
    """How each model's line is drawn: anchored dashed, other variants dotted, each with a shape of its own."""
    labels = sorted({label for section in found for label in section.entries}, key=place)
    variants: dict[str, list[str]] = {}
    for label in labels:
        variants.setdefault(preset_of(label), []).append(label)
    return {label: style(label, own.index(label)) for own in variants.values() for label in own}


def preset_of(label: str) -> str:
    """The preset that a model is a variant of."""
    return label.split(",")[0].split("-")[0]


def style(label: str, number: int) -> dict[str, object]:
    """How the line of a preset's model of a number is drawn."""
    preset = preset_of(label)
    plain, anchored = label == preset, label == f"{preset}-anchored"
    return {
        "color": COLOURS.get(preset, "#777777"),
        "marker": MARKERS.get(preset, ".") if plain else SHAPES[number % len(SHAPES)],
        "markerfacecolor": None if plain else "white",
        "linestyle": "-" if plain else "--" if anchored else ":",
        "linewidth": 1.6,
        "markersize": 5,
    }


def percent(score: float | None) -> float:
    """A score in percent, 0 for one below it or lost."""
    return 100 * max(0.0, score or 0.0)


def overview(found: list[Section]) -> Figure:
    """Models against tasks: the mean score at the best rate, written in each field."""
    from matplotlib.figure import Figure

    labels = sorted({label for section in found for label in section.entries}, key=place)
    figure = Figure(figsize=(2.5 + 1.25 * len(found), 1.6 + 0.4 * len(labels)), layout="constrained", dpi=110)
    axes = figure.subplots()
    scores = [[section.entries[label].score if label in section.entries else None for section in found] for label in labels]
    shown = [[float("nan") if score is None else percent(score) for score in row] for row in scores]
    image = axes.imshow(shown, vmin=0, vmax=100, cmap="viridis", aspect="auto")
    for i, row in enumerate(scores):
        for j, score in enumerate(row):
            if score is not None:
                colour = "white" if percent(score) < 60 else "black"
                axes.text(j, i, f"{percent(score):.0f}", ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(
        range(len(found)), [section.title.replace(": ", ":\n") for section in found], rotation=40, ha="right", fontsize=8
    )
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.set_title("Score at the best rate of the grid, mean over seeds (%)", fontsize=11)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def panels(found: list[Section]) -> tuple[Figure, list[Axes]]:
    """A panel for each section, up to three in a row."""
    from matplotlib.figure import Figure

    across = min(3, len(found))
    down = -(-len(found) // across)
    figure = Figure(figsize=(3.2 + 4.0 * across, 0.9 + 3.2 * down), layout="constrained", dpi=110)
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for one in axes[len(found) :]:
        one.set_visible(False)
    for one, section in zip(axes, found, strict=False):
        one.set_title(section.title, fontsize=10)
        one.set_ylim(-3, 103)
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[: len(found)])


def legend(figure: Figure, axes: list[Axes]) -> None:
    """One legend for all panels."""
    handles = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    labels = sorted(handles, key=place)
    figure.legend([handles[label] for label in labels], labels, loc="outside right center", frameon=False, handlelength=3.2)


def curves(found: list[Section]) -> Figure:
    """The score on held-out sequences while learning, at the best rate with the first seed."""
    figure, axes = panels(found)
    drawn = styles(found)
    for one, section in zip(axes, found, strict=True):
        for label, entry in section.entries.items():
            curve = entry.best[0]["curve"]
            one.plot(
                [check[0] for check in curve],
                [percent(check[3]) for check in curve],
                label=label,
                markevery=max(1, len(curve) // 6),
                **drawn[label],
            )
        one.set_xlabel("steps", fontsize=9)
        one.set_ylabel("score (%)", fontsize=9)
    legend(figure, axes)
    figure.suptitle("Learning, at the best rate; a line ends where the task is solved", fontsize=11)
    return figure


def readings(found: list[Section], title: str) -> Figure:
    """The score at every reading."""
    figure, axes = panels(found)
    drawn = styles(found)
    for one, section in zip(axes, found, strict=True):
        names = ordered(section)
        scores = {label: [percent(entry.reading(name)) for name in names] for label, entry in section.entries.items()}
        for label, own in scores.items():
            one.plot(range(len(names)), own, label=label, **drawn[label])
        # from zero on, models that nearly solve a task would be one line
        lowest = min(map(min, scores.values()))
        if lowest > 60:
            one.set_ylim(lowest - 2, 100.8)
        one.set_xticks(range(len(names)), names, fontsize=8)
        one.set_ylabel("score (%)", fontsize=9)
    legend(figure, axes)
    figure.suptitle(title, fontsize=11)
    return figure


def ordered(section: Section) -> list[str]:
    """The readings as they are drawn: numbers of wrong presentations rise."""
    names = section.readings
    return names if "1x" in names else sorted(names, key=lambda name: (not name[0].isdigit(), name))


def save(figure: Figure, path: Path) -> None:
    """Write a picture as PNG and SVG: the same files from the same numbers."""
    for suffix in (".png", ".svg"):
        write_figure(figure, path.with_suffix(suffix))


def length_sections(found: list[Section]) -> list[Section]:
    """Those that are read at several lengths."""
    return [section for section in found if "16x" in section.readings]


def noise_sections(found: list[Section]) -> list[Section]:
    """Those that are read at several levels of noise."""
    return [section for section in found if "1x" not in section.readings]
