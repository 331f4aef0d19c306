"""The zero-shot sets of the paper, from local files."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .items import items_of
from .likelihood import CONTEXT, Likelihood, encode_pairs, likelihoods
from .scoring import BATCH_TOKENS, Progress
from .tasks import Task, tasks_of

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model made of one question.

    Attributes:
        likelihoods: log p of every choice, and whether greedy decoding gives it.
        gold: the right one.
        characters: of every choice.
    """

    likelihoods: tuple[Likelihood, ...]
    gold: int
    characters: tuple[int, ...]

    def right(self, metric: str) -> bool:
        """Whether it counts as right by "acc" or "acc_norm"; the first of equals is the model's choice."""
        values = [likelihood.value for likelihood in self.likelihoods]
        if len(values) == 1:
            return self.likelihoods[0].greedy
        if metric == "acc_norm":
            values = [value / size if size else -math.inf for value, size in zip(values, self.characters, strict=True)]
        return values.index(max(values)) == self.gold

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        values = [[likelihood.value, likelihood.greedy] for likelihood in self.likelihoods]
        return {"gold": self.gold, "likelihoods": values}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number with its standard error, which perplexity has none of."""

    name: str
    value: float
    error: float | None


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """A task's answers, and what they come to."""

    task: Task
    answers: tuple[Answer, ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics of the task."""
        return tuple(metric_of(name, self.answers) for name in self.task.metrics)

    @property
    def paper(self) -> tuple[Metric, ...]:
        """Those that the paper prints."""
        return tuple(metric for metric in self.metrics if metric.name in self.task.paper)

    def to_dict(self, answers: bool = False) -> dict[str, Any]:
        """For JSON, with or without every answer."""
        values = {metric.name: metric.value for metric in self.metrics}
        errors = {f"{metric.name}_error": metric.error for metric in self.metrics if metric.error is not None}
        told = {"answers": [answer.to_dict() for answer in self.answers]} if answers else {}
        return {"task": self.task.name, "items": len(self.answers), **values, **errors, "paper": list(self.task.paper), **told}


@dataclass(frozen=True, kw_only=True)
class ZeroShot:
    """The results of some tasks."""

    tasks: tuple[TaskResult, ...]
    seconds: float

    def to_dict(self, answers: bool = False) -> dict[str, Any]:
        """For JSON, with or without every answer."""
        return {"tasks": [task.to_dict(answers) for task in self.tasks], "seconds": self.seconds}


def metric_of(name: str, answers: Sequence[Answer]) -> Metric:
    """ "ppl" = exp(-mean log p); else the share of right answers, with the sample's standard deviation / sqrt(items)."""
    if name == "ppl":
        mean = statistics.fmean(answer.likelihoods[0].value for answer in answers)
        return Metric(name=name, value=math.exp(-mean) if mean > -700 else math.inf, error=None)
    right = [float(answer.right(name)) for answer in answers]
    error = statistics.stdev(right) / math.sqrt(len(right)) if len(right) > 1 else None
    return Metric(name=name, value=statistics.fmean(right), error=error)


def zero_shot(
    model: MirasForCausalLM,
    tokenizer: Any,
    folder: Path | str,
    tasks: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    context: int | None = CONTEXT,
    batch_tokens: int = BATCH_TOKENS,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> ZeroShot:
    """Score tasks from the JSON lines of a folder, with the prompts and metrics of lm-eval-harness.

    Args:
        model: what reads.
        tokenizer: that of the model.
        folder: holds NAME.jsonl, NAME.jsonl.xz or NAME.jsonl.gz for every task.
        tasks: names of :data:`miras.eval.TASKS`; all where None.
        limit: questions of each task, the first ones.
        context: tokens read at most, the last ones, 2048 as in lm-eval-harness; None for all.
        batch_tokens: tokens in one call of the model.
        autocast: such as ``torch.bfloat16``.
        progress: called with the number of continuations scored and of all.
    """
    chosen = tasks_of(None if tasks is None else tuple(tasks))
    questions = {task.name: items_of(task, Path(folder), limit) for task in chosen}
    began = time.monotonic()
    # all tasks at once, so that rows of one length meet whatever they ask
    requests = encode_pairs(tokenizer, (pair for items in questions.values() for item in items for pair in item.pairs))
    scored = likelihoods(model, requests, context=context, batch_tokens=batch_tokens, autocast=autocast, progress=progress)
    left = iter(scored)
    results = []
    for task in chosen:
        answers = [
            Answer(likelihoods=tuple(next(left) for _ in item.pairs), gold=item.gold, characters=item.characters)
            for item in questions[task.name]
        ]
        results.append(TaskResult(task=task, answers=tuple(answers)))
    return ZeroShot(tasks=tuple(results), seconds=time.monotonic() - began)
