"""What is written down of a run: what it was, what came out, how fast, where."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import torch

from ..hf import MirasConfig
from ..train.metrics import Line, lines
from ..train.run import provenance
from ..train.watch import WARM, Ending
from . import results
from .plan_file import Options, Run


def device() -> str:
    """What computes here."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def source(line: Line, commit: str | None) -> Line:
    """Machine, versions, commit, time, and the command of one run; a copy without its history is told its commit."""
    found = provenance() | {"command": f"python experiments/run.py {line['experiment']} --only {line['run']}"}
    git = found.pop("git")
    known = f"{git['commit']}{'-changed' if git['changed'] else ''}" if git else None
    return {**found, "commit": commit or known}


def about(run: Run) -> Line:
    """Which run it is."""
    return {
        "experiment": run.experiment,
        "run": run.name,
        "stage": run.stage,
        "model": run.model,
        "variant": run.variant,
        "seed": run.seed,
        "key": run.key,
        "options": {name: list(value) if isinstance(value, tuple) else value for name, value in run.options.items()},
    }


def of_failure(run: Run, trace: str, trained: Line | None = None) -> Line:
    """A run that met an error; where it had been ``trained`` by then, with what is known of that."""
    said = trace.strip().splitlines()[-1]
    nothing: Line = {"device": device(), "shape": [], "seconds_a_step": None}
    return {**about(run), **(trained or nothing), "status": "failed", "said": said, "trace": trace[-4000:]}


def of_run(run: Run, folder: Path, ending: Ending, options: Options) -> Line:
    """A run that ended, as its folder tells it."""
    config = run.config(options)
    known = lines(folder / "metrics.jsonl")
    steps, checks = [line for line in known if "loss" in line], [line for line in known if "valid_loss" in line]
    size = config.data.batch * config.data.length
    paces = [line["tokens_per_second"] for line in steps[WARM:] or steps]
    line: Line = {
        **about(run),
        "status": "diverged" if ending.reason == "stopped" else ending.reason,
        "said": ending.said,
        "device": device(),
        "shape": [config.data.length, config.data.batch],
        "seconds_a_step": size / statistics.median(paces),
        "tokens_per_second": statistics.median(paces),
        "memory_gb": max(step["memory_gb"] for step in steps),
        "micro_batch": config.engine.micro_batch or config.data.batch,
    }
    return line if ending.reason == "slow" else line | course(folder, steps, checks, size, ending.reason == "finished")


def course(folder: Path, steps: list[Line], checks: list[Line], size: int, finished: bool) -> Line:
    """How the loss went, over at most a hundred points."""
    checks = [{**check, "tokens": check["step"] * size} for check in checks]
    last = checks[-1] if checks else None
    return {
        "steps": steps[-1]["step"],
        "tokens": steps[-1]["tokens"],
        "skipped": sum("skipped" in step for step in steps),
        "parameters": parameters(folder) if finished else None,
        "valid": last and {"nats": last["valid_loss"], "bits_per_byte": last["valid_bits_per_byte"]},
        "curve": results.thinned(steps, "bits_per_byte"),
        "valid_curve": results.thinned(checks, "valid_bits_per_byte"),
        "grad_norm": results.thinned(steps, "grad_norm"),
    }


def parameters(folder: Path) -> dict[str, int]:
    """How many there are, with the embeddings and without, and the inner width that was chosen to meet the number."""
    model = MirasConfig.from_pretrained(folder / "model")
    whole = int(json.loads((folder / "run.json").read_text())["parameters"])
    return {"all": whole, "body": whole - model.vocab_size * model.hidden_size, "inner": model.intermediate_size}
