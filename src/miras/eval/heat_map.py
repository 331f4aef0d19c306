"""The picture of a needle test: a square for every length and depth, one panel a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..files import check_target, write_figure
from .needle import Cell

COLOURS = "viridis"


def draw(cells: Sequence[Cell], paths: Sequence[Path], title: str) -> None:
    """Write a heat map of length against depth, in the format that each path's suffix names.

    A square says in how many of a hundred cases the needle was found by greedy decoding, or, where nothing was generated, how
    often its tokens were the likeliest ones.
    """
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(cell.task for cell in cells))
    lengths, depths = sorted({cell.length for cell in cells}), sorted({cell.depth for cell in cells})
    decoded = all(cell.found is not None for cell in cells)
    wide, high = 1.2 + len(tasks) * max(1.8, 0.75 * len(lengths)), 1.5 + max(1.5, 0.42 * len(depths))
    figure = Figure(figsize=(max(wide, 5.0), high), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        values = [[float("nan")] * len(lengths) for _ in depths]
        for cell in cells:
            if cell.task == task:
                share = cell.exact if cell.found is None else cell.found
                values[depths.index(cell.depth)][lengths.index(cell.length)] = 100 * share
        picture = axes.imshow(values, cmap=COLOURS, vmin=0, vmax=100, aspect="auto")
        axes.hlines([row - 0.5 for row in range(1, len(depths))], -0.5, len(lengths) - 0.5, color="white", linewidth=1)
        axes.vlines([column - 0.5 for column in range(1, len(lengths))], -0.5, len(depths) - 0.5, color="white", linewidth=1)
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                if value == value:  # not a missing one
                    axes.text(column, row, f"{value:.0f}", ha="center", va="center", color="black" if value > 60 else "white")
        axes.set_title(task, fontsize=10)
        axes.set_xticks(range(len(lengths)), [length_of(length) for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{100 * depth:g} %" for depth in depths])
        axes.set_xlabel("length, tokens")
    panels[0].set_ylabel("depth of the needle")
    words = "found by greedy decoding, %" if decoded else "answer likeliest token by token, %"
    figure.colorbar(picture, ax=list(panels), label=words)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    for path in paths:
        check_target(path, "cannot write")
        write_figure(figure, path, dpi=130)


def length_of(tokens: int) -> str:
    """A length for an axis.

    >>> length_of(512), length_of(4096), length_of(1500)
    ('512', '4K', '1500')
    """
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)
