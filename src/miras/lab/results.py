"""What runs leave behind: one file of JSON lines an experiment, only ever added to, by any number of processes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..train.metrics import Line

# points of a curve
POINTS = 100
# a run whose loss rises so many bits above its best, by gradients so large, was thrown off, even if it ends
RISE, THROWN = 0.3, 10.0
# "slow" ones were left after a few steps, since there was no time for the rest
SETTLED = ("finished", "diverged", "failed")
# "unread" ones are trained, and not all that a plan asks of them was read
TRAINED = ("finished", "unread")


def add(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line, whole, whoever else appends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        # a process that was killed may have left half a line
        handle.seek(0, os.SEEK_END)
        whole = handle.tell() == 0 or path.read_bytes()[-1:] == b"\n"
        handle.write((("" if whole else "\n") + json.dumps(plain(line), allow_nan=False) + "\n").encode())


def plain(value: Any) -> Any:
    """A value as JSON knows it: numbers that are none are null, fractions have seven digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def rows(*paths: Path) -> list[Line]:
    """The lines of some files of results, each once, but for those that were not finished."""
    found: dict[str, Line] = {}
    for path in paths:
        if path.exists():
            known = path.stat()
            found |= parsed(path, known.st_mtime_ns, known.st_size)
    return list(found.values())


@functools.lru_cache(maxsize=32)
def parsed(path: Path, changed: int, size: int) -> dict[str, Line]:
    """The finished lines of a file as it is since it was changed, by their text; not to be changed by whoever gets them."""
    found: dict[str, Line] = {}
    for text in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found[text] = json.loads(text)
    return found


def settled(found: list[Line]) -> dict[str, Line]:
    """The runs that need not be run again, by what they compute: those that ended, well or badly; of two alike the later."""
    return {row["key"]: row for row in found if row["status"] in SETTLED}


def latest(found: list[Line]) -> dict[str, Line]:
    """What became of each run, by name; of two alike the later, but none that is not read whole after one that is."""
    kept: dict[str, Line] = {}
    for row in found:
        begun = row["status"] == "unread" and kept.get(row["run"], {}).get("status") != "finished"
        if row["status"] in SETTLED or begun:
            kept[row["run"]] = row
    return kept


def pace(found: list[Line], model: str, shape: list[int]) -> float | None:
    """Seconds a step of a model, in batches of a shape, at its fastest: where it took longer it had other company."""
    known = [row["seconds_a_step"] for row in found if row["model"] == model and row["shape"] == shape]
    return min((seconds for seconds in known if seconds), default=None)


class SetBack(NamedTuple):
    """Where a loss stood highest above its best so far: by how many bits, after how many tokens, by what gradient."""

    bits: float
    tokens: float
    gradient: float


def set_back(row: Line) -> SetBack | None:
    """Where a run was thrown off, though it may have ended well; None where it never was, or has no curve."""
    gradients = dict(row.get("grad_norm") or ())
    best, largest = math.inf, 0.0
    worst: SetBack | None = None
    for tokens, bits in row.get("curve") or ():
        if bits is None or bits < best:
            best, largest = best if bits is None else bits, 0.0
            continue
        largest = max(largest, gradients.get(tokens) or 0.0)
        if bits - best > RISE and largest > THROWN and (worst is None or bits - best > worst.bits):
            worst = SetBack(bits - best, tokens, largest)
    return worst


def thinned(found: list[Line], key: str) -> list[list[float]]:
    """A curve of at most a hundred points: tokens so far, and the mean of ``key`` over the steps since the point before."""
    known = [line for line in found if line.get(key) is not None]
    size = max(-(-len(known) // POINTS), 1)
    groups = [known[first : first + size] for first in range(0, len(known), size)]
    return [[group[-1]["tokens"], sum(line[key] for line in group) / len(group)] for group in groups]
