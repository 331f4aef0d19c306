"""Files that are whole or not there: written under another name, then given their own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..types import require


def check_target(path: Path) -> None:
    """A place that cannot be written to is found out before the work, not after it."""
    require(path.parent.is_dir(), f"cannot write {path}: there is no folder {path.parent}")
    require(not path.is_dir(), f"cannot write {path}: it is a folder")


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a file in a folder of its own beside ``path``, then move it there."""
    check_target(path)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as temporary:
        begun = Path(temporary) / path.name
        write(begun)
        os.replace(begun, path)


def write_json(path: Path, value: Any) -> None:
    """One value, indented."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, lambda begun: _text(begun, text))


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """A line of JSON for each row, taken one at a time."""

    def write(begun: Path) -> None:
        with begun.open("w", encoding="utf-8") as handle:
            for row in rows:
                handle.write(json.dumps(row, ensure_ascii=False) + "\n")

    write_whole(path, write)


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
