"""Perplexity and bits per byte of a model on a text: in windows that slide, or streamed with the memory carried along.

loss = sum_t -log p(x_t | what came before),   nats a token = loss / tokens,
perplexity = exp(loss / tokens),               bits per byte = loss / (bytes ln 2),
word perplexity = exp(loss / words)
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .modes import Mode, Scored, Sliding
from .scoring import Progress, check_tokens, reading, unwrapped
from .text import Text, text_of
from .windows import edges_of, segments

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The sum of -log p over some tokens, and what it is a token and a byte."""

    nats: float
    tokens: int
    bytes: int

    @property
    def nats_per_token(self) -> float:
        """-log p, the mean over tokens."""
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp of the mean; infinite where that is too large for a float."""
        try:
            return math.exp(self.nats_per_token)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """-log2 p of the text, divided by its bytes."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not finite as null."""
        means = {name: getattr(self, name) for name in ("nats_per_token", "perplexity", "bits_per_byte")}
        counted = {"nats": self.nats, "tokens": self.tokens, "bytes": self.bytes}
        found = counted | means
        return {key: value if math.isfinite(value) else None for key, value in found.items()}


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The loss of tokens that stand at positions ``begin`` to ``end - 1``."""

    begin: int
    end: int
    loss: Loss


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """What a model makes of a text.

    Attributes:
        title: of the text.
        mode: how it was read.
        loss: of the whole text.
        buckets: the same by position: in its window, or, streamed, from the start of its part of the text.
        seconds: that it took.
        words: of the text, between white space; 0 where they were not counted.
    """

    title: str
    mode: Mode
    loss: Loss
    buckets: tuple[Bucket, ...]
    seconds: float
    words: int = 0

    @property
    def word_perplexity(self) -> float:
        """exp of -log p of the text divided by its words, which is that of lm-eval-harness and the same for any tokenizer."""
        try:
            return math.exp(self.loss.nats / self.words) if self.words else math.nan
        except OverflowError:
            return math.inf

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        table = [{"begin": bucket.begin, "end": bucket.end, **bucket.loss.to_dict()} for bucket in self.buckets]
        word = self.word_perplexity if math.isfinite(self.word_perplexity) else None
        whole = {**self.loss.to_dict(), "words": self.words, "word_perplexity": word}
        return {"title": self.title, **self.mode.to_dict(), **whole, "buckets": table, "seconds": self.seconds}


def perplexity(
    model: MirasForCausalLM,
    tokenizer: Any,
    text: str | Sequence[str] | Text,
    *,
    mode: Mode = Sliding(),  # noqa: B008 (frozen)
    separate: bool = False,
    buckets: int | Sequence[int] | None = None,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """The loss of a text, every token of it scored once.

    Args:
        model: what reads.
        tokenizer: a fast one of Hugging Face's, that of the model.
        text: one text, several documents, or a :class:`Text`, which is tokenised already.
        mode: windows that slide, or one pass with the memory carried over all of it.
        separate: whether each document starts from fresh memories; else the start token alone stands between them.
        buckets: positions to tell the loss by: a width, or edges. See :func:`miras.eval.windows.edges_of`.
        autocast: such as ``torch.bfloat16``; the weights keep their dtype.
        progress: called with the number of tokens read and of all.
    """
    model = unwrapped(model)
    text = text if isinstance(text, Text) else text_of(text, tokenizer)
    pieces = segments(text, separate)
    for piece in pieces:
        check_tokens(piece.tokens, model)
    edges = edges_of(buckets, mode.limit(pieces), mode.first_bucket())
    tally, done, total = Tally(edges), 0, sum(len(piece.tokens) - 1 for piece in pieces)
    began = time.monotonic()
    with reading(model, autocast):
        for scored in mode.calls(model, pieces):
            tally.add(scored)
            done += scored.done
            if progress is not None:
                progress(done, total)
    return Perplexity(
        title=text.title,
        mode=mode,
        loss=tally.total(),
        buckets=tally.buckets(),
        seconds=time.monotonic() - began,
        words=text.words,
    )


class Tally:
    """Sums of nats, tokens and bytes by bucket, in float64."""

    def __init__(self, edges: Sequence[int]) -> None:
        self.edges = tuple(edges)
        count = len(self.edges) - 1
        self.nats = torch.zeros(count, dtype=torch.float64)
        self.tokens, self.bytes = (torch.zeros(count, dtype=torch.long) for _ in range(2))

    def add(self, scored: Scored) -> None:
        """Add what a call scored."""
        where = torch.bucketize(scored.positions, torch.tensor(self.edges[1:-1], dtype=torch.long), right=True)
        self.nats.index_add_(0, where, scored.nats)
        self.tokens.index_add_(0, where, torch.ones_like(where))
        self.bytes.index_add_(0, where, scored.widths.long())

    def total(self) -> Loss:
        """Over all buckets."""
        return Loss(nats=float(self.nats.sum()), tokens=int(self.tokens.sum()), bytes=int(self.bytes.sum()))

    def buckets(self) -> tuple[Bucket, ...]:
        """Those that hold a token."""
        rows = zip(self.edges[:-1], self.edges[1:], self.nats, self.tokens, self.bytes, strict=True)
        return tuple(
            Bucket(begin=begin, end=end, loss=Loss(nats=float(nats), tokens=int(tokens), bytes=int(width)))
            for begin, end, nats, tokens, width in rows
            if int(tokens)
        )
