"""What is asked of a finished model, as a plan names it."""

from __future__ import annotations

import math
from pathlib import Path

from ..data.shards import Tokens
from ..eval.zero_shot import ZeroShot, zero_shot
from ..hf import MirasForCausalLM
from ..hf.loading import Loaded
from ..train.metrics import Line
from ..train.reading import by_place, precision, sliding
from . import needle_course
from .plan_file import QUESTIONS, Read

# tokens of training that take about as long as the eight sets, most of it for HellaSwag's endings
ZERO_SHOT = 8e6


def folder_of(wanted: Read, data: Path, own: str) -> Path:
    """Where what is read lies, of the folders in ``data``."""
    return data / (wanted.kind if wanted.kind in QUESTIONS else wanted.data or own)


def read_of(loaded: Loaded, wanted: Read, data: Path, own: str, length: int) -> Line:
    """A split's loss, or answers; ``data`` holds the folders, ``own`` is the plan's, ``length`` that of its training."""
    (model, tokenizer), folder = loaded, folder_of(wanted, data, own)
    if wanted.kind == "zero-shot":
        return answers(zero_shot(model, tokenizer, folder, autocast=precision(model.device)))
    if wanted.kind == "needles":
        return needle_course.needles(model, folder)
    return read_split(model, Tokens(folder, wanted.split), wanted, length)


def answers(found: ZeroShot) -> Line:
    """The metrics that the paper prints, each with its standard error; JSON has no word for an infinite perplexity."""
    tasks: Line = {}
    for one in found.tasks:
        tasks[one.task.name] = {m.name: [m.value if math.isfinite(m.value) else None, m.error] for m in one.paper}
    return {"tasks": tasks}


def read_split(model: MirasForCausalLM, tokens: Tokens, wanted: Read, length: int) -> Line:
    """Windows that overlap by half, or the loss by place in long windows; ``length`` is the one of training."""
    own = wanted.tokens(length)
    return sliding(model, tokens, own) if wanted.kind == "sliding" else by_place(model, tokens, own, length)


def cost(wanted: Read, data: Path, own: str) -> float:
    """Tokens of training that take about as long: a read has no backward pass, and windows that overlap count twice."""
    if wanted.kind == "zero-shot":
        return ZERO_SHOT
    if wanted.kind == "needles":
        return needle_course.reading_cost(folder_of(wanted, data, own))
    return Tokens(folder_of(wanted, data, own), wanted.split).count * (2 if wanted.kind == "sliding" else 1) / 2
