"""The embedded corpus: the documentation and the sources of the Python that is running, text that every machine has.

Documents are the help topics of ``pydoc`` (chapters of the language reference, in English) and the modules of the standard
library. What is machine-made, bundled, or often left out by packagers is not taken: tests, encodings' tables, lib2to3, IDLE,
turtle demos, pip's wheels, build files, and the table that the help topics themselves are stored in.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from ..types import require
from .sources import Complaints, Piece, Source, split_of

VALID_SHARE = 1 / 32
LEFT_OUT = frozenset(
    [
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "encodings",
        "lib2to3",
        "idlelib",
        "turtledemo",
        "ensurepip",
        "__pycache__",
        "pydoc_data",
        "lib-dynload",
        "_pyrepl",
        "__phello__",
    ]
)


class Embedded(Source):
    """The running Python's documentation and library; a thirty-second of its documents, by a hash of their name, validates."""

    def __init__(self) -> None:
        self.folder = Path(sysconfig.get_path("stdlib"))
        self.files = sorted(filter(self.taken, self.folder.rglob("*.py")), key=lambda file: file.as_posix())
        require(
            bool(self.files), f"the embedded corpus is Python's own library, and {self.folder} holds none: give --data.path"
        )
        self.size = sum(file.stat().st_size for file in self.files) + sum(len(text) for _, text in topics())
        self.title = f"Python {platform.python_version()}'s documentation and library ({self.size / 1e6:.1f} MB)"
        known = [(self.name(file), file.stat().st_size) for file in self.files]
        digest = hashlib.sha256(json.dumps([platform.python_version(), known]).encode()).hexdigest()
        self.fingerprint = json.dumps(["embedded", digest, VALID_SHARE])

    def name(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()

    def taken(self, file: Path) -> bool:
        """Whether a module belongs to the corpus."""
        parts = file.relative_to(self.folder).parts
        made = parts[0].startswith(("config-", "_sysconfigdata")) or parts[-1].startswith("_sysconfigdata")
        return not made and LEFT_OUT.isdisjoint(parts) and file.stat().st_size > 0

    def pieces(self, complaints: Complaints) -> Iterator[Piece]:
        for name, text in topics():
            yield Piece(name, text, split_of(name, VALID_SHARE))
        for file in self.files:
            try:
                yield Piece(self.name(file), file.read_text(encoding="utf-8"), split_of(self.name(file), VALID_SHARE))
            except UnicodeError:
                # a few modules declare another encoding
                complaints.note("modules that are not UTF-8", str(file))


def topics() -> list[tuple[str, str]]:
    """(name, text) of pydoc's help topics, sorted by name."""
    try:
        from pydoc_data.topics import topics as table
    except ImportError:
        return []
    return [(f"topics/{name}", text) for name, text in sorted(table.items())]
