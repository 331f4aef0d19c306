"""One read of a split, as a plan names it."""

from __future__ import annotations

from ..data.shards import Tokens
from ..hf import MirasForCausalLM
from ..train.metrics import Line
from ..train.reading import by_place, sliding
from .plan_file import Read


def read_split(model: MirasForCausalLM, tokens: Tokens, wanted: Read, length: int) -> Line:
    """Windows that overlap by half, or the loss by place in long windows; ``length`` is the one of training."""
    own = wanted.tokens(length)
    return sliding(model, tokens, own) if wanted.kind == "sliding" else by_place(model, tokens, own, length)
