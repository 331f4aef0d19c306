"""``miras plan``: parameters, FLOPs a token, memory a GPU and hours, before anything is started.

T tokens of a sequence, C channels
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..algorithm import NonParametric
from ..hf import MirasConfig, MirasForCausalLM
from ..nn import MirasLayer
from ..types import require
from .config import TrainConfig
from .models import model_changes
from .progress import clock

# tokens over which the FLOPs of a block are counted: two chunks of 64, since a memory's cost is linear in the length
COUNTED = 128
# float32 weight, gradient, and two moments
BYTES_PER_PARAMETER = 16
# the share of a GPU's speed that is left when many work together: an assumption, printed with every estimate
EFFICIENCY = 0.9
KEPT = "benchmarks/results/train.json"
# where one stands, in the checkout, and where a wheel has it
RESULTS = (Path(KEPT), Path(__file__).resolve().parents[3] / KEPT, Path(__file__).resolve().with_name("measured.json"))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured throughput of one GPU.

    Attributes:
        model: a configuration's name, such as yaad-340m.
        length, micro_batch: tokens of a sequence, sequences at once.
        tokens_per_second: of training, forward, backward and step.
        peak_memory_gb: of the GPU.
        flops_per_token: by :func:`flops_per_token`.
        parameters: of the model.
        device: the GPU's name.
        source: file, date and commit, for people.
    """

    model: str
    length: int
    micro_batch: int
    tokens_per_second: float
    peak_memory_gb: float
    flops_per_token: float
    parameters: int
    device: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run takes on some GPUs."""

    gpus: int
    state_gb: float
    hours: float | None


def flops_per_token(config: MirasConfig, length: int) -> float:
    """Floating-point operations of forward and backward for one token, recomputation aside.

    Blocks with a memory are run on the CPU over a few tokens and counted by torch. Attention is 6 operations a parameter and
    12 C for every token it sees, on average. The head has 6 operations a parameter.
    """
    per_block = [block_flops(block, config, length) for block in small_model(config).model.layers]
    head = 6.0 * config.vocab_size * config.hidden_size
    depth = config.num_hidden_layers
    return head + sum(per_block[number % len(per_block)] for number in range(depth))


def small_model(config: MirasConfig) -> MirasForCausalLM:
    """The model with one block of each kind and hardly a vocabulary."""
    plain = config.to_dict() | {"num_hidden_layers": 1 if config.sliding_window is None else 2, "vocab_size": 8}
    plain |= {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
    return MirasForCausalLM(MirasConfig(**plain))


def block_flops(block: torch.nn.Module, config: MirasConfig, length: int) -> float:
    """Operations of one block for one token."""
    mixer: Any = block.mixer
    memory = isinstance(mixer, MirasLayer) and not isinstance(mixer.spec.algorithm, NonParametric)
    if memory:
        x = torch.randn(1, COUNTED, config.hidden_size, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            y, _ = block(x)
            y.sum().backward()
        return float(counter.get_total_flops()) / COUNTED
    window = config.sliding_window if not isinstance(mixer, MirasLayer) else None
    seen = length / 2 if window is None or window >= length else window - window**2 / (2 * length)
    return 6.0 * sum(p.numel() for p in block.parameters()) + 12.0 * config.hidden_size * seen


def parameters_of(config: MirasConfig) -> int:
    """The number of parameters, counted without making them."""
    with torch.device("meta"):
        model = MirasForCausalLM(config)
    return sum(parameter.numel() for parameter in model.parameters())


def measurements(path: Path | None) -> list[Measurement]:
    """Measured throughputs of a file, or of the project's own; none where there is no file."""
    if path is None:
        path = next((known for known in RESULTS if known.is_file()), None)
        if path is None:
            return []
    require(path.is_file(), f"no such file of measurements: {path}")
    try:
        content = json.loads(path.read_text())
        source = f"{path.name}, {content['date']}, commit {content['commit']}"
        keys = Measurement.__dataclass_fields__.keys() - {"source", "device"}
        rows = [{key: row[key] for key in keys} for row in content["rows"]]
        return [Measurement(**row, device=content["device"], source=source) for row in rows]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of measurements, as benchmarks/train.py writes them: {error!r}") from None


