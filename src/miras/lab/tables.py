"""A table in the three ways the command line shows one: drawn on a terminal, aligned in a pipe, Markdown."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from typing import NamedTuple

# a column of formulas narrower than this is better read below its row
FORMULA_WIDTH = 34


class Table(NamedTuple):
    """Headings, and rows in named groups (the name is empty where there is only one).

    ``numeric`` aligns all columns but the first to the right; ``code`` says that the last column holds formulas.
    """

    headings: list[str]
    groups: dict[str, list[list[str]]]
    numeric: bool = False
    code: bool = False


def show(table: Table) -> None:
    """Print a table: drawn where a terminal and rich are there to draw it, else aligned; never cut off."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        print(aligned(table))
    elif table.code and shutil.get_terminal_size().columns < sum(widths(table)[:-1]) + 3 * len(table.headings) + FORMULA_WIDTH:
        print(stacked(table))
    else:
        draw(table)


def widths(table: Table) -> list[int]:
    """How wide each column would like to be."""
    rows = [row for group in table.groups.values() for row in group]
    return [max(map(len, column)) for column in zip(table.headings, *rows, strict=True)]


def draw(table: Table) -> None:
    """Print a table with rich, folded into the width of the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(table.headings):
        last, number = i == len(table.headings) - 1, table.numeric and i > 0
        drawn.add_column(
            heading,
            style="bold" if i == 0 else "",
            justify="right" if number else "left",
            overflow="fold",
            # beside formulas, which fold, every other cell stays whole
            no_wrap=number or (table.code and not last),
        )
    for name, rows in table.groups.items():
        if name:
            drawn.add_section()
            drawn.add_row(Text(name, style="italic"))
        for row in rows:
            drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def stacked(table: Table) -> str:
    """The table for a narrow terminal: a line of all cells but the last, which stands below them."""
    lines = []
    for name, group in table.groups.items():
        lines += [name, *(f"  {row[0]}: {', '.join(row[1:-1])}\n      {row[-1]}" for row in group)]
    return "\n".join(lines)


def aligned(table: Table) -> str:
    """The table as lines of plain text, as wide as it takes."""
    columns = widths(table)

    def line(cells: list[str]) -> str:
        padded = [
            cell.rjust(width) if table.numeric and i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, columns, strict=True))
        ]
        return "  ".join(padded).rstrip()

    lines = [line(table.headings), line(["-" * width for width in columns])]
    for name, group in table.groups.items():
        lines += [*([f"\n{name}"] if name else []), *map(line, group)]
    return "\n".join(lines)


def markdown(table: Table) -> str:
    """The table in Markdown; groups become bold rows, formulas code."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    blank = [""] * (len(table.headings) - 1)
    lines = [line(table.headings), line(["---"] * len(table.headings))]
    for name, group in table.groups.items():
        rows = [[*row[:-1], f"`{row[-1]}`"] for row in group] if table.code else group
        lines += [*([line([f"**{name}**", *blank])] if name else []), *map(line, rows)]
    return "\n".join(lines)
