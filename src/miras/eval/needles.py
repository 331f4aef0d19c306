"""Needles in haystacks after RULER's S-NIAH: a sentence with a number or a UUID, hidden in filler or in prose, asked for.

| task | haystack | needle |
| s-niah-1 | one passage, repeated | a number of seven digits |
| s-niah-2 | prose | a number of seven digits |
| s-niah-3 | prose | a UUID |

What is drawn depends on seed, task, length, depth and number alone: no needle depends on those before it.
"""

from __future__ import annotations

import itertools
import random
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..types import IGNORED, require
from .words import ADJECTIVES, NOUNS

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
# after what ends a sentence, with or without what closes a quotation (\u2019 and \u201d are the curved marks)
ENDS = r"(?<=[.!?])\s|(?<=[.!?][\"'\u2019\u201d)])\s"
# longer than any haystack needs to be, short enough to be split in a second
CHARACTERS = 8_000_000
# sentences looked at together
AHEAD = 32


@dataclass(frozen=True, kw_only=True)
class NeedleTask:
    """What is hidden in what: ``value`` is "number" or "uuid", ``prose`` whether the haystack is text that has to be given."""

    name: str
    value: Literal["number", "uuid"]
    prose: bool


NEEDLE_TASKS = {
    task.name: task
    for task in (
        NeedleTask(name="s-niah-1", value="number", prose=False),
        NeedleTask(name="s-niah-2", value="number", prose=True),
        NeedleTask(name="s-niah-3", value="uuid", prose=True),
    )
}


@dataclass(frozen=True, kw_only=True)
class Needle:
    """A prompt and its answer.

    Attributes:
        task: of :data:`NEEDLE_TASKS`.
        length: tokens that prompt and answer may have.
        depth: the share of the haystack that lies before it, as near as sentences allow.
        tokens: that prompt and answer have.
        prompt: haystack, question, and the beginning of the answer.
        answer: what follows the prompt and a space.
    """

    task: str
    length: int
    depth: float
    tokens: int
    prompt: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Haystack:
    """Sentences of prose."""

    title: str
    sentences: tuple[str, ...]

    def __post_init__(self) -> None:
        require(bool(self.sentences), f"{self.title} has no sentence to hide a needle between")


def haystack_of(texts: str | Iterable[str], title: str = "the haystack", characters: int = CHARACTERS) -> Haystack:
    """The sentences of the first so many characters of some texts, line ends and the like made spaces.

    >>> haystack_of("It rained. “Why?”\\n\\nNobody knew.").sentences
    ('It rained.', '“Why?”', 'Nobody knew.')
    """
    found: list[str] = []
    for text in [texts] if isinstance(texts, str) else texts:
        found.extend(_sentences(text[:characters]))
        characters -= len(text)
        if characters <= 0:
            break
    return Haystack(title=title, sentences=tuple(found))


def _sentences(text: str) -> list[str]:
    """A text cut after full stops, question and exclamation marks."""
    flat = " ".join(text.split())
    return [part for part in re.split(ENDS, flat) if part]


def needle_tasks_of(names: Sequence[str] | None, haystack: Haystack | None) -> tuple[NeedleTask, ...]:
    """The tasks of some names, each once (all where None); those of prose are refused without any."""
    names = tuple(NEEDLE_TASKS) if names is None else tuple(dict.fromkeys(names))
    require(bool(names), f"no task was named: known are {', '.join(NEEDLE_TASKS)}")
    plain = ", ".join(name for name, task in NEEDLE_TASKS.items() if not task.prose)
    for name in names:
        require(name in NEEDLE_TASKS, f"unknown task {name!r}: known are {', '.join(NEEDLE_TASKS)}")
        needs = NEEDLE_TASKS[name].prose
        require(
            not needs or haystack is not None,
            f"{name} hides its needle in prose, and no haystack was given: give one (--haystack), or --tasks {plain} alone",
        )
    return tuple(NEEDLE_TASKS[name] for name in names)


def make_needle(
    task: str, tokenizer: Any, length: int, depth: float, *, seed: int | str, number: int = 0, haystack: Haystack | None = None
) -> Needle:
    """One needle, in as much haystack as ``length`` tokens have room for, prompt and answer together.

    Args:
        task: of :data:`NEEDLE_TASKS`.
        tokenizer: that counts.
        length: tokens at most.
        depth: where it lies, from 0 to 1.
        seed: of everything that is drawn.
        number: of the needle among those of the same seed, task, length and depth.
        haystack: prose, for the tasks that need it.
    """
    (chosen,) = needle_tasks_of([task], haystack)
    require(0 <= depth <= 1, f"a depth lies from 0 to 1, got {depth}")
    draw = random.Random(f"{seed}/{task}/{length}/{depth!r}/{number}")
    key = f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}"
    answer = _value(chosen, draw)
    straw, joint = _prose(haystack, draw) if haystack is not None and chosen.prose else ((FILLER,) * length, "\n")

    def prompt(count: int) -> str:
        place = nearest(depth, [len(unit) for unit in straw[:count]])
        needle = f"One of the special magic {chosen.value}s for {key} is: {answer}."
        return _prompt(chosen.value, key, joint.join([*straw[:place], needle, *straw[place:count]]))

    def tokens(count: int) -> int:
        return len(tokenizer.encode(f"{prompt(count)} {answer}"))

    count = _fitting(tokens, straw, joint, tokenizer, length)
    require(count < len(straw), f"the haystack has too little text for {length} tokens: it has {len(straw)} sentences")
    return Needle(task=task, length=length, depth=depth, tokens=tokens(count), prompt=prompt(count), answer=answer)


