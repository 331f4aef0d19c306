"""Tokenise a source once: shards in a cache, found again by what went into them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ..files import synced
from ..types import require
from .shards import FORMAT, SHARD, Tokens, Writer, broken, dtype_for
from .sources import Complaints, Piece, Source
from .tokenizer import Tokenizer

# characters tokenised at once: enough for every core, little enough for a laptop
BATCH = 8_000_000


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A tokenised source: its two splits, and what was passed over on the way."""

    folder: Path
    title: str
    train: Tokens
    valid: Tokens
    warnings: tuple[str, ...]


class Bar(Protocol):
    """Something that shows how far the work is."""

    def __call__(self, read: int, tokens: int) -> None:
        """So many bytes of text have become so many tokens."""


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    cache: Path,
    *,
    valid: Source | None = None,
    on_bad: Literal["error", "skip"] = "error",
    max_tokens: int | None = None,
    shard: int = SHARD,
) -> Corpus:
    """The shards of a source, made now or found in the cache.

    The work is done in a folder of its own that takes its name only once it is whole: who is interrupted leaves nothing
    that could be mistaken for a corpus, and of two who work at once one wins.

    Args:
        source: the text.
        tokenizer: what turns it into numbers.
        cache: the folder that holds folders of shards.
        valid: text for validation, in place of the part that the source sets aside.
        on_bad: whether bad lines and files are an error or are counted.
        max_tokens: stop after so many tokens for training.
        shard: tokens of one file.
    """
    parts = [FORMAT, source.fingerprint, valid and valid.fingerprint, tokenizer.fingerprint, on_bad, max_tokens, shard]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
    folder = cache.expanduser() / key
    cache.expanduser().mkdir(parents=True, exist_ok=True)
    if folder.exists() and (reason := broken(folder)):
        print(f"miras: tokenising again, since {folder} is not whole: {reason}", file=sys.stderr)
        shutil.rmtree(folder)
    if not folder.exists():
        build(folder, source, valid, tokenizer, Complaints(on_bad), max_tokens, shard)
    warnings = json.loads((folder / "meta.json").read_text())["warnings"]
    splits = {split: Tokens(folder, split) for split in ("train", "valid")}
    return Corpus(folder=folder, title=source.title, warnings=tuple(warnings), **splits)


def prepared(folder: Path, tokenizer: Tokenizer) -> Corpus:
    """A folder of shards that was made elsewhere, by this very tokenizer."""
    reason = broken(folder)
    require(reason is None, f"the folder of shards {folder} is not whole: {reason}")
    meta = json.loads((folder / "meta.json").read_text())
    known = meta.get("tokenizer")
    require(
        known == tokenizer.fingerprint,
        f"the shards in {folder} were made by another tokenizer ({known}) than {tokenizer.name} ({tokenizer.fingerprint})",
    )
    splits = {split: Tokens(folder, split) for split in ("train", "valid")}
    return Corpus(folder=folder, title=meta["title"], warnings=tuple(meta["warnings"]), **splits)


def is_prepared(path: str | None) -> bool:
    """Whether a path is a folder of shards."""
    return path is not None and (Path(path).expanduser() / "meta.json").is_file()


def build(
    folder: Path,
    source: Source,
    valid: Source | None,
    tokenizer: Tokenizer,
    complaints: Complaints,
    max_tokens: int | None,
    shard: int,
) -> None:
    """Write a folder of shards beside its place, then move it there."""
    mine = f"{folder.name}.partial-{platform.node()}-"
    for left in folder.parent.glob(f"{mine}*"):
        if not running(int(left.name.removeprefix(mine))):
            shutil.rmtree(left, ignore_errors=True)
    work = folder.with_name(f"{mine}{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    dtype = dtype_for(tokenizer.vocab_size)
    writers = {split: Writer(work, split, dtype, shard) for split in ("train", "valid")}
    try:
        with progress(source.size) as bar:
            tokenise(source.pieces(complaints), writers, tokenizer, max_tokens, bar, skip_valid=valid is not None)
            if valid is not None:
                tokenise((piece._replace(split="valid") for piece in valid.pieces(complaints)), writers, tokenizer, None, bar)
        meta = {split: writer.finish() for split, writer in writers.items()}
        check_splits(source, meta)
        seal(work, title=source.title, dtype=dtype, splits=meta, warnings=complaints.summary(), tokenizer=tokenizer)
        try:
            work.rename(folder)
        except OSError:
            # another process was quicker with the same corpus
            if broken(folder) is not None:
                raise
    finally:
        for writer in writers.values():
            writer.close()
        shutil.rmtree(work, ignore_errors=True)


def seal(
    folder: Path, *, title: str, dtype: np.dtype[Any], splits: dict[str, Any], warnings: list[str], tokenizer: Tokenizer
) -> None:
    """Write what makes a folder of shards whole, after everything else."""
    whole = {"format": FORMAT, "title": title, "dtype": dtype.str, "splits": splits, "warnings": warnings}
    (folder / "meta.json").write_text(json.dumps({**whole, "tokenizer": tokenizer.fingerprint}, indent=1))
    for path in folder.iterdir():
        synced(path)


def check_splits(source: Source, meta: dict[str, Any]) -> None:
    """Refuse a corpus of which one split is empty."""
    require(meta["train"]["tokens"] > 0, f"{source.title} gave no text to train on")
    require(
        meta["valid"]["tokens"] > 0,
        f"{source.title} has too few documents to set one aside for validation: give --data.valid_path or a larger "
        "--data.valid_share",
    )


def tokenise(
    pieces: Iterator[Piece],
    writers: dict[str, Writer],
    tokenizer: Tokenizer,
    max_tokens: int | None,
    bar: Bar,
    skip_valid: bool = False,
) -> None:
    """Send every piece through the tokenizer to the writer of its split, many at a time."""
    closing = np.array([tokenizer.end], dtype=np.int64)
    for group in grouped(pieces):
        kept = [piece for piece in group if not (skip_valid and piece.split == "valid")]
        for piece, ids in zip(kept, tokenizer.encode([piece.text for piece in kept]), strict=True):
            writer = writers[piece.split]
            writer.add(ids)
            writer.bytes += len(piece.text.encode())
            if piece.closes:
                writer.add(closing)
                writer.close_document()
            bar(len(piece.text.encode()), len(ids))
        if max_tokens is not None and writers["train"].tokens >= max_tokens:
            break


def grouped(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Pieces in groups of about ``BATCH`` characters."""
    group: list[Piece] = []
    total = 0
    for piece in pieces:
        group.append(piece)
        total += len(piece.text)
        if total >= BATCH:
            yield group
            group, total = [], 0
    if group:
        yield group


@contextmanager
def progress(size: int | None) -> Iterator[Bar]:
    """A bar on a terminal, of bytes where their number is known."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("tokenising"), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=size, said="")
        count = {"tokens": 0}

        def bar(read: int, tokens: int) -> None:
            count["tokens"] += tokens
            shown.update(task, advance=read, said=f"{count['tokens'] / 1e6:.1f}M tokens")

        yield bar


def running(process: int) -> bool:
    """Whether a process of this number runs here."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
