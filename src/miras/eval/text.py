"""Texts as tokens, each token with the number of bytes it stands for.

N tokens of a document
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.sources import OPENERS, Complaints, Files, kind_of
from ..types import require, require_text

# characters tokenised at once: their offsets are Python objects, which take a hundred times the room of the text
PIECE = 1_000_000


class Document(NamedTuple):
    """``tokens`` ``[N]``, and ``widths`` ``[N]``: the bytes of text that each adds; its ``words``, 0 where nobody counted."""

    tokens: Tensor
    widths: Tensor
    words: int = 0


@dataclass(frozen=True, kw_only=True)
class Text:
    """Documents as tokens, to be read one after the other.

    Attributes:
        title: one line for people.
        start: the token that stands before every document: what closes documents in training. It is never scored.
        documents: their tokens.
    """

    title: str
    start: int
    documents: tuple[Document, ...]

    def __post_init__(self) -> None:
        require(self.tokens > 0, f"{self.title} has no text: there is nothing to score")

    @property
    def tokens(self) -> int:
        """Of all documents."""
        return sum(len(document.tokens) for document in self.documents)

    @property
    def bytes(self) -> int:
        """Of all documents."""
        return sum(int(document.widths.sum()) for document in self.documents)

    @property
    def words(self) -> int:
        """Of all documents; 0 where one does not say."""
        each = [document.words for document in self.documents]
        return sum(each) if all(each) else 0


def text_of(texts: str | Iterable[str], tokenizer: Any, title: str = "the text") -> Text:
    """A text, or several documents, by a fast tokenizer of Hugging Face's.

    >>> from miras.hf import byte_tokenizer
    >>> text = text_of(["né", "a"], byte_tokenizer())
    >>> text.documents[0].tokens.tolist(), text.bytes, text.start
    ([110, 195, 169], 4, 258)
    """
    start = tokenizer.bos_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    require(start is not None, "the tokenizer names no end-of-text token, so there is nothing to begin a text with")
    texts = [texts] if isinstance(texts, str) else list(texts)
    for text in texts:
        require_text(text)
    return Text(title=title, start=start, documents=tuple(encoded(text, tokenizer) for text in texts))


def encoded(text: str, tokenizer: Any) -> Document:
    """A document's tokens and their widths."""
    parts = [_encoded(piece, tokenizer) for piece in _pieces(text)]
    tokens, widths = (np.concatenate([part[i] for part in parts] or [np.zeros(0, np.int64)]) for i in (0, 1))
    # counted as lm-eval-harness does, whose perplexity of WikiText is that of words
    words = len(re.split(r"\s+", text))
    return Document(torch.from_numpy(tokens.astype(np.int32)), torch.from_numpy(widths.astype(np.int32)), words)


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces that end with a line, where lines end."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + PIECE) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _encoded(text: str, tokenizer: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids, and the bytes from the end of the token before to the end of each: their sum is that of the text.

    Tokens that share a character share its bytes evenly, and what no token covers counts for the next one.
    """
    backend = tokenizer.backend_tokenizer
    # as a call of the tokenizer sets it: whether "<eos>" in a text is a mark or five characters
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    encoding = backend.encode(text, add_special_tokens=False)
    ids = np.array(encoding.ids, dtype=np.int64)
    if not len(ids):
        return ids, ids
    ends = np.maximum.accumulate(np.array(encoding.offsets, dtype=np.int64)[:, 1])
    ends[-1] = len(text)
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    places, group, shared = np.unique(ends, return_inverse=True, return_counts=True)
    size, many = np.diff(before[places], prepend=0)[group], shared[group]
    rank = np.arange(len(ids)) - (np.cumsum(shared) - shared)[group]
    return ids, size * (rank + 1) // many - size * rank // many


def documents_of(
    path: Path,
    *,
    field: str = "text",
    span: tuple[int, int] | None = None,
    on_bad: Literal["error", "skip"] = "error",
) -> tuple[list[str], list[str]]:
    """The documents of a file or a folder, and what was passed over.

    A line of .jsonl or a row of .parquet is a document; a folder holds .txt, .jsonl and .parquet; any other single file is
    one plain text, unpacked if its name ends in .xz or .gz.

    Args:
        path: the file or folder.
        field: where the text stands in a line or row.
        span: of a plain text, the bytes from the first to before the second, moved on to where characters begin.
        on_bad: whether bad lines and files are an error or are counted.
    """
    require(path.exists(), f"no such file or folder: {path}")
    if path.is_dir() or kind_of(path) in (".jsonl", ".parquet"):
        require(span is None, f"a span of bytes is cut from one plain text, and {path} holds documents")
        complaints = Complaints(on_bad)
        return list(_joined(Files(path, field=field, valid_share=0.5, only="valid"), complaints)), complaints.summary()
    return [plain_text(path, span)], []


def _joined(files: Files, complaints: Complaints) -> Iterator[str]:
    """Whole documents of the pieces of a source."""
    begun: list[str] = []
    for piece in files.pieces(complaints):
        begun.append(piece.text)
        if piece.closes:
            yield "".join(begun)
            begun = []


def plain_text(path: Path, span: tuple[int, int] | None = None) -> str:
    """A UTF-8 text file, or a span of its bytes."""
    opener = OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as handle:
            raw: bytes = handle.read()
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    require(bool(raw), f"{path} is empty")
    if span is not None:
        begin, end = span
        require(0 <= begin < end <= len(raw), f"the span {begin}:{end} does not lie in {path}, which has {len(raw)} bytes")
        raw = raw[_border(raw, begin) : _border(raw, end)]
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


def _border(raw: bytes, place: int) -> int:
    """The first byte from ``place`` on that begins a character."""
    while place < len(raw) and raw[place] & 0xC0 == 0x80:
        place += 1
    return place