def _prose(haystack: Haystack, draw: random.Random) -> tuple[tuple[str, ...], str]:
    """The sentences from a place that is drawn on, round to before it, and what joins them."""
    start = draw.randrange(len(haystack.sentences))
    return haystack.sentences[start:] + haystack.sentences[:start], " "


def nearest(depth: float, sizes: Sequence[int]) -> int:
    """How many units stand before a needle, so that their share of the characters is as near to its depth as can be.

    >>> nearest(0.5, [10, 80, 10, 20]), nearest(0, [5, 5]), nearest(1, [5, 5])
    (2, 0, 2)
    """
    before = [0, *itertools.accumulate(sizes)]
    return min(range(len(before)), key=lambda place: abs(before[place] - depth * before[-1]))


def _value(task: NeedleTask, draw: random.Random) -> str:
    """What is hidden."""
    if task.value == "number":
        return str(draw.randrange(1_000_000, 10_000_000))
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _prompt(kind: str, key: str, context: str) -> str:
    """RULER's question around a haystack, with the beginning of the answer, for models that go on with a text."""
    return (
        f"A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
        f"{kind} afterwards.\n{context}\nWhat is the special magic {kind} for {key} mentioned in the provided text? "
        f"The special magic {kind} for {key} mentioned in the provided text is"
    )


def _fitting(tokens: Callable[[int], int], straw: Sequence[str], joint: str, tokenizer: Any, length: int) -> int:
    """The largest number of units that fits: from the sum of their own tokens, put right by counting the whole."""
    used = tokens(0)
    require(used <= length, f"a needle and its question take {used} tokens: a length of {length} is too short")
    count = 0
    while count < len(straw) and used < length:
        ahead = straw[count : count + AHEAD]
        sizes = [len(ids) for ids in tokenizer([joint + unit for unit in ahead], add_special_tokens=False).input_ids]
        for size in sizes:
            used += size
            count += used <= length
    while tokens(count) > length:
        count -= 1
    while count < len(straw) and tokens(count + 1) <= length:
        count += 1
    return count


def asked_needles(
    tokenizer: Any,
    *,
    tasks: Sequence[NeedleTask],
    lengths: Sequence[int],
    depths: Sequence[float],
    count: int,
    seed: int = 0,
    haystack: Haystack | None = None,
) -> Iterator[list[Needle]]:
    """``count`` needles to be asked for at a time: those of each task, length and depth."""
    for task, length, depth in itertools.product(tasks, lengths, depths):
        yield [
            make_needle(task.name, tokenizer, length, depth, seed=seed, number=number, haystack=haystack)
            for number in range(count)
        ]


def training_needles(
    tokenizer: Any,
    *,
    lengths: Sequence[int],
    count: int,
    seed: int = 0,
    tasks: Sequence[str] | None = None,
    haystack: Haystack | None = None,
) -> Iterator[Needle]:
    """``count`` needles to learn from: tasks and lengths in turn, depths drawn evenly; none is one that is tested with."""
    chosen = needle_tasks_of(tasks, haystack)
    require(bool(lengths), "no length was named")
    require(count >= 1, f"count must be 1 or more, got {count}")
    kinds = [(task, length) for length in lengths for task in chosen]
    for number in range(count):
        task, length = kinds[number % len(kinds)]
        depth = random.Random(f"training depth/{seed}/{number}").random()
        yield make_needle(task.name, tokenizer, length, depth, seed=f"training/{seed}", number=number, haystack=haystack)


def labelled(needle: Needle, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Tokens of prompt and answer, and the labels to train with: -100 but for the answer's tokens."""
    from .likelihood import encode_pairs

    ((before, after),) = encode_pairs(tokenizer, [(needle.prompt, f" {needle.answer}")])
    return with_labels(before, after)


def with_labels(before: Sequence[int], after: Sequence[int]) -> tuple[list[int], list[int]]:
    """Tokens of a prompt and its answer, and the labels to train with."""
    return [*before, *after], [IGNORED] * len(before) + [*after]
