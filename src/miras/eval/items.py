"""The questions of a task from a local file of JSON lines; a line that does not fit is named by its number."""

from __future__ import annotations

import json
import lzma
import zlib
from pathlib import Path
from typing import Any

from ..data.sources import LINES, opened
from ..types import is_text, require
from .tasks import Item, Task

SUFFIXES = (".jsonl", ".jsonl.xz", ".jsonl.gz")
WORDS = {str: "a text", int: "a whole number", bool: "true or false", list: "a list of texts"}


def items_of(task: Task, folder: Path, limit: int | None = None) -> tuple[Item, ...]:
    """The first ``limit`` questions of a task, or all."""
    require(limit is None or limit >= 1, f"limit must be 1 or more, got {limit}")
    path = file_of(task, folder)
    items: list[Item] = []
    try:
        with opened(path, LINES) as handle:
            for number, line in enumerate(handle, 1):
                if line.strip() and (limit is None or len(items) < limit):
                    items.append(_item(task, line, f"{path}, line {number}"))
    except (UnicodeDecodeError, lzma.LZMAError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    require(bool(items), f"{path} holds no question")
    return tuple(items)


def file_of(task: Task, folder: Path) -> Path:
    """The file of a task in a folder."""
    require(folder.is_dir(), f"no such folder: {folder}")
    found = [folder / f"{task.name}{suffix}" for suffix in SUFFIXES if (folder / f"{task.name}{suffix}").is_file()]
    require(bool(found), f"{folder} holds no {task.name}{SUFFIXES[0]} (or {', '.join(SUFFIXES[1:])})")
    return found[0]


def _item(task: Task, line: str, where: str) -> Item:
    """A line as a question."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    require(isinstance(row, dict), f"{where}: no object, but {line.strip()[:40]!r}")
    for field, kind in task.fields.items():
        has = ", ".join(row)
        require(field in row, f"{where}: no field {field!r}, which {task.name} needs; it has {has}")
        require(_fits(row[field], kind), f"{where}: {field!r} must be {WORDS[kind]}, got {json.dumps(row[field])[:60]}")
    try:
        return task.item(row)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _fits(value: Any, kind: type) -> bool:
    """Whether a value is of a type; true is no whole number, a list holds texts, and a text is one."""
    if kind is list:
        return isinstance(value, list) and bool(value) and all(_fits(part, str) for part in value)
    return is_text(value) if kind is str and isinstance(value, str) else type(value) is kind
