"""Two ways to read a text: in windows that slide, each from fresh memories, or streamed, the memory carried along.

B rows, T tokens of a call, M tokens that it scores
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..types import require
from .scoring import BATCH_TOKENS, check_batch, hidden_of, padded, score
from .windows import Segment, divided, windows

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM


class Scored(NamedTuple):
    """What one call scored, ``[M]`` each on the CPU: positions, widths in bytes, -log p; and the tokens it went on by."""

    positions: Tensor
    widths: Tensor
    nats: Tensor
    done: int


class Row(NamedTuple):
    """A segment's targets ``begin + 1`` to ``end``, of which the first ``skip`` are not scored here."""

    segment: Segment
    begin: int
    end: int
    skip: int


class Mode(ABC):
    """How a text is read."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """For JSON."""

    @abstractmethod
    def limit(self, segments: Sequence[Segment]) -> int:
        """Positions there are."""

    @abstractmethod
    def first_bucket(self) -> int | None:
        """The width that buckets of positions double from, or None for equal ones."""

    @abstractmethod
    def calls(self, model: MirasForCausalLM, segments: Sequence[Segment]) -> Iterator[Scored]:
        """Read it all; what each call of the model scored."""


@dataclass(frozen=True, kw_only=True)
class Sliding(Mode):
    """Windows of ``context`` tokens, each ``stride`` tokens further (None: half a window), batched.

    Every token is scored once, with ``context - stride`` tokens before it or more, but at the start of the text. Its position
    is the number of tokens in its window before the last that it is predicted from: with ``stride == context`` every window
    scores all its positions.
    """

    context: int = 2048
    stride: int | None = None
    batch_tokens: int = BATCH_TOKENS

    def __post_init__(self) -> None:
        require(self.context >= 2, f"context must be 2 tokens or more, got {self.context}")
        stride = self.step
        require(1 <= stride <= self.context, f"stride must be 1 to {self.context}, the context, got {stride}")
        check_batch(self.batch_tokens)

    @property
    def step(self) -> int:
        """The stride."""
        return self.context // 2 if self.stride is None else self.stride

    def to_dict(self) -> dict[str, Any]:
        return {"mode": "sliding", "context": self.context, "stride": self.step}

    def limit(self, segments: Sequence[Segment]) -> int:
        return min(self.context, max(len(segment.tokens) for segment in segments) - 1)

    def first_bucket(self) -> None:
        return None

    def calls(self, model: MirasForCausalLM, segments: Sequence[Segment]) -> Iterator[Scored]:
        rows = [
            Row(segment, *window)
            for segment in segments
            for window in windows(len(segment.tokens) - 1, self.context, self.step)
        ]
        rows.sort(key=lambda row: row.begin - row.end)
        size = max(1, self.batch_tokens // self.context)
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            yield scored(model, hidden_of(model, tokens_of(some)), some, 0)


@dataclass(frozen=True, kw_only=True)
class Streaming(Mode):
    """One pass in stretches; what is carried from one to the next is the memory alone, whose size is constant.

    (That of ``transformer`` keeps every token.) ``stretch`` tokens are read at once, which changes the speed and not the
    result. ``rows`` are read side by side, each from fresh memories: parts that one text is cut into, or whole documents where
    they are separate. The position of a token counts from the start of its part.
    """

    stretch: int = 2048
    rows: int = 1

    def __post_init__(self) -> None:
        require(self.stretch >= 1, f"stretch must be 1 token or more, got {self.stretch}")
        require(self.rows >= 1, f"rows must be 1 or more, got {self.rows}")

    def to_dict(self) -> dict[str, Any]:
        return {"mode": "streaming", "stretch": self.stretch, "rows": self.rows}

    def limit(self, segments: Sequence[Segment]) -> int:
        return max(len(part.tokens) for part in self.parts(segments)) - 1

    def first_bucket(self) -> int:
        return self.stretch

    def parts(self, segments: Sequence[Segment]) -> list[Segment]:
        """What is read from fresh memories, the longest first."""
        whole = len(segments) == 1 and not segments[0].document
        parts = divided(segments[0], self.rows) if whole else list(segments)
        return sorted(parts, key=lambda part: -len(part.tokens))

    def calls(self, model: MirasForCausalLM, segments: Sequence[Segment]) -> Iterator[Scored]:
        from ..hf import MirasCache

        parts = self.parts(segments)
        for first in range(0, len(parts), self.rows):
            group = parts[first : first + self.rows]
            cache = MirasCache(len(model.model.layers))
            longest = len(group[0].tokens) - 1
            for begin in range(0, longest, self.stretch):
                end = min(begin + self.stretch, longest)
                # a part that has ended goes on with padding, which nothing is scored after
                rows = [Row(part, min(begin, len(part.tokens) - 1), min(end, len(part.tokens) - 1), 0) for part in group]
                yield scored(model, hidden_of(model, tokens_of(rows), cache), rows, begin)


def tokens_of(rows: Sequence[Row]) -> Tensor:
    """What the model reads of some rows, ``[B,T]``: the tokens before their targets."""
    return padded([row.segment.tokens[row.begin : row.end] for row in rows])


def scored(model: MirasForCausalLM, hidden: Tensor, rows: Sequence[Row], origin: int) -> Scored:
    """Scores of the targets of rows after hidden states ``[B,T,C]``; ``origin`` is the position of their first column."""
    places, targets, widths, positions = [], [], [], []
    for number, row in enumerate(rows):
        fresh = slice(row.begin + 1 + row.skip, row.end + 1)
        columns = torch.arange(row.skip, row.end - row.begin)[row.segment.scored[fresh]]
        places.append(number * hidden.shape[1] + columns)
        positions.append(origin + columns)
        targets.append(row.segment.tokens[fresh][row.segment.scored[fresh]])
        widths.append(row.segment.widths[fresh][row.segment.scored[fresh]])
    where = torch.cat(places).to(hidden.device)
    nats = score(model, hidden.flatten(0, 1)[where], torch.cat(targets).long()).nats
    done = sum(row.end - row.begin - row.skip for row in rows)
    return Scored(torch.cat(positions), torch.cat(widths), nats.double().cpu(), done)
