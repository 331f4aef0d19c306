"""Where text comes from: files, folders of them, a dataset of the Hugging Face hub streamed, or the embedded corpus.

A source yields its documents piece by piece, always in the same order, each marked for training or for validation.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from ..types import is_text, require

Split = Literal["train", "valid"]
# characters of one piece of a text file: bounds the memory that a file of any size takes
BLOCK = 4_000_000
OPENERS: dict[str, Callable[..., IO[Any]]] = {".xz": lzma.open, ".gz": gzip.open}
KINDS = (".txt", ".jsonl", ".parquet")
# of JSON lines: a byte order mark in front of them is no part of the first
LINES = "utf-8-sig"


class Piece(NamedTuple):
    """Some text of a document: all of it, or a block of a long one, the last of which ``closes`` it."""

    name: str
    text: str
    split: Split
    closes: bool = True


class Complaints:
    """What was wrong with the data: raised at once, or, with ``on_bad="skip"``, counted and passed over."""

    def __init__(self, on_bad: Literal["error", "skip"]) -> None:
        self.on_bad = on_bad
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def bad(self, kind: str, message: str) -> None:
        """Something that should not be in the data."""
        require(self.on_bad == "skip", f"{message} (--data.on_bad skip counts such {kind} and goes on)")
        self.note(kind, message)

    def note(self, kind: str, message: str) -> None:
        """Something that is passed over in any case, and counted."""
        self.counts[kind] += 1
        self.first.setdefault(kind, message)

    def summary(self) -> list[str]:
        """A line for each kind of complaint."""
        return [f"passed over {count} {kind}; the first: {self.first[kind]}" for kind, count in self.counts.items()]


class Source(ABC):
    """Documents in a fixed order.

    Attributes:
        title: one line for people.
        fingerprint: the same for two sources that hold the same documents; says when shards are stale.
        size: bytes that will be read, None where nobody knows.
    """

    title: str
    fingerprint: str
    size: int | None

    @abstractmethod
    def pieces(self, complaints: Complaints) -> Iterator[Piece]:
        """Every document, in pieces."""


def held_out(name: str, share: float) -> bool:
    """Whether a document is for validation: by a hash of its name, so that the split never depends on anything else."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") < share * 2**64


def split_of(name: str, share: float) -> Split:
    """The split of a document of this name."""
    return "valid" if held_out(name, share) else "train"


class Files(Source):
    """A file or a folder of files: .txt, .jsonl, .parquet, the first two also as .xz or .gz.

    A text file is one document, a line of .jsonl and a row of .parquet another. Documents are split by a hash of their
    name (path inside the folder, and number); a single text file gives its last part for validation.
    """

    def __init__(self, path: Path, *, field: str, valid_share: float, only: Split | None = None) -> None:
        self.field, self.valid_share, self.only = field, valid_share, only
        self.root = path if path.is_dir() else path.parent
        self.files, self.others = listing(path)
        self.single = not path.is_dir() and kind_of(path) == ".txt"
        sizes = {self.name(file): file.stat() for file in self.files}
        self.size = sum(stat.st_size for stat in sizes.values())
        self.title = f"{path} ({len(self.files)} file{'s' if len(self.files) > 1 else ''}, {self.size / 1e6:.1f} MB)"
        known = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in sizes.items()]
        self.fingerprint = json.dumps(["files", known, field, valid_share, only])

    def name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()

    def pieces(self, complaints: Complaints) -> Iterator[Piece]:
        for other in self.others:
            complaints.note("files of other kinds", str(other))
        for file in self.files:
            if file.stat().st_size == 0:
                complaints.bad("empty files", f"{file} is empty")
            elif kind_of(file) == ".txt":
                yield from self.text(file, complaints)
            else:
                rows = json_lines(file, self.field, complaints) if kind_of(file) == ".jsonl" else parquet_rows(file, self.field)
                for number, text in rows:
                    name = f"{self.name(file)}#{number}"
                    if text:
                        yield Piece(name, text, self.only or split_of(name, self.valid_share))
                    else:
                        complaints.note("empty documents", name)

    def text(self, file: Path, complaints: Complaints) -> Iterator[Piece]:
        """The blocks of a text file."""
        name = self.name(file)
        whole = self.only or split_of(name, self.valid_share)
        cut = int(length_of(file) * (1 - self.valid_share)) if self.single and self.only is None else None
        try:
            read, previous = 0, None
            for block in blocks(file):
                if "\0" in block:
                    raise UnicodeError
                for text in (block,) if cut is None or not read < cut < read + len(block) else halves(block, cut - read):
                    split = whole if cut is None else ("train" if read < cut else "valid")
                    if previous is not None:
                        yield previous._replace(closes=split != previous.split)
                    previous = Piece(name, text, split)
                    read += len(text)
            assert previous is not None, "an empty file is refused before"
            yield previous
        except UnicodeError:
            complaints.bad("binary files", f"{file} is not UTF-8 text")


def halves(block: str, middle: int) -> tuple[str, ...]:
    """A block in two, cut after the first line that ends beyond its middle, or there where that is the block's last."""
    place = block.find("\n", middle) + 1
    place = place if 0 < place < len(block) else middle
    return block[:place], block[place:]


