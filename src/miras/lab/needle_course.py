"""Needles for models that were never asked anything: a short course, the same for all, and then the test.

A language model of this size knows no questions. Each takes the same steps over needles of one and two thousand tokens, with a
loss on their answers alone, and is then asked for others, hidden in up to eight times as much text.

R rows, T tokens
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..eval.likelihood import Request, encode_pairs, likelihoods
from ..eval.needles import NEEDLE_TASKS, Haystack, asked_needles, training_needles, with_labels
from ..files import replacing
from ..hf import MirasForCausalLM
from ..train.metrics import Line
from ..train.reading import TOGETHER, autocast, precision
from ..train.schedule import rate_at
from ..types import IGNORED, require


@dataclass(frozen=True, kw_only=True)
class Course:
    """How every model is taught and asked.

    Attributes:
        steps, rows, rate: steps of AdamW, needles of a step, the largest learning rate; warm-up is a tenth, then half a cosine.
        lengths: tokens of the needles to learn from; those of a step have one length.
        asked, depths, count: tokens and depths of the needles that are asked for, and how many of each kind.
        seed: of the needles; no needle is in both.
    """

    steps: int = 400
    rows: int = 16
    rate: float = 5e-4
    lengths: tuple[int, ...] = (1024, 2048)
    asked: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    count: int = 10
    seed: int = 0


class Question(NamedTuple):
    """A needle as tokens."""

    task: str
    length: int
    depth: float
    before: tuple[int, ...]
    after: tuple[int, ...]


def write(folder: Path, tokenizer: Any, haystack: Haystack, course: Course) -> None:
    """Make the needles of a course, as tokens: ``train.jsonl`` and ``test.jsonl``, and ``course.json`` when both are whole."""
    folder.mkdir(parents=True, exist_ok=True)
    # lengths and tasks come in turn; a few more than the steps need, since they may not come out even
    spare = len(course.lengths) * len(NEEDLE_TASKS)
    count = course.steps * course.rows + spare
    lessons = training_needles(tokenizer, lengths=course.lengths, count=count, seed=course.seed, haystack=haystack)
    kinds: dict[str, Any] = {"tasks": tuple(NEEDLE_TASKS.values()), "lengths": course.asked, "depths": course.depths}
    tests = asked_needles(tokenizer, **kinds, count=course.count, seed=course.seed, haystack=haystack)
    for name, needles in (("train", list(lessons)), ("test", list(itertools.chain(*tests)))):
        pairs = encode_pairs(tokenizer, ((needle.prompt, f" {needle.answer}") for needle in needles))
        with replacing(folder / f"{name}.jsonl") as fresh, fresh.open("w") as handle:
            for needle, (before, after) in zip(needles, pairs, strict=True):
                handle.write(json.dumps(Question(needle.task, needle.length, needle.depth, before, after)) + "\n")
    with replacing(folder / "course.json") as fresh:
        fresh.write_text(json.dumps(asdict(course)))


def course_of(folder: Path) -> Course:
    """The course that a folder was written for."""
    path = folder / "course.json"
    require(path.is_file(), f"{folder} holds no needles: experiments/prepare.py needles makes them")
    content: dict[str, Any] = json.loads(path.read_text())
    for name, value in content.items():
        content[name] = tuple(value) if isinstance(value, list) else value
    return Course(**content)


def questions(path: Path) -> list[Question]:
    """The needles of a file."""
    with path.open() as handle:
        rows = map(json.loads, handle)
        return [Question(task, length, depth, tuple(before), tuple(after)) for task, length, depth, before, after in rows]


def batches(lessons: Sequence[Question], course: Course) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and labels ``[R,T]`` of every step, lengths in turn, tasks mixed; filled up on the right, behind the answers."""
    draw = random.Random(course.seed)
    kinds = [[one for one in lessons if one.length == length] for length in course.lengths]
    for kind in kinds:
        draw.shuffle(kind)
    for step in range(course.steps):
        turn, number = divmod(step, len(kinds))
        rows = kinds[number][turn * course.rows : (turn + 1) * course.rows]
        width = max(len(row.before) + len(row.after) for row in rows)
        tokens, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), IGNORED)
        for place, row in enumerate(rows):
            ids, wanted = with_labels(row.before, row.after)
            tokens[place, : len(ids)], labels[place, : len(ids)] = torch.tensor(ids), torch.tensor(wanted)
        yield tokens, labels


def taught(model: MirasForCausalLM, lessons: Sequence[Question], course: Course) -> tuple[MirasForCausalLM, list[float]]:
    """A copy of the model after the course, and its loss at every step."""
    model = copy.deepcopy(model).train()
    device = model.device
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    losses: list[Tensor] = []
    for step, (tokens, labels) in enumerate(batches(lessons, course)):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step, steps=course.steps, peak=course.rate, warmup=0.1, final=0.1)
        with autocast(device):
            loss = model(input_ids=tokens.to(device), labels=labels.to(device), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return model.eval(), [float(loss) for loss in losses]


def asked(model: MirasForCausalLM, tests: Sequence[Question]) -> list[Line]:
    """The share of each task, length and depth whose answer's tokens are the likeliest ones, each after those before it."""
    requests = [Request(test.before, test.after) for test in tests]
    scored = likelihoods(model, requests, context=None, batch_tokens=TOGETHER, autocast=precision(model.device))
    groups: dict[tuple[str, int, float], list[bool]] = {}
    for test, likelihood in zip(tests, scored, strict=True):
        groups.setdefault((test.task, test.length, test.depth), []).append(likelihood.greedy)
    return [
        {"task": task, "length": length, "depth": depth, "count": len(found), "exact": sum(found) / len(found)}
        for (task, length, depth), found in groups.items()
    ]


def needles(model: MirasForCausalLM, folder: Path) -> Line:
    """The course and the test of a folder."""
    course = course_of(folder)
    pupil, losses = taught(model, questions(folder / "train.jsonl"), course)
    tenth = max(len(losses) // 10, 1)
    ends = {"first": sum(losses[:tenth]) / tenth, "last": sum(losses[-tenth:]) / tenth}
    return {"course": asdict(course), "loss": ends, "cells": asked(pupil, questions(folder / "test.jsonl"))}


def reading_cost(folder: Path) -> float:
    """Tokens of training that take about as long as course and test."""
    course = course_of(folder)
    learned = course.steps * course.rows * sum(course.lengths) / len(course.lengths)
    tested = sum(course.asked) * len(course.depths) * course.count * len(NEEDLE_TASKS)
    return learned + tested / 2
