"""What a run works with, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from ..data.corpus import Corpus
from ..hf import MirasForCausalLM
from .config import TrainConfig
from .engine import Engine
from .models import Objective
from .passes import Passes
from .safety import Spikes


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that a run works with."""

    config: TrainConfig
    engine: Engine
    corpus: Corpus
    model: nn.Module
    optimiser: AcceleratedOptimizer
    passes: Passes
    folder: Path
    parameters: int
    began: float
    describe: Callable[[Path], None]

    @property
    def language_model(self) -> MirasForCausalLM:
        """The model without what the engine wraps it in."""
        objective = self.engine.accelerator.unwrap_model(self.model)
        assert isinstance(objective, Objective)
        return objective.model

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.folder / "checkpoints"

    @property
    def micro_batch(self) -> int:
        """Sequences at once in a process."""
        return self.config.engine.micro_batch or max(self.config.data.batch // self.engine.processes, 1)


@dataclass
class Place:
    """Where a run stands: what a checkpoint holds beside weights and moments."""

    step: int = 0
    spikes: Spikes = field(default_factory=Spikes)

    def to_json(self) -> dict[str, Any]:
        """As JSON; floats come back as they were."""
        return {"step": self.step, "spikes": list(self.spikes)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Place:
        """The place that ``to_json`` wrote."""
        return cls(state["step"], Spikes(*state["spikes"]))


def bits_per_nat(bytes_per_token: float) -> float:
    """Bits per byte of one nat per token."""
    return 1 / (math.log(2) * bytes_per_token)
