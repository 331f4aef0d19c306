"""Metrics on disk: a line of JSON for every step and every validation; ``step`` counts the steps taken so far."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..files import replacing

Line = dict[str, Any]


class Metrics:
    """A file of lines that is only ever added to, except when a run goes back to a checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cut(self, step: int) -> None:
        """Forget what came after ``step`` steps, which will be taken again, and a last line that a crash cut off."""
        kept = [line for line in lines(self.path) if line["step"] <= step]
        with replacing(self.path) as fresh:
            fresh.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def add(self, line: Line) -> None:
        """Append a line; numbers that are none, which JSON has no word for, as null."""
        known = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()}
        with self.path.open("a") as handle:
            handle.write(json.dumps(known) + "\n")


def lines(path: Path) -> list[Line]:
    """The lines of a file of metrics, but for one that was not finished; a :class:`ValueError` where whole ones follow it."""
    if not path.exists():
        return []
    found: list[Line] = []
    broken: int | None = None
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        line = _parsed(text)
        if line is None:
            broken = broken or number
        elif broken is None:
            found.append(line)
        else:
            raise ValueError(f"{path} is damaged in line {broken}, with whole lines after it: mend that line or remove it")
    return found


def _parsed(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    return line if isinstance(line, dict) and "step" in line else None
