"""The texts of the experiments as folders of shards with three splits: made in seconds to minutes from small packed files."""

from __future__ import annotations

import itertools
import json
import lzma
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ..data.corpus import seal
from ..data.shards import Writer, broken, dtype_for
from ..data.tokenizer import Bytes, Tokenizer, tokenizer_of
from ..eval.needles import haystack_of
from ..types import require
from .needle_course import Course, course_of, write

# the standard split of enwik8, in bytes
ENWIK8 = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
# what a processor reads of a split that no model is trained on, and of a book there: with its end two windows of 8192
SHORT, EXCERPT = 2**18, 2**14 - 1
# documents that are tokenised at once, each on a core of its own
TOGETHER = 64


def enwik8(source: Path, folder: Path, sizes: dict[str, int] = ENWIK8, held: int | None = None) -> None:
    """enwik8 or enwik8.xz as bytes: the first 90 MB to train on, 5 to validate, 5 to test; one document each.

    Of the last two the first ``held`` bytes, where that is given, less what is left there of a character.
    """
    content = lzma.decompress(source.read_bytes()) if source.suffix == ".xz" else source.read_bytes()
    require(len(content) == sum(sizes.values()), f"{source} has {len(content):,} bytes instead of {sum(sizes.values()):,}")
    parts: dict[str, Iterable[str]] = {}
    first = 0
    for split, size in sizes.items():
        cut = None if split == "train" else held
        parts[split] = [content[first : first + size][:cut].decode(errors="ignore" if cut else "strict")]
        first += size
    shards(folder, "enwik8", Bytes(), parts)


def books(source: Path, folder: Path, tokenizer: str, files: int, held: int | None = None) -> None:
    """Books, a line each, as tokens: the first ``files`` of the files to train on; no author is in two splits.

    Of the last two splits the middle ``held`` bytes of every book, where that is given. A tokenizer that is a folder is laid
    beside them, as ``gpt2``, for who trains on them.
    """
    train = sorted(source.glob("train-*.jsonl.xz"))[:files]
    require(len(train) == files, f"{source} holds {len(train)} files train-*.jsonl.xz, not {files}")
    parts = {"train": train, "valid": [source / "valid.jsonl.xz"], "test": [source / "test.jsonl.xz"]}
    if Path(tokenizer).is_dir():
        shutil.copytree(tokenizer, folder.with_name("gpt2"), dirs_exist_ok=True)
    opened: dict[str, Iterable[str]] = {split: texts(paths) for split, paths in parts.items()}
    if held is not None:
        opened |= {split: (middle(text, held) for text in opened[split]) for split in ("valid", "test")}
    shards(folder, f"books, {files} files", tokenizer_of(tokenizer), opened)


def wikitext(source: Path, folder: Path, tokenizer: str, held: int | None = None) -> None:
    """WikiText-2 raw, ``wiki.valid.raw`` and ``wiki.test.raw``, a document each, to read alone: nothing is trained on it.

    Of each the middle ``held`` bytes, where that is given.
    """
    parts: dict[str, Iterable[str]] = {}
    for split in ("valid", "test"):
        path = source / f"wiki.{split}.raw"
        require(path.is_file(), f"{source} holds no {path.name}")
        text = path.read_text(encoding="utf-8")
        parts[split] = [text if held is None else middle(text, held)]
    shards(folder, "WikiText-2 raw", tokenizer_of(tokenizer), parts)


def needles(source: Path, folder: Path, tokenizer: str, course: Course) -> None:
    """Needles to learn from and to be asked for, in the prose of books that no model was trained on."""
    if (folder / "course.json").is_file() and course_of(folder) == course:
        print(f"{folder} is there already")
        return
    hay = haystack_of(texts([source / "valid.jsonl.xz"]), "books")
    write(folder, tokenizer_of(tokenizer).hugging_face(), hay, course)
    print(f"needles: {course.steps * course.rows:,} to learn from, {len(course.asked)} lengths to be asked for", flush=True)


def questions(source: Path, folder: Path) -> None:
    """The zero-shot sets, as they are."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    print(f"zero-shot: {', '.join(sorted(path.name.partition('.')[0] for path in folder.iterdir()))}", flush=True)


def texts(paths: list[Path]) -> Iterator[str]:
    """The books of some files."""
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8") as handle:
            for line in handle:
                yield json.loads(line)["text"]


def middle(text: str, size: int) -> str:
    """The middle ``size`` bytes of a text, less what is left there of a character at either end."""
    content = text.encode()
    first = max(0, (len(content) - size) // 2)
    return content[first : first + size].decode(errors="ignore")


def shards(folder: Path, title: str, tokenizer: Tokenizer, parts: Mapping[str, Iterable[str]]) -> None:
    """Write a folder of shards with splits of one's own beside its place, then move it there."""
    if broken(folder) is None:
        print(f"{folder} is there already")
        return
    work = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    dtype, end = dtype_for(tokenizer.vocab_size), np.array([tokenizer.end], dtype=np.int64)
    meta = {}
    for split, documents in parts.items():
        writer, left = Writer(work, split, dtype), iter(documents)
        while group := list(itertools.islice(left, TOGETHER)):
            for text, ids in zip(group, tokenizer.encode(group), strict=True):
                writer.add(ids)
                writer.add(end)
                writer.close_document()
                writer.bytes += len(text.encode())
        meta[split] = writer.finish()
        print(f"{title}, {split}: {writer.tokens:,} tokens of {writer.bytes:,} bytes", flush=True)
    seal(work, title=title, dtype=dtype, splits=meta, warnings=[], tokenizer=tokenizer)
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)
