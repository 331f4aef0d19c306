"""log p(continuation | context) of many pairs of texts, batched by length; pairs become tokens as in lm-eval-harness.

R rows, T tokens, C channels, M tokens that are scored
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..types import require
from .scoring import BATCH_TOKENS, Progress, check_batch, check_tokens, hidden_of, padded, reading, score, unwrapped

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM

# what lm-eval-harness takes for a model that names no maximum
CONTEXT = 2048


class Request(NamedTuple):
    """A context and what may follow it, as tokens; neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


class Likelihood(NamedTuple):
    """log p of a continuation, and whether greedy decoding would have given it."""

    value: float
    greedy: bool


def encode_pairs(tokenizer: Any, pairs: Iterable[tuple[str, str]]) -> list[Request]:
    """Tokens of (context, continuation) pairs.

    The continuation's are those of the whole text after as many as the context has alone; spaces that end a context belong to
    the continuation; an empty context is the tokenizer's token for the beginning, or else for the end, of a text.
    """
    pairs = list(pairs)
    known = _encoded(tokenizer, (text for before, after in pairs if before for text in (before.rstrip(), before + after)))
    alone = _encoded(tokenizer, (after for before, after in pairs if not before), add_special_tokens=False)
    first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    found = []
    for before, after in pairs:
        if before:
            context = known[before.rstrip()]
            request = Request(context, known[before + after][len(context) :])
        else:
            ids = alone[after]
            request = Request(ids[:1], ids[1:]) if ids[:1] == (first,) else Request((first,), ids)
        require(
            bool(request.context) and bool(request.continuation) and None not in request.context,
            f"the tokenizer leaves no token of the context {before[-40:]!r} or of what follows, {after[:40]!r}",
        )
        found.append(request)
    return found


def _encoded(tokenizer: Any, texts: Iterable[str], **options: bool) -> dict[str, tuple[int, ...]]:
    """The tokens of every text, each text once, all at a time."""
    several = list(dict.fromkeys(texts))
    return dict(zip(several, map(tuple, tokenizer(several, **options).input_ids), strict=True)) if several else {}


def likelihoods(
    model: MirasForCausalLM,
    requests: Sequence[Request],
    *,
    context: int | None = CONTEXT,
    batch_tokens: int = BATCH_TOKENS,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> list[Likelihood]:
    """log p(continuation | context) of every request, in their order.

    Args:
        model: what reads.
        requests: tokens; those that differ in the last token alone are read once.
        context: tokens read at most, the last ones; None for all of them.
        batch_tokens: tokens in one call of the model, padding among them; one row at least.
        autocast: such as ``torch.bfloat16``; the weights keep their dtype.
        progress: called with the number of requests done and of all.
    """
    model = unwrapped(model)
    check_batch(batch_tokens)
    require(context is None or context >= 2, f"context must be 2 tokens or more, got {context}")
    sharing = _sharing(requests, context)
    found: list[Likelihood | None] = [None] * len(requests)
    done = 0
    with reading(model, autocast):
        for rows in _batches(sharing, batch_tokens):
            numbers = [number for row in rows for number in sharing[row]]
            for number, likelihood in zip(numbers, _scored(model, rows, sharing, requests), strict=True):
                found[number] = likelihood
            done += len(numbers)
            if progress is not None:
                progress(done, len(requests))
    return [likelihood for likelihood in found if likelihood is not None]


def _sharing(requests: Sequence[Request], context: int | None) -> dict[tuple[int, ...], list[int]]:
    """The requests that each row of tokens answers: a row is all of a request but its last token."""
    sharing: dict[tuple[int, ...], list[int]] = {}
    for number, (before, after) in enumerate(requests):
        fits = context is None or len(after) <= context
        require(fits, f"a continuation of {len(after)} tokens does not fit a context of {context}: give a larger one")
        row = (before + after)[:-1]
        sharing.setdefault(row if context is None else row[-context:], []).append(number)
    return sharing


def _batches(rows: Iterable[tuple[int, ...]], batch_tokens: int) -> Iterator[list[tuple[int, ...]]]:
    """Rows of similar length together, the longest first: what does not fit the device fails at once."""
    batch: list[tuple[int, ...]] = []
    for row in sorted(rows, key=lambda row: (-len(row), row)):
        if batch and (len(batch) + 1) * len(batch[0]) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _scored(
    model: MirasForCausalLM,
    rows: Sequence[tuple[int, ...]],
    sharing: dict[tuple[int, ...], list[int]],
    requests: Sequence[Request],
) -> Iterator[Likelihood]:
    """The likelihoods of all requests that the rows answer; only their continuations go through the head."""
    tokens = padded([torch.tensor(row) for row in rows])
    places: list[int] = []
    targets: list[int] = []
    sizes: list[int] = []
    for number, row in enumerate(rows):
        end = number * tokens.shape[1] + len(row)
        for request in sharing[row]:
            after = requests[request].continuation
            places.extend(range(end - len(after), end))
            targets.extend(after)
            sizes.append(len(after))
    wanted = torch.tensor(targets)
    check_tokens(tokens, model)
    check_tokens(wanted, model)
    hidden = hidden_of(model, tokens).flatten(0, 1)
    nats, likeliest = (part.cpu() for part in score(model, hidden[torch.tensor(places, device=hidden.device)], wanted))
    for lost, hit in zip(nats.split(sizes), likeliest.split(sizes), strict=True):
        yield Likelihood(-float(lost.double().sum()), bool(hit.all()))
