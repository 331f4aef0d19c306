"""A trial: one model learns one task from one seed at one learning rate, and is read at longer or harder versions of it."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..hf.loading import first_line
from ..train.recorded import Recorded
from ..train.schedule import rate_at
from ..types import require
from .contestant import Contestant
from .learner import Learner, learner_of
from .tasks import HELD_OUT, Batch, Task

Precision = Literal["float32", "bf16"]
# steps before the clock starts (kernels are compiled and tuned in them), and steps that are timed
WARM, TIMED = 10, 20
# the step that is recorded: those before it compile kernels and make the optimiser's state
RECORD = 5
# a reading of a sequence of so many times the length takes so much longer; checks and readings cost about this many steps
READING_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class Trial:
    """All that a result depends on, but for the machine.

    Attributes:
        task: what is learned, with its settings.
        model: what learns it.
        seed: of the initial weights and of the sequences.
        rate: the largest learning rate; it rises over a tenth of the steps, then falls by half a cosine to a tenth.
        steps: the most steps that are taken; fewer where the task is solved before.
        rows: sequences of a step.
        decay: weight decay of matrices; embeddings have none.
        check: steps from one check to the next.
        precision: bf16 stands for autocast.
    """

    task: Task
    model: Contestant
    seed: int = 0
    rate: float = 2e-3
    steps: int = 3000
    rows: int = 64
    decay: float = 0.1
    check: int = 100
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "check"):
            require(getattr(self, name) >= 1, f"{name} must be 1 or more, got {getattr(self, name)}")
        require(self.steps <= HELD_OUT, f"steps must be at most {HELD_OUT}, got {self.steps}: later ones are held out")
        require(self.rate > 0, f"rate must be > 0, got {self.rate}")
        require(self.precision in ("float32", "bf16"), f"precision is float32 or bf16, got {self.precision!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values that say which trial it is."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        model = dataclasses.asdict(self.model.settled())
        return own | {"task": {"name": self.task.name, **dataclasses.asdict(self.task)}, "model": model}


class OutOfTimeError(Exception):
    """A trial would not end in time; nothing of it is kept."""


class Check(NamedTuple):
    """What was seen after so many steps: the loss and the norm of the gradient in the last of them, the held-out score."""

    step: int
    loss: float
    gradient: float
    score: float


def optimiser_of(learner: Learner, decay: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW, with weight decay on the matrices of linear maps inside the stack."""
    edges = {id(parameter) for parameter in learner.edges()}
    matrices = [
        module.weight for module in learner.modules() if isinstance(module, nn.Linear) and id(module.weight) not in edges
    ]
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in learner.parameters() if id(parameter) not in chosen]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    recorded = device.type == "cuda"
    # what is recorded on a GPU reads the rate where it stands
    rate = torch.zeros((), device=device) if recorded else 0.0
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=device.type in ("cuda", "cpu"), capturable=recorded)


class Run:
    """A trial under way on a device."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.trial, self.device = trial, device
        torch.manual_seed(trial.seed)
        self.learner = learner_of(trial.model, trial.task).to(device)
        self.optimiser = optimiser_of(self.learner, trial.decay, device)
        self.recorded: Recorded[tuple[Tensor, Tensor]] | None = None
        # why a step could not be recorded
        self.unrecorded = "" if device.type == "cuda" else "not on a GPU"

    def autocast(self) -> torch.autocast:
        """Where matrices are multiplied in bf16, if the trial says so."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.trial.precision == "bf16")

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """One step; the loss and the norm of the gradient, which nobody waits for.

        On a GPU a step of so small a model is mostly the processor's work, so that it is recorded once and then replayed.
        """
        rate = rate_at(step, steps=self.trial.steps, peak=self.trial.rate, warmup=0.1, final=0.1)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        batch = self.trial.task.batch(self.trial.rows, seed=self.trial.seed, step=step, device=self.device)
        if self.recorded is not None:
            return self.recorded.replay(*batch)
        if step == RECORD and not self.unrecorded:
            try:
                self.recorded = Recorded(lambda *held: self.learn(type(batch)(*held)), *batch)
            except RuntimeError as error:
                self.unrecorded = first_line(error)
                return self.learn(batch)
            return self.recorded.replay(*batch)
        return self.learn(batch)

    def learn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients and a step of the optimiser; the loss and the norm of the gradient."""
        self.optimiser.zero_grad()
        with self.autocast():
            loss = self.learner.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        self.optimiser.step()
        return loss.detach(), norm

    @torch.no_grad()
    def score(self, task: Task, rows: int, first: int) -> float:
        """The score over so many held-out sequences, as many tokens at once as in a few steps of training."""
        self.learner.eval()
        once = max(1, min(rows, 4 * self.trial.rows * self.trial.task.length // task.length))
        gained = total = torch.zeros((), dtype=torch.float64, device=self.device)
        for number in range(-(-rows // once)):
            batch = task.batch(once, seed=self.trial.seed, step=HELD_OUT + first + number, device=self.device)
            with self.autocast():
                one, all_ = self.learner.score(batch)
            gained, total = gained + one, total + all_
        self.learner.train()
        return float(gained / total)

    def wait(self) -> float:
        """The time, once the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()


