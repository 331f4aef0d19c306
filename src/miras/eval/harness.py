"""The same tasks through lm-eval-harness itself, which fetches its own data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..types import require
from .likelihood import CONTEXT, Likelihood
from .tasks import Task, tasks_of
from .zero_shot import Answer, TaskResult, ZeroShot

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM


def harness(
    model: MirasForCausalLM,
    tokenizer: Any,
    tasks: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    context: int = CONTEXT,
    batch: int = 8,
    autocast: torch.dtype | None = None,
    definitions: Path | None = None,
) -> ZeroShot:
    """Score tasks by ``lm_eval.simple_evaluate`` with its model ``hf``.

    Args:
        model: what reads.
        tokenizer: that of the model.
        tasks: names of :data:`miras.eval.TASKS`; all where None.
        limit: questions of each task, the first ones.
        context: tokens read at most, the last ones.
        batch: rows of one call.
        autocast: such as ``torch.bfloat16``.
        definitions: a folder of task definitions (YAML) in place of the harness's own.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    require(limit is None or limit >= 1, f"limit must be 1 or more, got {limit}")
    chosen = tasks_of(None if tasks is None else tuple(tasks))
    own = None if definitions is None else str(definitions)
    manager = TaskManager(include_path=own, include_defaults=definitions is None)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, max_length=context, mixed_precision_dtype=autocast)
    began = time.monotonic()
    names = [task.harness for task in chosen]
    # errors of accuracies need no bootstrap
    found = simple_evaluate(model=lm, tasks=names, limit=limit, task_manager=manager, bootstrap_iters=0, num_fewshot=0)
    assert found is not None, "this is the only process"
    results = tuple(TaskResult(task=task, answers=answers_of(task, found["samples"][task.harness])) for task in chosen)
    return ZeroShot(tasks=results, seconds=time.monotonic() - began)


def answers_of(task: Task, samples: Sequence[dict[str, Any]]) -> tuple[Answer, ...]:
    """What the harness kept of every question, in the order of the data; a choice is the continuation without its space."""
    answers = []
    for sample in sorted(samples, key=lambda sample: int(sample["doc_id"])):
        scored = tuple(Likelihood(float(value), bool(greedy)) for value, greedy in sample["filtered_resps"])
        characters = tuple(len(continuation) - 1 for _, continuation in sample["arguments"])
        # a lone continuation is always the right one; where choices stand in the contexts, the harness's target is a text
        several, inside = len(scored) > 1, len({context for context, _ in sample["arguments"]}) == 1
        gold = 0 if not several else int(sample["target"]) if inside else task.item(sample["doc"]).gold
        answers.append(Answer(likelihoods=scored, gold=gold, characters=characters))
    return tuple(answers)
