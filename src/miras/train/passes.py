"""Forward and backward over a micro-batch: kernel after kernel, or recorded once and given to the GPU as a whole.

R rows, T tokens of a sequence, S documents in a packed batch
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn

from ..hf.loading import first_line
from ..types import require
from .engine import Engine
from .recorded import Recorded

# passes that compile and tune kernels before one is recorded
WARM = 3
ADVICE = "give --engine.graph false"


class Passes:
    """The passes of a training: each adds a micro-batch's share to the gradients of all parameters.

    A step of a small model is a thousand launches or more, and the processor takes longer over them than the GPU over its work.
    Recorded, the gradients must stay where they are: they are filled with 0 between steps, not given back.
    """

    def __init__(self, model: nn.Module, engine: Engine) -> None:
        self.model, self.engine = model, engine
        self.seen = 0
        self.recorded: Recorded[Tensor] | None = None

    def __call__(self, inputs: Tensor, targets: Tensor, bounds: Tensor | None, items: int) -> Tensor:
        """The share of the loss, as :class:`~miras.train.models.Objective` has it; ``[R,T]``, bounds ``[S+1]`` or None."""

        def learn(inputs: Tensor, targets: Tensor) -> Tensor:
            loss: Tensor = self.model(inputs, targets, bounds, items)
            # engines average gradients over processes
            self.engine.accelerator.backward(loss * self.engine.processes)
            return loss.detach()

        if not self.engine.config.graph:
            return learn(inputs, targets)
        self.seen += 1
        if self.seen <= WARM:
            return learn(inputs, targets)
        # micro-batches are alike, and ``items`` is their whole step's number of tokens where documents are not isolated
        if self.recorded is None:
            self.recorded = recording(learn, inputs, targets)
        return self.recorded.replay(inputs, targets).clone()

    def forget(self, optimiser: torch.optim.Optimizer) -> None:
        """Start the next step's gradients from 0."""
        optimiser.zero_grad(set_to_none=not self.engine.config.graph)


def recording(work: Callable[..., Tensor], *given: Tensor) -> Recorded[Tensor]:
    """The work as a CUDA graph, or one line on why there is none."""
    try:
        return Recorded(work, *given)
    except torch.OutOfMemoryError:
        # smaller micro-batches may be recorded, and who can take those waits for this error
        raise
    except RuntimeError as error:
        raise ValueError(f"engine.graph: this model's work cannot be recorded ({first_line(error)}): {ADVICE}") from error


def check_recording(engine: Engine, isolate: bool) -> None:
    """Refuse what cannot be recorded."""
    if not engine.config.graph:
        return
    device, kind = engine.device.type, engine.accelerator.distributed_type
    require(device == "cuda", f"engine.graph records the work of a GPU with CUDA, and this runs on {device}: {ADVICE}")
    alone = kind == DistributedType.NO
    require(alone, f"engine.graph is for one process without torchrun, not for {engine.processes} of {kind.value}: {ADVICE}")
    require(not isolate, f"engine.graph: steps with data.isolate differ in their documents: {ADVICE}")
