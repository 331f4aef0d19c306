"""Every option of training, defined once: the sections of a configuration file and of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..types import require
from .options import option

# peak learning rates: the paper's table for 120m to 760m, the others ours
PEAK_RATES = {
    "tiny": 8e-3,
    "small": 4e-3,
    "4m": 4e-3,
    "30m": 1.5e-3,
    "120m": 3e-3,
    "340m": 1.5e-3,
    "760m": 1.25e-3,
    "1.3b": 7e-4,
}
SMALL_RATE = 4e-3


def positive(section: str, **values: float | None) -> None:
    """Refuse what is zero or less."""
    for name, value in values.items():
        require(value is None or value > 0, f"{section}.{name} must be > 0, got {value}")


def at_least_zero(section: str, **values: float) -> None:
    """Refuse what is less than zero."""
    for name, value in values.items():
        require(value >= 0, f"{section}.{name} must be >= 0, got {value}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read, and how it is cut."""

    path: str | None = option(
        None,
        "a file or folder of .txt, .jsonl, .parquet (.xz, .gz), a folder of shards, or a dataset's name; none: embedded text",
    )
    valid_path: str | None = option(None, "text for validation, instead of a part of the above")
    valid_share: float = option(
        0.01, "the part of the documents that is set aside for validation; the embedded text is split already"
    )
    field: str = option("text", "the field or column that holds the text")
    subset: str | None = option(None, "the subset of a Hugging Face dataset")
    split: str = option("train", "the split of a Hugging Face dataset")
    max_tokens: int | None = option(None, "stop reading after so many training tokens, at the next eight million characters")
    on_bad: Literal["error", "skip"] = option("error", "bad lines and files: stop, or count them and go on")
    tokenizer: str = option("bytes", "bytes, a folder with a tokenizer, or a name on the Hugging Face hub")
    end: str | None = option(None, "the token that closes a document, where the tokenizer names none")
    cache: str = option("~/.cache/miras", "where tokenised text is kept")
    length: int = option(256, "tokens of a sequence")
    batch: int = option(4, "sequences of a step, over all processes")
    isolate: bool = option(False, "start memories afresh at every document, rather than read on over its end")
    workers: int = option(0, "processes that read ahead; 0 reads in between steps")

    def __post_init__(self) -> None:
        positive("data", length=self.length, batch=self.batch, max_tokens=self.max_tokens)
        at_least_zero("data", workers=self.workers)
        require(0 < self.valid_share < 1, f"data.valid_share must lie strictly between 0 and 1, got {self.valid_share}")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW, its learning rate over time, and how long."""

    steps: int = option(1200, "optimiser steps")
    tokens: int | None = option(None, "tokens to train on; takes the place of steps")
    lr: float | None = option(
        None, "peak learning rate; none: the one for the size that the model's name ends with, 4e-3 for others"
    )
    warmup: float = option(0.05, "the part of the steps over which the rate rises to its peak")
    final: float = option(0.1, "the part of the peak at which the cosine ends")
    weight_decay: float = option(0.1, "on matrices; norms, biases, gates, convolutions and initial memories have none")
    beta1: float = option(0.9, "decay of the mean gradient")
    beta2: float = option(0.95, "decay of the mean squared gradient")
    eps: float = option(1e-8, "added to the root of the mean squared gradient")
    clip: float = option(1.0, "largest norm of the gradient")

    def __post_init__(self) -> None:
        positive("optim", steps=self.steps, tokens=self.tokens, lr=self.lr, eps=self.eps, clip=self.clip)
        at_least_zero("optim", weight_decay=self.weight_decay)
        for name in ("warmup", "final"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"optim.{name} must lie between 0 and 1, got {value}")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            require(0 <= value < 1, f"optim.{name} must be 0 or more and less than 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How the work is done; nothing here changes what is computed, but for rounding."""

    device: Literal["auto", "cpu"] = option("auto", "auto takes an accelerator where there is one")
    parallel: Literal["ddp", "fsdp"] = option("ddp", "several processes: a copy of the model each, or a part of it each")
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "auto is bf16 on an accelerator, fp32 on the CPU")
    micro_batch: int | None = option(None, "sequences at once in a process; none: its whole part of the batch")
    compile: bool = option(False, "torch.compile on every block")
    graph: bool = option(False, "record a micro-batch's work once and replay it: no launches to wait for, on one GPU")
    checkpointing: bool = option(False, "compute activations again in the backward pass, rather than keep them")
    recompute: int | None = option(None, "tokens of a memory between states that are kept: what lies between is computed again")
    backend: Literal["auto", "torch", "triton", "fla"] = option(
        "auto", "what runs the memories, as in miras.memorize: one that is named is used or refused"
    )
    tf32: bool = option(False, "let a GPU multiply float32 in TF32, which shortens mantissas to 10 bits")
    threads: int | None = option(None, "CPU threads of a process; none: torch's choice")

    def __post_init__(self) -> None:
        positive("engine", micro_batch=self.micro_batch, threads=self.threads, recompute=self.recompute)
        require(
            not (self.graph and self.checkpointing),
            "engine.graph cannot record engine.checkpointing, which looks at random states: give one of them",
        )


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints."""

    every: int = option(300, "steps between checkpoints")
    seconds: float | None = option(None, "seconds between checkpoints, instead of steps; there is always one at the end")
    keep: int = option(2, "how many checkpoints are kept, the newest")

    def __post_init__(self) -> None:
        positive("save", every=self.every, seconds=self.seconds, keep=self.keep)


@dataclass(frozen=True, kw_only=True)
class SafetyConfig:
    """When a step is skipped, and when training stops."""

    spike: float = option(8.0, "skip a step whose loss is so many deviations above its running mean")
    memory: int = option(50, "steps that the running mean and deviation remember")
    patience: int = option(10, "stop after so many skipped steps in a row")
    lost: float = option(0.25, "stop when the mean loss has risen again by this share of its fall, and to 1.5 times its lowest")

    def __post_init__(self) -> None:
        positive("safety", spike=self.spike, memory=self.memory, patience=self.patience, lost=self.lost)


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What is shown and written."""

    every: int = option(10, "steps between lines of metrics")
    eval_every: int = option(300, "steps between validations; there is always one at the end")
    eval_sequences: int = option(256, "sequences that a validation reads, evenly spread over the split")
    noise_every: int | None = option(
        None, "steps between measurements of how far noise on the keys travels; none: with validations, 0: never"
    )
    trackers: tuple[str, ...] = option((), "tensorboard, wandb or trackio, through accelerate")
    plot: bool = option(True, "a picture of the curves at the end of every start")
    prompt: str = option("def ", "what the sample at the end goes on from")
    sample: int = option(200, "tokens of the sample at the end; 0 for none")

    def __post_init__(self) -> None:
        positive("log", every=self.every, eval_every=self.eval_every, eval_sequences=self.eval_sequences)
        at_least_zero("log", sample=self.sample, noise_every=self.noise_every or 0)
        known = ("tensorboard", "wandb", "trackio")
        for tracker in self.trackers:
            require(tracker in known, f"log.trackers: {tracker!r} is none of {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The run as a whole."""

    folder: str | None = option(None, "where everything is written; none: the next free out/<model>-<number>")
    seed: int = option(0, "of the initial weights, the order of the data, and all else that is random")
    seconds: float | None = option(None, "save and leave after so many seconds; --resume goes on from there")
    finish: float | None = option(None, "leave at once where the first steps say that the run takes more seconds than that")

    def __post_init__(self) -> None:
        positive("run", seconds=self.seconds, finish=self.finish)
        require(0 <= self.seed < 2**32, f"run.seed must lie between 0 and 2**32 - 1, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained."""

    name: str = option("yaad-tiny", "PRESET-SIZE, PRESET-anchored-SIZE, with -h for a hybrid, or a folder with a saved model")
    choices: tuple[str, ...] = option((), "arguments of the preset, such as p=2.8,q=3,link=exact")
    spec: str | None = option(None, "the memory as JSON, as miras.Spec.to_json writes it, instead of the preset's")
    layers: int | None = option(None, "blocks, instead of the size's")
    dim: int | None = option(None, "width, instead of the size's")
    inner: int | None = option(None, "inner width of the SwiGLU, instead of the size's")
    heads: int | None = option(None, "heads, instead of the size's")
    vocab_size: int | None = option(None, "rows of the embedding, instead of the size's")
    chunk_size: int | None = option(None, "tokens of a chunk of the memory, instead of the preset's")
    window: int | None = option(None, "tokens that a hybrid's attention sees, instead of the size's")
    rope: bool | None = option(None, "rotary positions on q and k, instead of what the preset has")
    convolution: int | None = option(None, "taps of the short convolution on q, k and v, 0 for none, instead of the preset's")
    silu: bool | None = option(None, "q, k and v through SiLU, instead of what the preset has")
    output_gate: Literal["silu", "sigmoid", "none"] | None = option(None, "of a head's output, instead of the preset's")
    value_norm: bool | None = option(None, "each head's value scaled to unit RMS, instead of what the preset has")
    step_sum: float | None = option(
        None, "what the steps of keys alike add up to at most, 0 for no limit, instead of the preset's"
    )
    step: float | None = option(None, "the relative step that a memory starts with, instead of the preset's")
    step_limit: float | None = option(None, "the largest relative step, instead of the preset's")
    decay: float | None = option(None, "the decay, -log alpha, that a memory starts with, instead of the preset's")
    decay_limit: float | None = option(None, "the largest decay of a token, instead of the preset's, where most have none")
    pace: float | None = option(None, "how fast gates learn beside the rest: 0.1 for gates that a high rate throws off")
    start: float | None = option(None, "standard deviation of a deep memory's initial weights, instead of 1")

    def __post_init__(self) -> None:
        positive("model", layers=self.layers, dim=self.dim, inner=self.inner, heads=self.heads)
        positive("model", vocab_size=self.vocab_size, chunk_size=self.chunk_size, window=self.window)
        positive(
            "model",
            step=self.step,
            step_limit=self.step_limit,
            decay=self.decay,
            decay_limit=self.decay_limit,
            pace=self.pace,
            start=self.start,
        )
        require(self.step_sum is None or self.step_sum >= 0, f"model.step_sum must be >= 0, got {self.step_sum}")
        require(self.spec is None or not self.choices, "model.spec replaces the preset that model.choices are for: give one")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    save: SaveConfig = field(default_factory=SaveConfig)
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def steps(self) -> int:
        """Optimiser steps, from the tokens where those are given."""
        if self.optim.tokens is None:
            return self.optim.steps
        return max(-(-self.optim.tokens // (self.data.batch * self.data.length)), 1)

    @property
    def peak(self) -> float:
        """The peak learning rate, by the size in the model's name where none is given."""
        if self.optim.lr is not None:
            return self.optim.lr
        named = [PEAK_RATES[part] for part in Path(self.model.name).name.split("-") if part in PEAK_RATES]
        return named[0] if named else SMALL_RATE
