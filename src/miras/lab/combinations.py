"""Which parts of the four rooms fit together, counted, and why the others do not."""

from __future__ import annotations

import collections
import inspect
import itertools
from abc import ABC
from types import ModuleType
from typing import Any, NamedTuple

from .. import algorithm, bias, memory, retention
from ..spec import refusals
from ..types import Part
from .tables import Table

# every part with its defaults, and these: the parameters that decide whether a part fits
VARIANTS: tuple[Part, ...] = (
    retention.L2(at="previous"),
    retention.L2(side="key"),
    retention.L2(side="outer"),
    retention.L2(side="key", tied=True),
    retention.L2(anchor=True),
    algorithm.GradientDescent(decoupled=True),
)


class Refusal(NamedTuple):
    """A part, all the parts of another room that it does not go with for one reason, and the reason."""

    part: Part
    others: tuple[Part, ...]
    reason: str


class Combinations(NamedTuple):
    """How many combinations have a meaning, how many are refused, and every refusal once."""

    meaningful: int
    refused: int
    refusals: tuple[Refusal, ...]


def parts(room: ModuleType) -> list[Any]:
    """The parts of a room, each with its defaults and in its variants."""
    exported = [getattr(room, name) for name in room.__all__]
    # a class that names ABC as a base is a kind of part, not a part
    kinds = [kind for kind in exported if inspect.isclass(kind) and issubclass(kind, Part) and ABC not in kind.__bases__]
    return [part for kind in kinds for part in (kind(), *(variant for variant in VARIANTS if type(variant) is kind))]


def combinations() -> Combinations:
    """Try every combination of the four rooms."""
    meaningful = refused = 0
    # dictionaries keep the order of what is found, and hold each part once
    found: dict[tuple[Part, str, str], dict[Part, None]] = {}
    for choice in itertools.product(*map(parts, (memory, bias, retention, algorithm))):
        reasons = list(refusals(*choice))
        meaningful, refused = meaningful + (not reasons), refused + bool(reasons)
        for one, other, reason in reasons:
            found.setdefault((one, other.room, reason), {})[other] = None
    every = [Refusal(one, tuple(others), reason) for (one, _, reason), others in found.items()]
    return Combinations(meaningful, refused, tuple(sorted(every, key=lambda one: (one.part.room, one.part.label))))


def table_of_refusals(tried: Combinations) -> Table:
    """The refusals as a table."""
    rows = [
        [f"{one.label} ({one.room})", f"{named(others)} ({others[0].room})", reason] for one, others, reason in tried.refusals
    ]
    return Table(["this part", "does not go with", "because"], {"": rows})


def named(others: tuple[Part, ...]) -> str:
    """Parts as a list of words; a part of which every variant is there is named once."""
    variants = collections.Counter(type(variant) for variant in VARIANTS)
    present = collections.Counter(map(type, others))
    whole = {kind for kind in present if variants[kind] and present[kind] == variants[kind] + 1}
    return ", ".join(dict.fromkeys(f"any {type(other).__name__}" if type(other) in whole else other.label for other in others))


def as_json(tried: Combinations) -> dict[str, Any]:
    """The counts and the refusals as plain JSON values."""
    rows = [
        {
            "room": part.room,
            "part": part.to_dict(),
            "other_room": others[0].room,
            "others": [other.to_dict() for other in others],
            "reason": reason,
        }
        for part, others, reason in tried.refusals
    ]
    return {"meaningful": tried.meaningful, "refused": tried.refused, "refusals": rows}
