"""The rows of the drift experiment, asked for by what they are, and what counts as close."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from measure import DECAY

Row = dict[str, Any]
# drift of outputs and weights that counts as close
CLOSE = 0.05
# drift next to what was learned that counts as small
SHARE = 0.1


class Results:
    """The rows, to be asked for by what they are."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def where(self, **wanted: Any) -> list[Row]:
        """The rows with these values, in their order."""
        return [row for row in self.rows if all(row[key] == value for key, value in wanted.items())]

    def drift(self, what: str, name: str, keys: str, step: float, chunk: int, decay: float = DECAY) -> float:
        """One number: the median drift of y, W1 or W2."""
        found = self.where(name=name, keys=keys, step=step, chunk=chunk, decay=decay)
        assert len(found) == 1, (name, keys, step, chunk, decay)
        value: float = found[0]["drift"][what]
        return value

    def both(self, name: str, keys: str, step: float, decay: float = DECAY) -> str:
        """The drift of y at the two usual chunk sizes, in words."""
        small, large = (percent(self.drift("y", name, keys, step, chunk, decay)) for chunk in (16, 64))
        return f"{small} % at chunk 16 and {large} % at 64"


def percent(value: float) -> str:
    """A share in percent, two digits of it."""
    return f"{float(f'{100 * value:.2g}'):g}"


def close(row: Row) -> bool:
    """Whether outputs and both weights are within ``CLOSE`` of the exact ones."""
    return max(row["drift"].values()) <= CLOSE


def learned(row: Row) -> bool:
    """Whether the drift of outputs and both weights is at most ``SHARE`` of how far learning moved them."""
    return all(value <= SHARE * row["moved"][what] for what, value in row["drift"].items())


def largest(rows: list[Row], holds: Callable[[Row], bool]) -> int:
    """The largest chunk size up to which something holds; it holds for chunks of 1."""
    found = 1
    for row in sorted(rows, key=lambda row: row["chunk"]):
        if not holds(row):
            break
        found = row["chunk"]
    return found


def wrapped(text: str, bullet: str = "") -> str:
    """A paragraph of generated text, its lines filled again."""
    plain = " ".join(text.split())
    return textwrap.fill(plain, 128, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_on_hyphens=False)
