"""Tables of what models answered: the zero-shot sets, and needles by length."""

from __future__ import annotations

import statistics

from ..train.metrics import Line
from .evidence import Entry, shown, with_read
from .tables import Table

# metrics that are shares, and are printed in hundredths
SHARES = ("acc", "acc_norm")


def zero_shot_table(own: list[Entry]) -> Table | None:
    """A column for each set and metric; None where nobody was asked."""
    read = with_read(own, "zero-shot")
    if not read:
        return None
    columns = [(task, metric) for task, metrics in read[0][1][0]["tasks"].items() for metric in metrics]
    rows = []
    for entry, found in read:
        cells = []
        for task, metric in columns:
            values = [one["tasks"][task][metric][0] for one in found]
            scale, digits = (100, 1) if metric in SHARES else (1, 0)
            cells.append(shown([scale * value for value in values if value is not None], digits))
        rows.append([entry.name, *cells])
    heads = [f"{task}, {metric}{' %' if metric in SHARES else ''}" for task, metric in columns]
    return Table(["model", *heads], {"": rows}, numeric=True)


def needle_table(own: list[Entry]) -> Table | None:
    """The share of needles found, by task and length, over all depths; None where nobody was asked."""
    read = with_read(own, "needles")
    if not read:
        return None
    kinds = list(dict.fromkeys((cell["task"], cell["length"]) for cell in read[0][1][0]["cells"]))
    rows = [[entry.name, *(shown([100 * mean_of(one, *kind) for one in found], 0) for kind in kinds)] for entry, found in read]
    return Table(["model, % found", *(f"{task}, {length}" for task, length in kinds)], {"": rows}, numeric=True)


def mean_of(read: Line, task: str, length: int) -> float:
    """The share of a task's needles of one length that were found."""
    return statistics.fmean(cell["exact"] for cell in read["cells"] if (cell["task"], cell["length"]) == (task, length))
