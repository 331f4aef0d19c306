"""Checkpoints: whole or not there, and the same for any number of processes.

A checkpoint is a folder ``step-00000100`` with ``model.safetensors``, ``config.json`` (so that transformers can load it),
``optimizer.safetensors``, ``state.json`` and, written last, ``manifest.json`` with size and SHA-256 of every other file. It is
written beside its place and renamed when every byte has reached the disk.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ..files import synced, writing_tensors
from .engine import Engine

MODEL, OPTIMISER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
PREFIX = "model."


def folder_of(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint before a step lies."""
    return checkpoints / f"step-{step:08d}"


def save(
    engine: Engine,
    model: nn.Module,
    optimiser: AcceleratedOptimizer,
    checkpoints: Path,
    step: int,
    state: dict[str, Any],
    describe: Callable[[Path], None],
    keep: int,
) -> Path:
    """Write a checkpoint; all processes take part, the first one writes.

    Args:
        engine: the processes.
        model, optimiser: as ``prepare`` gave them.
        checkpoints: the folder of checkpoints.
        step: steps taken so far.
        state: whatever else is needed to go on, as JSON.
        describe: adds what a reader of the weights needs, to the folder it is given.
        keep: how many checkpoints stay.
    """
    weights, moments = gathered(engine, model, optimiser)
    place = folder_of(checkpoints, step)

    def write() -> None:
        written(place, weights, moments, {**state, "step": step}, describe)
        for old in [*found(checkpoints)[keep:], *checkpoints.glob("step-*.partial")]:
            shutil.rmtree(old)

    try:
        engine.on_first(write)
    except OSError as error:
        raise OSError(f"the checkpoint of step {step} could not be written, earlier ones are untouched: {error}") from None
    return place


def gathered(engine: Engine, model: nn.Module, optimiser: AcceleratedOptimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and moments by parameter's name, whole, in the first process's memory; empty elsewhere."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    inner = engine.accelerator.unwrap_model(model)
    torch_optimiser = optimiser.optimizer
    weights: dict[str, Any] = get_model_state_dict(inner, options=options)
    moments: dict[str, Any] = get_optimizer_state_dict(inner, torch_optimiser, options=options).get("state", {})  # type: ignore[assignment]
    flat = {
        f"{name.removeprefix(PREFIX)}/{key}": torch.as_tensor(value)
        for name, values in moments.items()
        for key, value in values.items()
    }
    names = sorted(set(weights) - set(tied(inner)))
    return {name.removeprefix(PREFIX): weights[name].contiguous() for name in names}, flat


def written(
    place: Path, weights: dict[str, Tensor], moments: dict[str, Tensor], state: dict[str, Any], describe: Callable[[Path], None]
) -> None:
    """Write all files of a checkpoint beside its place, then move it there."""
    work = place.with_name(f"{place.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        with writing_tensors(work):
            save_file(weights, work / MODEL, metadata={"format": "pt"})
            save_file({name: value.contiguous() for name, value in moments.items()}, work / OPTIMISER)
        (work / STATE).write_text(json.dumps(state, indent=1))
        describe(work)
        files = {path.name: [path.stat().st_size, digest(path)] for path in sorted(work.iterdir())}
        (work / MANIFEST).write_text(json.dumps(files, indent=1))
        for path in work.iterdir():
            synced(path)
        synced(work)
        shutil.rmtree(place, ignore_errors=True)
        work.rename(place)
        synced(place.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def tied(model: nn.Module) -> dict[str, str]:
    """Further names of parameters that have several -> their first name, under which alone they are saved."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in named if first[id(parameter)] != name}


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 22):
            total.update(block)
    return total.hexdigest()


def found(checkpoints: Path) -> list[Path]:
    """The folders that claim to be checkpoints, the newest first."""
    return sorted((path for path in checkpoints.glob("step-????????") if path.is_dir()), reverse=True)


def damage(place: Path) -> str | None:
    """What is wrong with a checkpoint, or None where every byte is as it was written."""
    try:
        files = json.loads((place / MANIFEST).read_text())
        for name, (size, sha) in files.items():
            path = place / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes instead of {size}"
            if digest(path) != sha:
                return f"{name} has changed since it was written"
    except FileNotFoundError:
        return "it was not finished"
    except (ValueError, TypeError, AttributeError):
        return f"its {MANIFEST} is damaged"
    return None if {MODEL, OPTIMISER, STATE} <= files.keys() else f"its {MANIFEST} is damaged"


def newest(checkpoints: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are passed over, each with a warning."""
    for place in found(checkpoints):
        reason = damage(place)
        if reason is None:
            return place
        warn(f"the checkpoint {place.name} is passed over: {reason}")
    return None


def read_state(place: Path) -> dict[str, Any]:
    """The state beside the weights."""
    state: dict[str, Any] = json.loads((place / STATE).read_text())
    return state


def load(engine: Engine, model: nn.Module, optimiser: AcceleratedOptimizer, place: Path) -> None:
    """Put weights and moments of a checkpoint into a model, however many processes hold it now."""
    inner = engine.accelerator.unwrap_model(model)
    torch_optimiser = optimiser.optimizer
    several = engine.processes > 1
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several, cpu_offload=False)
    # the others get theirs from the first
    saved, flat = (load_file(place / MODEL), load_file(place / OPTIMISER)) if engine.first else ({}, {})
    weights: dict[str, Any] = {f"{PREFIX}{name}": value for name, value in saved.items()}
    if engine.first:
        weights |= {name: weights[first] for name, first in tied(inner).items()}
    set_model_state_dict(inner, weights, options=options)
    moments: dict[str, Any] = {}
    for name, value in flat.items():
        parameter, _, key = name.rpartition("/")
        moments.setdefault(f"{PREFIX}{parameter}", {})[key] = value
    groups = get_optimizer_state_dict(inner, torch_optimiser)["param_groups"]
    set_optimizer_state_dict(inner, torch_optimiser, {"state": moments, "param_groups": groups}, options=options)
