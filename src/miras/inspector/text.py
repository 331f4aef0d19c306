"""A text as tokens, each with the piece of the text that it stands for."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..types import require


class Tokens(NamedTuple):
    """Token ids and pieces; ``total`` counts the tokens of the whole text, of which these are the first.

    A piece is empty where a token only goes on with a character that an earlier one began; ``special`` says which tokens are
    not in the text at all.
    """

    ids: list[int]
    pieces: list[str]
    special: list[bool]
    total: int


def tokens_of(tokenizer: Any, text: str, limit: int) -> Tokens:
    """The first ``limit`` tokens of a text."""
    fast = bool(tokenizer.is_fast)
    given = tokenizer(text, return_offsets_mapping=fast, verbose=False)
    ids: list[int] = list(given["input_ids"])
    require(bool(ids), "the text has no tokens: there is nothing to read")
    shown = ids[:limit]
    known = set(tokenizer.all_special_ids)
    if fast:
        pieces, special = _by_offsets(text, given["offset_mapping"][:limit])
    else:
        pieces, special = [tokenizer.decode([token]) for token in shown], [token in known for token in shown]
    names = tokenizer.convert_ids_to_tokens(shown)
    pieces = [str(name) if alone else piece for piece, name, alone in zip(pieces, names, special, strict=True)]
    return Tokens(shown, pieces, special, len(ids))


def _by_offsets(text: str, offsets: list[tuple[int, int]]) -> tuple[list[str], list[bool]]:
    """Each token's own characters, what no token covers (cut white space) with the next, and which tokens have none."""
    pieces, special, reached = [], [], 0
    for start, end in offsets:
        special.append(start == end and start == 0)
        pieces.append(text[reached:end] if end > reached else "")
        reached = max(reached, end)
    return pieces, special
