"""Where a number comes from: machine, versions, commit, date, command."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]


def versions(*packages: str) -> dict[str, str | None]:
    """The versions of Python, torch, this package and others; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("torch", "miras-torch", *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def commit() -> str | None:
    """The commit of the checkout, marked where the package differs from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("-changed" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def device_name(device: torch.device) -> str:
    """The name of what computes: the graphics card, or the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def provenance(*packages: str) -> dict[str, object]:
    """Everything that a result carries with it."""
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": versions(*packages),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command(sys.argv),
    }


def command(words: list[str]) -> str:
    """A program and its arguments; where a file lies on one machine tells nobody else anything.

    >>> command(["experiments/recall/run.py", "--source", "/home/me/enwik8.xz"])
    'python experiments/recall/run.py --source enwik8.xz'
    """
    return shlex.join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in words)])


def source() -> dict[str, object]:
    """The same in short, for one line among many."""
    known = versions()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"commit": commit(), "date": date, "miras": known["miras-torch"], "torch": known["torch"], "processor": processor()}


def places(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Where lines of results come from, each place once: processor, torch, commit, date."""
    found = {(row["machine"]["processor"], row["versions"]["torch"], row["commit"], row["date"]) for row in rows}
    return [f"{name}, torch {version}, commit {commit}, {date}." for name, version, commit, date in sorted(found)]
