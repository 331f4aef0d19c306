"""Files that are whole or not there, and texts that are UTF-8 or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .types import require


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to, which takes its place when the block ends well; otherwise nothing is left of it.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with replacing(Path(folder.name) / "a.txt") as fresh:
    ...     _ = fresh.write_text("whole")
    >>> (Path(folder.name) / "a.txt").read_text()
    'whole'
    >>> folder.cleanup()
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield fresh
        synced(fresh)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def writing_tensors(path: Path) -> Iterator[None]:
    """What keeps safetensors from writing, a full disk above all, as the :class:`OSError` that it is."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error


def write_figure(figure: Any, path: Path, **how: Any) -> None:
    """A figure of matplotlib's in the format that a name ends with: the same file from the same numbers."""
    import matplotlib

    kind = path.suffix[1:]
    with matplotlib.rc_context({"svg.hashsalt": path.stem}), replacing(path) as fresh:
        figure.savefig(fresh, format=kind, metadata={"Date": None} if kind == "svg" else None, **how)


def check_target(path: Path, what: str, reads: Iterable[Path | str | None] = ()) -> None:
    """Find out before the work, not after it, that a place cannot be written to, or is one of those that the work ``reads``.

    A folder that is read keeps all of its files.
    """
    require(path.parent.is_dir(), f"{what} {path}: there is no folder {path.parent}")
    require(not path.is_dir(), f"{what} {path}: it is a folder: name a file")
    if path.exists():
        real = path.resolve()
        for read in (Path(read).resolve() for read in reads if read is not None):
            inside = read.is_dir() and real.is_relative_to(read)
            require(real != read and not inside, f"{what} {path}: it is read from, and would be lost: name another file")


def write_json(path: Path, value: Any) -> None:
    """One value, indented."""
    check_target(path, "cannot write")
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """A line of JSON for each row, taken one at a time."""
    check_target(path, "cannot write")
    with replacing(path) as fresh, fresh.open("w", encoding="utf-8") as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False) + "\n")


def synced(path: Path) -> None:
    """Make sure that a file's bytes, or on POSIX a folder's names, have reached the disk."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def text_of(path: Path) -> str:
    """The text of a file, every character as it is."""
    require(not path.is_dir(), f"{path} is a folder: name a file")
    require(path.is_file(), f"there is no file {path}")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


def size(nbytes: int) -> str:
    """Bytes for people.

    >>> size(2_500_000), size(1234)
    ('2.5 MB', '1.2 kB')
    """
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:,.1f} kB"
