"""How a text is cut for a model: windows that slide, or parts that are streamed; and the positions losses are told by.

N tokens of a segment, W buckets
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import require
from .text import Text

# buckets that a window is divided into where nothing is said
PARTS = 8


class Segment(NamedTuple):
    """Tokens ``[N]`` that are read without a break, their widths, and which of them are scored; never the first.

    ``document`` says that it is one to be left whole.
    """

    tokens: Tensor
    widths: Tensor
    scored: Tensor
    document: bool = False


class Window(NamedTuple):
    """Tokens ``begin`` to ``end - 1`` of a segment are read; of those that follow each, all but the first ``skip`` count."""

    begin: int
    end: int
    skip: int


def segments(text: Text, separate: bool) -> list[Segment]:
    """The documents of a text in one segment, the start token before each of them, or each in a segment of its own."""
    start = torch.tensor([text.start], dtype=torch.int32)
    nothing, never = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.bool)
    parts = [
        Segment(
            torch.cat([start, document.tokens]),
            torch.cat([nothing, document.widths]),
            torch.cat([never, torch.ones(len(document.tokens), dtype=torch.bool)]),
        )
        for document in text.documents
        if len(document.tokens)
    ]
    if separate:
        return [part._replace(document=True) for part in parts]
    tokens, widths, scored = (torch.cat(columns) for columns in zip(*(part[:3] for part in parts), strict=True))
    return [Segment(tokens, widths, scored)]


def windows(targets: int, context: int, stride: int) -> Iterator[Window]:
    """Windows over ``targets + 1`` tokens that score each but the first once, with ``context - stride`` before it or more.

    >>> list(windows(10, 6, 2))
    [Window(begin=0, end=6, skip=0), Window(begin=2, end=8, skip=4), Window(begin=4, end=10, skip=4)]
    """
    done = 0
    for begin in range(0, targets, stride):
        end = min(begin + context, targets)
        if done < end:
            yield Window(begin, end, done - begin)
        done = end


def divided(segment: Segment, rows: int) -> list[Segment]:
    """A segment in equal parts that share their borders: the last token of one is the first, unscored, of the next."""
    targets = len(segment.tokens) - 1
    cuts = sorted({targets * row // rows for row in range(rows + 1)})
    own = [slice(begin, end + 1) for begin, end in itertools.pairwise(cuts)]
    parts = [Segment(segment.tokens[cut], segment.widths[cut], segment.scored[cut].clone()) for cut in own]
    for part in parts:
        part.scored[0] = False
    return parts


def edges_of(buckets: int | Sequence[int] | None, limit: int, doubling: int | None) -> tuple[int, ...]:
    """The edges of buckets of positions, from 0 to ``limit`` positions.

    Args:
        buckets: a width, or the edges themselves; None takes eight parts of ``limit``, or, where ``doubling`` is given, buckets
            that begin with that width and end twice as far each time.
        limit: positions there are.
        doubling: the width of the first bucket.
    """
    if isinstance(buckets, int):
        require(buckets >= 1, f"a bucket has 1 position or more, got {buckets}")
        inner: Sequence[int] = range(buckets, limit, buckets)
    elif buckets is not None:
        rising = all(a < b for a, b in itertools.pairwise(buckets))
        require(rising and min(buckets, default=0) >= 0, f"the edges of buckets must rise from 0 on, got {list(buckets)}")
        inner = buckets
    elif doubling is not None:
        inner = [doubling << power for power in range(limit.bit_length())]
    else:
        inner = range(max(limit // PARTS, 1), limit, max(limit // PARTS, 1))
    return (0, *(edge for edge in inner if 0 < edge < limit), limit)
