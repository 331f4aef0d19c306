"""The run folder: what a run is, where it came from, and whether it may go on there.

config.yaml       the resolved configuration
run.json          versions, git state, machine, command, data, and what must not change when the run goes on
metrics.jsonl     a line for every step and every validation
plot.png          loss and learning rate
checkpoints/      step-00000200 and so on
model/            the result, for transformers
sample.txt        text from it
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..data.corpus import Corpus
from ..files import replacing
from ..types import require
from .config import TrainConfig
from .options import to_dict

OUT = Path("out")
# where something is read, kept or done may change from one start to the next; what is computed may not
FREE = {
    "data.path",
    "data.valid_path",
    "data.cache",
    "data.workers",
    "data.on_bad",
    "optim.tokens",
    "optim.steps",
    "run.folder",
    "run.seconds",
    "run.finish",
}
FIXED = ("model", "data", "optim", "run")


def newest_folder() -> Path:
    """The run in ``out/`` that was worked on last."""
    runs = sorted(OUT.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)
    require(bool(runs), f"there is no run in {OUT}/ to go on with: name its folder with --run.folder")
    return runs[-1].parent


def free_folder(name: str) -> Path:
    """The first of ``out/<name>-1``, ``out/<name>-2``, ... that does not exist, made now, lest another run take it too."""
    stem = re.sub(r"[^\w.-]+", "-", Path(name).name)
    OUT.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = OUT / f"{stem}-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


@contextmanager
def not_left_empty(folder: Path) -> Iterator[None]:
    """A folder in which nothing was written by the end goes again."""
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds something else, or, unless the run is to go on, a run."""
    require(not folder.exists() or folder.is_dir(), f"run.folder {folder} is a file")
    if not folder.exists() or not any(folder.iterdir()):
        return
    ours = (folder / "config.yaml").exists()
    require(ours, f"run.folder {folder} is not empty and holds no run: choose another")
    require(resume, f"run.folder {folder} holds another run: go on with it by --resume, or choose another folder")


def identity(config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    sections = to_dict(config)
    fixed = {f"{section}.{key}": value for section in FIXED for key, value in sections[section].items()}
    known = {name: value for name, value in fixed.items() if name not in FREE}
    return known | {
        "optim.steps": config.steps,
        "data (its training tokens)": corpus.train.digest,
        "data (its validation tokens)": corpus.valid.digest,
    }


def check_identity(folder: Path, now: dict[str, Any]) -> None:
    """Refuse to go on with another model, other data or another schedule than the run began with."""
    before = recorded(folder).get("identity")
    if before is None:
        return
    for name, value in now.items():
        require(
            before.get(name) == value,
            f"the run in {folder} began with {name} {before.get(name)}, not {value}: give the same, or another --run.folder",
        )


def begin(folder: Path, config: TrainConfig, corpus: Corpus, parameters: int, engine: dict[str, Any]) -> None:
    """Write what the run is, before it starts; every start adds a line on where and how it happened."""
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "config.yaml") as fresh:
        fresh.write_text(yaml.safe_dump(to_dict(config), sort_keys=False))
    starts = recorded(folder).get("starts", [])
    about = {
        "parameters": parameters,
        "data": {"title": corpus.title, "train": corpus.train.count, "valid": corpus.valid.count, "warnings": corpus.warnings},
        "identity": identity(config, corpus),
        "starts": [*starts, {**provenance(), **engine}],
    }
    with replacing(folder / "run.json") as fresh:
        fresh.write_text(json.dumps(about, indent=1))


def recorded(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says of a run, nothing where there is none yet."""
    path = folder / "run.json"
    if not path.exists():
        return {}
    try:
        known: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return known


def provenance() -> dict[str, Any]:
    """Versions, git state, machine, time and command."""
    packages = ("torch", "triton", "fla-core", "miras-torch", "accelerate", "transformers", "tokenizers", "safetensors")
    return {
        "time": now(),
        "command": shlex.join(["miras", *sys.argv[1:]]),
        "versions": {"python": platform.python_version()} | {name: version_of(name) for name in packages},
        "git": git_state(),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(), "devices": devices()},
    }


def now() -> str:
    """The time, in seconds and everywhere the same."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def version_of(package: str) -> str | None:
    """The installed version of a package, None where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state() -> dict[str, Any] | None:
    """The commit that the package is run from and whether its files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "changed": bool(git("status", "--porcelain", "--", str(Path(__file__).parents[1]))),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def devices() -> list[str]:
    """The names of the GPUs that this process sees."""
    import torch

    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
