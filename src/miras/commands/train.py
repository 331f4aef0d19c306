"""``miras train`` and ``plan``: a language model from a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..train.config import TrainConfig
from ..train.options import add_options, asked, build
from ..types import require
from .extras import needed

PACKAGES = ("numpy", "yaml", "rich", "matplotlib", "safetensors", "tokenizers", "transformers", "accelerate")


def add_train(command: argparse.ArgumentParser) -> None:
    """The options of ``miras train``."""
    command.usage = "miras train [--resume] [--config FILE] [--section.key value ...]"
    command.description = (
        "Train a language model. With nothing given: a small one, on Python's own documentation and sources, in two minutes. "
        "On several processes: torchrun --nproc-per-node 8 -m miras train ..., or accelerate launch -m miras train ..."
    )
    command.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest whole checkpoint of run.folder (or of the newest run in out/), with its configuration; "
        "a folder that has none begins",
    )
    add_options(command, TrainConfig)
    command.set_defaults(run=run_train)


def run_train(arguments: argparse.Namespace) -> int:
    """``miras train``."""
    for package in PACKAGES:
        needed("train", package, "train")
    if arguments.resume:
        from ..train.run import newest_folder

        folder = Path(asked(TrainConfig, arguments).get("run.folder") or newest_folder())
        vars(arguments)["run.folder"] = str(folder)
        if (folder / "config.yaml").exists():
            arguments.config.insert(0, folder / "config.yaml")
    config = build(TrainConfig, arguments)
    from ..train.command import train_command

    return train_command(config, arguments.resume)


def add_plan(command: argparse.ArgumentParser) -> None:
    """The options of ``miras plan``."""
    command.usage = "miras plan [--gpus N,N,...] [--measured FILE] [--config FILE] [--section.key value ...]"
    command.description = (
        "What a training will take, from the configuration that miras train would get: parameters, FLOPs a token, memory a "
        "GPU, and hours, from a throughput that was measured."
    )
    command.add_argument("--gpus", metavar="N,N,...", default="8,64", help="numbers of GPUs (default 8,64)")
    command.add_argument(
        "--measured", metavar="FILE", type=Path, help="a JSON file of throughputs (default: benchmarks/results/train.json)"
    )
    add_options(command, TrainConfig)
    command.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> None:
    """``miras plan``."""
    for package in PACKAGES:
        needed("plan", package, "train")
    from ..train.plan import plan_command

    plan_command(build(TrainConfig, arguments), counts(arguments.gpus), arguments.measured)


def counts(text: str) -> tuple[int, ...]:
    """The numbers of a comma list."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    require(bool(found) and min(found, default=0) > 0, f"--gpus takes numbers such as 8,64, got {text!r}")
    return found
