"""How far noise on the keys travels in the model that is being trained, measured now and then."""

from __future__ import annotations

import torch

from ..data.sequences import batch_of, spread
from ..diagnostics import noise_response
from ..hf import MirasForCausalLM
from ..nn import MirasLayer
from ..types import require
from .config import TrainConfig
from .job import Job
from .metrics import Line

RELATIVE = 1e-6
# a tame memory moves by less when its keys move by RELATIVE
TAME = 1e-4


def interval(config: TrainConfig, model: MirasForCausalLM) -> int:
    """Steps between measurements, 0 for none: as asked for, or with every validation where it can be measured."""
    asked, sharded = config.log.noise_every, config.engine.parallel == "fsdp"
    keyed = all(part.k_proj is not None for part in model.modules() if isinstance(part, MirasLayer))
    if asked is None:
        return config.log.eval_every if keyed and not sharded else 0
    advice = "leave --log.noise_every away"
    require(not asked or not sharded, f"log.noise_every: with engine.parallel fsdp no process holds a whole memory: {advice}")
    require(not asked or keyed, f"log.noise_every: {config.model.name} has no key to move, it is tied to the decay: {advice}")
    return asked


def measured(job: Job, step: int) -> Line:
    """On one validation sequence: how far noise on the keys moves a memory at most, how far bf16 moves the worst on average.

    In float32 whatever the training's precision; the same on every process.
    """
    config, tokens = job.config, job.corpus.valid
    batch = batch_of(tokens, spread(tokens, config.data.length, 1), config.data.length, False)
    model = job.language_model.eval()
    # a compiled block would not see the hooks that catch its memory's input
    with torch.compiler.set_stance("force_eager"):
        found = noise_response(model.model, input_ids=batch.inputs.to(job.engine.device), use_cache=False, relative=RELATIVE)
    return {
        "step": step,
        "noise_response": max(float(one.response.max()) for one in found.values()),
        "noise_bf16": max(float(one.low_precision.mean()) for one in found.values()),
    }


def said(line: Line) -> str:
    """A measurement in words."""
    response = line["noise_response"]
    verdict = "" if response < TAME else ": a memory multiplies noise, and trains on it (docs/training.md)"
    return (
        f"step {line['step']}: noise of {RELATIVE:.0e} on the keys moves the memories by {response:.1e}, "
        f"bf16 by {line['noise_bf16']:.1%}{verdict}"
    )