def kind_of(path: Path) -> str:
    """The suffix that says how a file is read, its compression aside; empty where it says nothing."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in OPENERS:
        return suffixes[-2] if len(suffixes) > 1 and suffixes[-2] in KINDS[:2] else ""
    return suffixes[-1] if suffixes and suffixes[-1] in KINDS else ""


def listing(path: Path) -> tuple[list[Path], list[Path]]:
    """The files to read, sorted by name, and the others that a folder holds."""
    allowed = ".txt, .jsonl (these two also .xz or .gz) and .parquet"
    if path.is_file():
        require(bool(kind_of(path)), f"cannot read {path}: the kinds of files known are {allowed}")
        return [path], []
    found = sorted((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.as_posix())
    files = [file for file in found if kind_of(file)]
    require(bool(files), f"the folder {path} holds no file to read: the kinds of files known are {allowed}")
    return files, [file for file in found if not kind_of(file)]


def opened(path: Path, encoding: str = "utf-8") -> IO[str]:
    """A text file, unpacked where it is packed, its line ends left as they are."""
    handle: IO[str] = OPENERS.get(path.suffix, open)(path, "rt", encoding=encoding, newline="")
    return handle


def blocks(path: Path) -> Iterator[str]:
    """A text file in blocks of whole lines."""
    try:
        with opened(path) as handle:
            while block := handle.read(BLOCK):
                yield block + handle.readline()
    except (lzma.LZMAError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}") from None


def length_of(path: Path) -> int:
    """The characters of a text file; 0 for one that is no text, which is found out again when it is read."""
    try:
        return sum(map(len, blocks(path)))
    except UnicodeError:
        return 0


def json_lines(path: Path, field: str, complaints: Complaints) -> Iterator[tuple[int, str]]:
    """(line number, text) of every line of a .jsonl file, blank ones aside."""
    number = 0
    try:
        with opened(path, LINES) as handle:
            for number, line in enumerate(handle, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    complaints.bad("lines", f"{path}, line {number}: not JSON ({error})")
                    continue
                if not isinstance(row, dict) or not isinstance(row.get(field), str):
                    has = f"it has {', '.join(row)}" if isinstance(row, dict) else "it is no object"
                    has = f"it is a {type(row[field]).__name__} there" if isinstance(row, dict) and field in row else has
                    complaints.bad("lines", f"{path}, line {number}: no text under {field!r}, {has}; --data.field names it")
                    continue
                if not is_text(row[field]):
                    complaints.bad("lines", f"{path}, line {number}: half a character (a lone surrogate) under {field!r}")
                    continue
                yield number, row[field]
    except UnicodeError:
        complaints.bad("binary files", f"{path} is not UTF-8 text after line {number}")
    except (lzma.LZMAError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked after line {number}: {error}") from None


def parquet_rows(path: Path, field: str) -> Iterator[tuple[int, str]]:
    """(row number, text) of every row of a .parquet file."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from None
    names = table.schema_arrow.names
    require(field in names, f"{path} has no column {field!r}: it has {', '.join(names)}; --data.field names it")
    number = 0
    try:
        for batch in table.iter_batches(batch_size=1024, columns=[field]):
            for text in batch.column(0).to_pylist():
                number += 1
                found = type(text).__name__
                require(text is None or found == "str", f"{path}: the column {field!r} holds no text, row {number} is {found}")
                yield number, text or ""
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        raise ValueError(f"{path} cannot be read after row {number}: {error}") from None


class Hub(Source):
    """A dataset of the Hugging Face hub, streamed, nothing downloaded but what is read."""

    def __init__(self, name: str, *, subset: str | None, split: str, field: str, valid_share: float) -> None:
        self.name, self.subset, self.split, self.field, self.valid_share = name, subset, split, field, valid_share
        self.size = None
        self.title = f"{name}{f' ({subset})' if subset else ''}, split {split}, streamed"
        self.fingerprint = json.dumps(["hub", name, subset, split, field, valid_share])

    def pieces(self, complaints: Complaints) -> Iterator[Piece]:
        for number, row in enumerate(self.rows()):
            text = row.get(self.field)
            if not isinstance(text, str):
                message = f"{self.name}, row {number}: no text under {self.field!r}, it has {', '.join(row)}"
                complaints.bad("rows", f"{message}; --data.field names it")
            elif text:
                yield Piece(str(number), text, split_of(str(number), self.valid_share))
            else:
                complaints.note("empty documents", f"row {number}")

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows as they come; what keeps or breaks the stream, of whatever kind, is one line."""
        from datasets import load_dataset

        read = None
        try:
            rows = load_dataset(self.name, name=self.subset, split=self.split, streaming=True)
            read = 0
            for row in rows:
                yield row
                read += 1
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            if read is None:
                raise ValueError(
                    f"{self.name} is neither a file or folder here nor a dataset that can be opened: {reason}"
                ) from None
            raise OSError(f"the stream of {self.name} broke after {read} rows, nothing of it is kept: {reason}") from None


def source_of(
    path: str | None, *, field: str = "text", valid_share: float = 0.01, subset: str | None = None, split: str = "train"
) -> Source:
    """The source of a path: a file, a folder, a dataset's name, or, where None, the embedded corpus."""
    from .embedded import Embedded

    require(0 < valid_share < 1, f"data.valid_share must lie strictly between 0 and 1, got {valid_share}")
    if path is None:
        return Embedded()
    local = Path(path).expanduser()
    if local.exists():
        return Files(local, field=field, valid_share=valid_share)
    named = path.count("/") == 1 and not path.startswith((".", "/", "~")) and not kind_of(local)
    require(named, f"no such file or folder: {path}")
    return Hub(path, subset=subset, split=split, field=field, valid_share=valid_share)