def finite(value: float) -> float | None:
    """A number that JSON knows; None for one that overflowed."""
    return value if math.isfinite(value) else None


def perform(trial: Trial, device: torch.device, *, seconds: float = math.inf, rows: int = 512) -> dict[str, Any]:
    """Train, stop when the task is solved, then read; the result as plain JSON values.

    Args:
        trial: what is done.
        device: where.
        seconds: the time there is; a trial that would take longer is given up, once its steps are timed, by an
            :class:`OutOfTimeError`.
        rows: held-out sequences of a check; readings take twice as many.
    """
    began = time.monotonic()
    run = Run(trial, device)
    checks, each = train(run, began + seconds, rows)
    trained = run.wait() - began
    readings = {
        name: finite(run.score(task, max(64, 2 * rows // (task.length // trial.task.length)), 1000))
        for name, task in trial.task.readings().items()
    }
    solved = [check.step for check in checks if check.score >= trial.task.solved]
    return {
        "trial": trial.to_dict(),
        "score": next(iter(readings.values())),
        "readings": readings,
        "chance": trial.task.chance,
        "solved_at": solved[0] if solved else None,
        "steps_taken": checks[-1].step,
        "finite": all(math.isfinite(value) for check in checks for value in check),
        "parameters": {"body": run.learner.body(), "all": sum(parameter.numel() for parameter in run.learner.parameters())},
        "unrecorded": run.unrecorded,
        "seconds": round(run.wait() - began, 2),
        "seconds_training": round(trained, 2),
        "seconds_a_step": round(each, 5) if each else round(trained / checks[-1].step, 5),
        "curve": [[finite(round(value, 5)) for value in check] for check in checks],
    }


def train(run: Run, deadline: float, rows: int) -> tuple[list[Check], float]:
    """Take steps until the task is solved, the loss overflows or there are no more; every check, and seconds a step or 0.

    Where the steps that are left would end after ``deadline``, an :class:`OutOfTimeError`.
    """
    trial = run.trial
    checks: list[Check] = []
    clock = each = 0.0
    for step in range(trial.steps):
        if step == WARM:
            clock = run.wait()
        timed = step == WARM + TIMED
        if timed:
            each = (run.wait() - clock) / TIMED
        if timed or (each and step % trial.check == 0):
            # later with the checks, which on a busy machine take longer than the steps
            pace = (run.wait() - clock) / (step - WARM)
            left = deadline - time.monotonic()
            if pace * (trial.steps - step + READING_STEPS) > left:
                raise OutOfTimeError(f"{trial.steps - step} steps of {pace:.3f} s would take longer than the {left:.0f} s left")
        loss, norm = run.step(step)
        if (step + 1) % trial.check == 0 or step + 1 == trial.steps:
            checks.append(Check(step + 1, float(loss), float(norm), run.score(trial.task, rows, 0)))
            if checks[-1].score >= trial.task.solved or not math.isfinite(checks[-1].loss):
                break
    return checks, each
