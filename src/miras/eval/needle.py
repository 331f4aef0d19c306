"""Needle in a haystack: does a model find what was hidden, by the length of the haystack and the depth of the needle.

R rows, T tokens
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..types import require
from .likelihood import Request, encode_pairs, likelihoods
from .needles import Haystack, Needle, asked_needles, needle_tasks_of
from .scoring import BATCH_TOKENS, Progress, check_batch, check_tokens, reading, unwrapped

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM

LENGTHS = (1024, 2048, 4096)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
# tokens that may be generated beyond those of the answer
BEYOND = 16


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a model made of one needle.

    Attributes:
        task, length, depth, tokens, answer: as in :class:`Needle`.
        number: among those of one task, length and depth.
        exact: whether the answer's tokens are the likeliest ones, each after those before it.
        likelihood: log p(answer | prompt).
        generated: what greedy decoding gave; None where nothing was generated.
        found: whether that contains the answer, upper and lower case alike; None where nothing was generated.
    """

    task: str
    length: int
    depth: float
    number: int
    tokens: int
    answer: str
    exact: bool
    likelihood: float
    generated: str | None
    found: bool | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Shares of the needles of one task, length and depth; ``found`` is None where nothing was generated."""

    task: str
    length: int
    depth: float
    count: int
    exact: float
    found: float | None


@dataclass(frozen=True, kw_only=True)
class NeedleResult:
    """Every needle's outcome."""

    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Shares by task, length and depth."""
        groups: dict[tuple[str, int, float], list[Outcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault((outcome.task, outcome.length, outcome.depth), []).append(outcome)
        return tuple(cell_of(group) for group in groups.values())


def cell_of(outcomes: Sequence[Outcome]) -> Cell:
    """The shares of outcomes of one task, length and depth."""
    first = outcomes[0]
    found = [outcome.found for outcome in outcomes if outcome.found is not None]
    return Cell(
        task=first.task,
        length=first.length,
        depth=first.depth,
        count=len(outcomes),
        exact=statistics.fmean(outcome.exact for outcome in outcomes),
        found=statistics.fmean(found) if found else None,
    )


def needle(
    model: MirasForCausalLM,
    tokenizer: Any,
    *,
    tasks: Sequence[str] | None = None,
    lengths: Sequence[int] = LENGTHS,
    depths: Sequence[float] = DEPTHS,
    count: int = 10,
    seed: int = 0,
    haystack: Haystack | None = None,
    generate: bool = True,
    batch_tokens: int = BATCH_TOKENS,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> NeedleResult:
    """Hide ``count`` needles at every length and depth and ask for them.

    Args:
        model: what reads.
        tokenizer: that of the model.
        tasks: names of :data:`miras.eval.NEEDLE_TASKS`; all where None.
        lengths: tokens of prompt and answer at most.
        depths: where the needle lies, from 0 to 1.
        count: needles of each task, length and depth.
        seed: of the needles.
        haystack: prose, for the tasks that need it; :func:`haystack_of` makes one.
        generate: whether to decode greedily; else the answer's likelihood, of one pass, is all that is measured.
        batch_tokens: tokens in one call of the model.
        autocast: such as ``torch.bfloat16``.
        progress: called with the number of needles done and of all.
    """
    require(count >= 1, f"count must be 1 or more, got {count}")
    require(bool(lengths) and bool(depths), "give at least one length and one depth")
    check_batch(batch_tokens)
    lengths, depths = list(dict.fromkeys(lengths)), list(dict.fromkeys(depths))
    chosen = needle_tasks_of(tasks, haystack)
    outcomes: list[Outcome] = []
    total, began = len(chosen) * len(lengths) * len(depths) * count, time.monotonic()
    made = asked_needles(tokenizer, tasks=chosen, lengths=lengths, depths=depths, count=count, seed=seed, haystack=haystack)
    for some in made:
        outcomes.extend(ask(model, tokenizer, some, generate, batch_tokens, autocast))
        if progress is not None:
            progress(len(outcomes), total)
    return NeedleResult(outcomes=tuple(outcomes), seconds=time.monotonic() - began)


def ask(
    model: MirasForCausalLM,
    tokenizer: Any,
    needles: Sequence[Needle],
    generate: bool = True,
    batch_tokens: int = BATCH_TOKENS,
    autocast: torch.dtype | None = None,
) -> list[Outcome]:
    """The outcomes of needles of any kind."""
    model = unwrapped(model)
    requests = encode_pairs(tokenizer, ((needle.prompt, f" {needle.answer}") for needle in needles))
    scored = likelihoods(model, requests, context=None, batch_tokens=batch_tokens, autocast=autocast)
    texts: list[str] | list[None] = [None] * len(needles)
    if generate:
        with reading(model, autocast):
            texts = generated(model, tokenizer, requests, batch_tokens)
    return [
        Outcome(
            task=needle.task,
            length=needle.length,
            depth=needle.depth,
            number=number,
            tokens=needle.tokens,
            answer=needle.answer,
            exact=likelihood.greedy,
            likelihood=likelihood.value,
            generated=text,
            found=None if text is None else needle.answer.lower() in text.lower(),
        )
        for number, (needle, likelihood, text) in enumerate(zip(needles, scored, texts, strict=True))
    ]


def generated(
    model: MirasForCausalLM, tokenizer: Any, requests: Sequence[Request], batch_tokens: int = BATCH_TOKENS
) -> list[str]:
    """Greedy continuations of the requests' contexts, a little longer than their answers; filled up on the left."""
    longest = max(len(request.context) for request in requests)
    size = max(1, batch_tokens // longest)
    filler = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    texts: list[str] = []
    for first in range(0, len(requests), size):
        some = requests[first : first + size]
        width = max(len(request.context) for request in some)
        tokens = torch.full((len(some), width), filler)
        mask = torch.zeros_like(tokens)
        for row, request in enumerate(some):
            tokens[row, width - len(request.context) :] = torch.tensor(request.context)
            mask[row, width - len(request.context) :] = 1
        check_tokens(tokens, model)
        out = model.generate(
            tokens.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max(len(request.continuation) for request in some) + BEYOND,
            do_sample=False,
            pad_token_id=filler,
        )
        texts.extend(tokenizer.batch_decode(out[:, width:], skip_special_tokens=True))
    return texts