def nearest(known: list[Measurement], name: str, flops: float) -> Measurement | None:
    """The measurement of this very model, else of the same preset, the nearest in FLOPs a token."""
    same = [row for row in known if row.model == name]
    family = [row for row in known if row.model.split("-")[0] == name.split("-")[0]]
    return min(same or family, key=lambda row: abs(row.flops_per_token - flops), default=None)


def estimate(parameters: int, flops: float, tokens: float, gpus: int, sharded: bool, row: Measurement | None) -> Estimate:
    """Memory of the state and hours on some GPUs: hours = tokens / (GPUs * efficiency * tokens a second of one).

    Where another model was measured, or this one when it had other FLOPs, its tokens a second are scaled: the same utilisation.
    """
    state = BYTES_PER_PARAMETER * parameters / (gpus if sharded else 1) / 1e9
    if row is None:
        return Estimate(gpus=gpus, state_gb=state, hours=None)
    share = EFFICIENCY if gpus > 1 else 1.0
    return Estimate(gpus=gpus, state_gb=state, hours=tokens / (gpus * share * speed_of(row, flops)) / 3600)


def speed_of(row: Measurement, flops: float) -> float:
    """Tokens a second of a model with so many FLOPs a token, at the utilisation that was measured."""
    return row.tokens_per_second * row.flops_per_token / flops


def plan_command(config: TrainConfig, gpus: tuple[int, ...], path: Path | None) -> None:
    """Print what a run takes."""
    model = MirasConfig.preset(config.model.name, **model_changes(config.model))
    parameters, flops = parameters_of(model), flops_per_token(model, config.data.length)
    tokens = config.steps * config.data.batch * config.data.length
    row = nearest(measurements(path), config.model.name, flops)
    print(f"model       {config.model.name}, {parameters:,} parameters")
    print(f"tokens      {tokens:,}: {config.steps:,} steps of {config.data.batch} x {config.data.length}")
    ratio = flops / (6 * parameters)
    print(f"FLOPs       {flops:.3g} a token, forward and backward ({ratio:.2f} x 6 a parameter); {flops * tokens:.3g} in all")
    print(f"checkpoint  {12 * parameters / 1e9:.1f} GB each, {config.save.keep} kept")
    print(basis(config, row, flops))
    for count in gpus:
        found = estimate(parameters, flops, tokens, count, config.engine.parallel == "fsdp", row)
        print(line_of(found, config, row))


def basis(config: TrainConfig, row: Measurement | None, flops: float) -> str:
    """Which measurement the hours come from."""
    if row is None:
        return (
            "throughput  not measured for this preset, so there are no hours: benchmarks/train.py measures it on a GPU, and "
            "--measured names the file that it writes"
        )
    how = "this very model" if row.model == config.model.name else row.model
    speed = f"{speed_of(row, flops):,.0f} tokens/s on one {row.device}: {row.tokens_per_second:,.0f}, measured with {how}"
    return (
        f"throughput  {speed} at {row.flops_per_token:.3g} FLOPs a token, {row.micro_batch} x {row.length} tokens at once "
        f"({row.source}), scaled to {flops:.3g}; {EFFICIENCY:.0%} of it a GPU when there are several, an assumption"
    )


def line_of(found: Estimate, config: TrainConfig, row: Measurement | None) -> str:
    """One line for one number of GPUs."""
    text = (
        f"{found.gpus:>4} GPU{'s' if found.gpus > 1 else ' '}  {found.state_gb:7.1f} GB of weights, gradients and moments a GPU"
    )
    if row is not None and row.model == config.model.name:
        working = row.peak_memory_gb - BYTES_PER_PARAMETER * row.parameters / 1e9
        micro = config.engine.micro_batch or row.micro_batch
        scaled = working * micro * config.data.length / (row.micro_batch * row.length)
        text += f" + {scaled:.1f} GB to work in"
    else:
        text += " + activations, not measured"
    if found.hours is None:
        return text
    return f"{text}   {found.hours:8.1f} hours" if found.hours >= 1 else f"{text}   {clock(3600 * found.hours):>8}"
