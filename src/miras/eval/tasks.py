"""The zero-shot sets of the paper: how a line of each becomes pairs of context and continuation, as lm-eval-harness asks.

Every choice is scored by log p(continuation | context). ``acc``: the best is the right one; ``acc_norm``: the best by
log p / number of characters of the choice; of LAMBADA ``acc``: greedy decoding gives the word, ``ppl``: exp(-mean log p).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..types import require

Row = dict[str, Any]


class Item(NamedTuple):
    """One question: its pairs of context and continuation, which is right, and the characters of each choice."""

    pairs: tuple[tuple[str, str], ...]
    gold: int
    characters: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A set of questions.

    Attributes:
        name: of the task, and of its file, with .jsonl, .jsonl.xz or .jsonl.gz.
        harness: its name in lm-eval-harness.
        fields: what a line has to hold, and of which type.
        item: a line as a question.
        metrics: that it is measured by.
        paper: those of them that the paper prints.
    """

    name: str
    harness: str
    fields: Mapping[str, type]
    item: Callable[[Row], Item]
    metrics: tuple[str, ...]
    paper: tuple[str, ...]


def choose(context: str, choices: list[str], gold: int) -> Item:
    """Several continuations of one context, a space before each."""
    require(0 <= gold < len(choices), f"the right choice is number {gold}, of {len(choices)} counted from 0")
    return Item(tuple((context, " " + choice) for choice in choices), gold, tuple(map(len, choices)))


def label(row: Row, field: str, first: int) -> int:
    """The number of the right choice, counted from 0, where the labels count from ``first``."""
    require(row[field].isdecimal(), f"{field} is {row[field]!r}, not a number")
    return int(row[field]) - first


def lambada(row: Row) -> Item:
    """The last word after all before it."""
    before, space, word = row["text"].rpartition(" ")
    require(bool(space), "the text is one word, without any before it")
    return Item(((before, " " + word),), 0, (len(word),))


def piqa(row: Row) -> Item:
    """Which of two solutions reaches a goal."""
    return choose(f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], row["label"])


def hellaswag(row: Row) -> Item:
    """How a scene goes on."""
    query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return choose(unbracketed(query), [unbracketed(ending) for ending in row["endings"]], label(row, "label", 0))


def unbracketed(text: str) -> str:
    """WikiHow's marks in brackets removed; that of a title ends a sentence."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def winogrande(row: Row) -> Item:
    """Which of two words fills the blank: what follows it is scored after each."""
    before, blank, after = row["sentence"].partition("_")
    require(bool(blank), "the sentence has no blank _")
    gold = label(row, "answer", 1)
    require(gold in (0, 1), f"answer is {row['answer']!r}, not '1' or '2'")
    options = (row["option1"], row["option2"])
    return Item(tuple((before + option, " " + after.strip()) for option in options), gold, (len(after), len(after)))


def arc(row: Row) -> Item:
    """A question of science."""
    return choose(f"Question: {row['question']}\nAnswer:", row["choices"], row["gold"])


def social_iqa(row: Row) -> Item:
    """What people feel, want or do."""
    choices = [row["answerA"], row["answerB"], row["answerC"]]
    return choose(f"Q: {row['context']} {row['question']}\nA:", choices, label(row, "label", 1))


def boolq(row: Row) -> Item:
    """Yes or no, after a passage."""
    return choose(f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:", ["no", "yes"], int(row["answer"]))


ARC = {"question": str, "choices": list, "gold": int}
SIQA = {"context": str, "question": str, "answerA": str, "answerB": str, "answerC": str, "label": str}
SWAG = {"activity_label": str, "ctx_a": str, "ctx_b": str, "endings": list, "label": str}
WINO = {"sentence": str, "option1": str, "option2": str, "answer": str}
BOTH = ("acc", "acc_norm")

TASKS = {
    task.name: task
    for task in (
        Task(
            name="lambada",
            harness="lambada_openai",
            fields={"text": str},
            item=lambada,
            metrics=("ppl", "acc"),
            paper=("ppl", "acc"),
        ),
        Task(
            name="piqa",
            harness="piqa",
            fields={"goal": str, "sol1": str, "sol2": str, "label": int},
            item=piqa,
            metrics=BOTH,
            paper=("acc",),
        ),
        Task(name="hellaswag", harness="hellaswag", fields=SWAG, item=hellaswag, metrics=BOTH, paper=("acc_norm",)),
        Task(name="winogrande", harness="winogrande", fields=WINO, item=winogrande, metrics=("acc",), paper=("acc",)),
        Task(name="arc_easy", harness="arc_easy", fields=ARC, item=arc, metrics=BOTH, paper=("acc",)),
        Task(name="arc_challenge", harness="arc_challenge", fields=ARC, item=arc, metrics=BOTH, paper=("acc_norm",)),
        Task(name="social_iqa", harness="social_iqa", fields=SIQA, item=social_iqa, metrics=("acc",), paper=("acc",)),
        Task(
            name="boolq",
            harness="boolq",
            fields={"passage": str, "question": str, "answer": bool},
            item=boolq,
            metrics=("acc",),
            paper=("acc",),
        ),
    )
}


def tasks_of(names: tuple[str, ...] | None) -> tuple[Task, ...]:
    """The tasks of some names, each once; all where None."""
    names = tuple(TASKS) if names is None else tuple(dict.fromkeys(names))
    require(bool(names), f"no task was named: known are {', '.join(TASKS)}")
    for name in names:
        require(name in TASKS, f"unknown task {name!r}: known are {', '.join(TASKS)}")
    return tuple(TASKS[name] for name in names)
