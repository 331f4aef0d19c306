"""Random choices that need no loop: distinct numbers, and places for queries after the pairs they ask about.

B rows, N choices, P queries, S places
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...types import require
from .base import Questions

Filler = Literal["random", "blank"]
BLANK = 0


def distinct(rows: int, among: int, count: int, random: torch.Generator) -> Tensor:
    """``count`` different numbers below ``among`` in random order, ``[B,N]``."""
    return torch.rand(rows, among, generator=random, device=random.device).topk(count, dim=1).indices


def power_law(rows: int, places: int, count: int, power: float, random: torch.Generator) -> Tensor:
    """``count`` different places below S, one after the other with p(r) proportional to (r+1)^(power-1), ``[B,N]``.

    Adding Gumbel noise to log p and taking the largest draws without replacement.
    """
    rank = torch.arange(1, places + 1, device=random.device, dtype=torch.float32)
    noise = -torch.log(-torch.log(torch.rand(rows, places, generator=random, device=random.device).clamp(1e-9, 1 - 1e-7)))
    return ((power - 1) * rank.log() + noise).topk(count, dim=1).indices


def vocabulary(vocab: int, keys: int, values: int) -> int:
    """The number of keys: tokens 1 to half of the vocabulary are keys, the upper half are values, 0 is blank."""
    half = vocab // 2
    require(half - 1 >= keys, f"vocab={vocab} has {half - 1} keys, fewer than the {keys} that differ: make it larger")
    require(vocab - half >= values, f"vocab={vocab} has {vocab - half} values, fewer than the {values} that differ: enlarge it")
    return half


def room(length: int, shown: int, queries: int) -> int:
    """Places for queries, every second one, behind the pairs that are shown."""
    places = (length - 2 * shown) // 2
    require(
        places >= queries,
        f"length={length} leaves {places} places for {queries} queries behind {shown} pairs: give {2 * (shown + queries)}",
    )
    return places


def ask(
    keys: Tensor,
    values: Tensor,
    asked: Tensor,
    answers: Tensor,
    *,
    length: int,
    vocab: int,
    power: float,
    filler: Filler,
    random: torch.Generator,
) -> Questions:
    """Pairs ``[B,N]`` one behind the other, then the keys ``asked`` ``[B,P]`` in places drawn by a power law.

    What stands between the queries is drawn from the whole vocabulary, or blank. The answers never stand in the sequence.
    """
    rows, shown = keys.shape
    where = 2 * shown + 2 * power_law(rows, room(length, shown, asked.shape[1]), asked.shape[1], power, random)
    if filler == "random":
        ids = torch.randint(vocab, (rows, length), generator=random, device=random.device)
    else:
        ids = torch.full((rows, length), BLANK, device=random.device)
    ids[:, : 2 * shown] = torch.stack([keys, values], 2).flatten(1)
    return Questions(ids.scatter(1, where, asked), where, answers)
