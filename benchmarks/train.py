"""Training throughput of whole models on one device: tokens a second, share of the device's peak, memory.

    python benchmarks/train.py --out benchmarks/results/train.json

Each model trains on random tokens by the engine of ``miras train``: forward, backward, clipping and a step of AdamW, in bf16
on a GPU. The micro-batch is halved until it fits. ``transformer-340m`` is the same macro architecture around torch's
scaled_dot_product_attention, which takes flash attention in bf16. ``miras plan`` reads the file.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch

from miras.data import Bytes
from miras.lab.provenance import provenance
from miras.train.config import EngineConfig, ModelConfig, OptimConfig
from miras.train.engine import Engine
from miras.train.models import Objective, build_model
from miras.train.optimiser import adamw
from miras.train.passes import WARM, Passes, check_recording
from miras.train.plan import flops_per_token

MODELS = "yaad-340m,moneta-340m,memora-340m,gated_deltanet-340m,transformer-340m"
# dense bf16 operations a second, by the makers' data sheets
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def synchronise(device: torch.device) -> None:
    """Wait for the device's queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(engine: Engine, name: str, length: int, micro_batch: int, steps: int) -> dict[str, Any]:
    """The median step of one model."""
    device = engine.device
    torch.manual_seed(0)
    objective = Objective(build_model(ModelConfig(name=name), Bytes()))
    config = objective.model.config
    parameters = sum(parameter.numel() for parameter in objective.parameters())
    model, optimiser = engine.prepare(objective, adamw(objective, OptimConfig(), device))
    for group in optimiser.param_groups:
        group["lr"] = 1e-4
    ids = torch.randint(0, config.vocab_size, (micro_batch, length), device=device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, first = [], WARM + 2
    passes = Passes(model, engine)
    for _ in range(first + steps):
        synchronise(device)
        began = time.perf_counter()
        passes(ids, ids, None, ids.numel())
        engine.accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        passes.forget(optimiser)
        synchronise(device)
        seconds.append(time.perf_counter() - began)
    engine.accelerator.free_memory()
    return {
        "model": name,
        "parameters": parameters,
        "length": length,
        "micro_batch": micro_batch,
        "tokens_per_second": ids.numel() / sorted(seconds[first:])[steps // 2],
        "peak_memory_gb": engine.memory(),
        "flops_per_token": flops_per_token(config, length),
    }


def largest_that_fits(engine: Engine, name: str, length: int, micro_batch: int, steps: int) -> dict[str, Any]:
    """The measurement at the largest micro-batch, halved as often as needed, that the device has room for."""
    while True:
        try:
            return measured(engine, name, length, micro_batch, steps)
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                return {"model": name, "length": length, "failed": "out of memory at a micro-batch of 1"}
        micro_batch //= 2
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    """Measure every model and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--graph", action="store_true", help="record forward and backward pass and replay them (engine.graph)")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--peak", type=float, help="the device's operations a second; known for H100, H200, A100")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    asked = {"compile": arguments.compile, "graph": arguments.graph, "checkpointing": arguments.checkpointing}
    engine = Engine(EngineConfig(**asked))
    check_recording(engine, isolate=False)
    device = torch.cuda.get_device_name() if engine.device.type == "cuda" else "CPU"
    peak = arguments.peak or next((value for name, value in PEAKS.items() if name in device), None)
    rows, failed = [], []
    for name in arguments.models.split(","):
        row = largest_that_fits(engine, name, arguments.length, arguments.micro_batch, arguments.steps)
        if "failed" in row:
            failed.append(row)
        else:
            work = row["tokens_per_second"] * row["flops_per_token"]
            rows.append({**row, "model_flop_utilisation": work / peak if peak else None})
        print(json.dumps(row), flush=True)
        about = {
            "device": device,
            "peak_flops": peak,
            "precision": engine.accelerator.mixed_precision,
            "rows": rows,
            "failed": failed,
        }
        options = {**asked, "median_of": arguments.steps}
        arguments.out.write_text(json.dumps({**about, **options, **provenance("accelerate", "triton")}, indent=1) + "\n")


if __name__ == "__main__":
    main()
