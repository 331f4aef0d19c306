"""The engine: Hugging Face accelerate over torch's DDP and FSDP2, and the few sums that processes share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from accelerate import Accelerator, PartialState
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.tracking import filter_trackers
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, broadcast_object_list, set_seed
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from ..explanation import Asked, explain, refusal
from ..hf import MirasForCausalLM
from ..types import require
from .config import EngineConfig
from .models import Objective

ResultT = TypeVar("ResultT")
BLOCK = "MirasDecoderLayer"


class Engine:
    """One process among those that train together.

    Attributes:
        accelerator: accelerate's object.
        device: where this process computes.
        process, processes: its number, and how many there are.
        sharded: whether each process holds a part of every parameter (FSDP2).
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        if config.tf32:
            torch.set_float32_matmul_precision("high")
        self.sharded = config.parallel == "fsdp"
        on_cpu = config.device == "cpu" or not torch.accelerator.is_available()
        precision = {"auto": "no" if on_cpu else "bf16", "fp32": "no", "bf16": "bf16"}[config.precision]
        plugin = sharding_plugin(precision) if self.sharded else None
        self.accelerator = Accelerator(
            cpu=on_cpu,
            mixed_precision=precision,
            # on the CPU accelerate takes no plugin: see below
            fsdp_plugin=None if on_cpu else plugin,
        )
        self.device = self.accelerator.device
        self.process, self.processes = self.accelerator.process_index, self.accelerator.num_processes
        self.first = self.accelerator.is_main_process
        require(
            not self.sharded or self.processes > 1 or "RANK" in os.environ,
            "engine.parallel fsdp needs processes to share the model: start with torchrun or accelerate launch, or give "
            "--engine.parallel ddp",
        )
        if plugin is not None and on_cpu:
            shard_on_cpu(self.accelerator, plugin)

    def prepare(self, model: Objective, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, AcceleratedOptimizer]:
        """The model spread over the processes, and the optimiser of what each holds of it."""
        if self.config.checkpointing:
            model.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.config.recompute is not None:
            kept_in_stretches(model, self.config.recompute)
        if self.config.backend != "auto":
            model.model.set_backend(self.config.backend)
        if self.config.compile:
            for block in model.model.model.layers:
                block.compile()
        wrapped, accelerated = self.accelerator.prepare(model, optimiser)
        return wrapped, accelerated

    def about(self, model: nn.Module) -> dict[str, Any]:
        """How the model is spread, as it is and not as it was asked for."""
        sharded = sum(isinstance(parameter, DTensor) for parameter in model.parameters())
        return {
            "processes": self.processes,
            "device": str(self.device.type),
            "engine": str(self.accelerator.distributed_type.value),
            "precision": self.accelerator.mixed_precision,
            "threads": torch.get_num_threads(),
            "sharded_parameters": sharded,
        }

    def ways(self, model: MirasForCausalLM) -> list[str]:
        """By what each kind of memory will run here, and why; a :class:`ValueError` where a backend that is named cannot."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision, torch.float32)
        named = self.config.backend
        found = []
        for layer in model.memories():
            size = layer.chunk_size or layer.spec.chunk_size
            refused = refusal(layer.spec, named, Asked(self.device, True, dtype, layer.keys, size))
            instead = "give --engine.backend auto, or leave it out"
            require(refused is None, f"engine.backend {named} cannot run {layer.spec}: {refused}; {instead}")
            way = explain(layer.spec, self.device, dtype=dtype, channels=layer.keys, chunk_size=size)
            found.append(f"{way.form} form, {way.where if named == 'auto' else f'backend {named}, as asked for'}")
        return list(dict.fromkeys(found))

    def hold(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients are summed over the processes after the last micro-batch alone."""
        return nullcontext() if last else self.accelerator.no_sync(model)

    def total(self, *values: float | Tensor) -> list[float]:
        """Sums over the processes, in one exchange."""
        stacked = torch.stack([torch.as_tensor(value, dtype=torch.float64, device="cpu") for value in values])
        mine = stacked.to(self.device, torch.float64 if self.device.type != "mps" else torch.float32)
        return [float(value) for value in self.accelerator.reduce(mine, reduction="sum").tolist()]

    def agreed(self, value: Any) -> Any:
        """What the first process says."""
        return broadcast_object_list([value])[0] if self.processes > 1 else value

    def on_first(self, work: Callable[[], ResultT]) -> ResultT:
        """What some work gives that only the first process does; where it fails, it fails for all of them."""
        result: ResultT | None = None
        failure: Exception | None = None
        if self.first:
            try:
                result = work()
            except (ValueError, OSError) as error:
                failure = error
        result, failure = self.agreed((result, failure))
        if failure is not None:
            raise failure
        return result

    def track(self, trackers: tuple[str, ...], folder: Path, values: dict[str, Any]) -> None:
        """Start accelerate's trackers; a run there has the folder's name, and files of theirs go into it."""
        self.accelerator.project_configuration.set_directories(str(folder))
        self.accelerator.log_with = filter_trackers(list(trackers), self.accelerator.logging_dir)
        plain = {key: value if isinstance(value, int | float | str | bool) else str(value) for key, value in values.items()}
        names = {"wandb": {"name": folder.name, "dir": str(folder)}, "trackio": {"name": folder.name}}
        self.accelerator.init_trackers("miras", config=plain, init_kwargs=names)

    def seed(self, seed: int, step: int) -> None:
        """Set every generator as a function of (seed, step, process): random state is never saved, since it is known."""
        digest = hashlib.blake2b(f"{seed}/{step}/{self.process}".encode(), digest_size=4).digest()
        set_seed(int.from_bytes(digest, "big"))

    def memory(self) -> float:
        """The most of the device's memory that was held so far, in GB; on the CPU what the process holds now."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 1e9
        return float(psutil.Process().memory_info().rss) / 1e9


def kept_in_stretches(model: Objective, tokens: int) -> None:
    """Let every memory keep a state after so many tokens and no more, and compute the rest again in the backward pass."""
    memories = model.model.memories()
    require(bool(memories), "engine.recompute keeps states of memories, and this model has attention alone: leave it out")
    for layer in memories:
        layer.recompute = tokens


def sharding_plugin(precision: str) -> FullyShardedDataParallelPlugin:
    """FSDP2, a unit a block. In bf16 parameters are gathered in it, but gradients summed, and the loss left, in float32."""
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[BLOCK],
        reshard_after_forward=True,
        mixed_precision_policy=low if precision == "bf16" else None,
        cpu_ram_efficient_loading=False,
        state_dict_type="FULL_STATE_DICT",
    )


def shard_on_cpu(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin) -> None:
    """Let accelerate shard on the CPU, which torch can do and accelerate leaves out.

    From here on the very code runs that runs on accelerators: ``prepare`` calls torch's ``fully_shard`` on every block.
    """
    accelerator.state.fsdp_plugin = plugin
    # accelerate keeps it in two places, and copies the second over the first
    accelerator.state.distributed_type = DistributedType.FSDP
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
