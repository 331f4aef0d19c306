"""Which model a command runs, and where."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .extras import needed

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM
    from ..hf.loading import Loaded

DTYPES = ("auto", "float32", "bfloat16")


def add_model(command: argparse.ArgumentParser, needed: bool = True) -> None:
    """The arguments that say which model runs and where."""
    words = "a folder that save_pretrained wrote, or OWNER/NAME on the hub"
    command.add_argument("model", metavar="MODEL", nargs=None if needed else "?", help=words)
    command.add_argument("--device", default=None, help="such as cpu or cuda:0 (default: a GPU where there is one)")
    command.add_argument("--dtype", choices=DTYPES, default="auto", help="of the weights (default: as they were saved)")


def load(arguments: argparse.Namespace, command: str, tokenizer: str | None = None) -> Loaded:
    """The model that the arguments name, ready to read, with its own tokenizer or the one that is named here."""
    for package in ("transformers", "safetensors"):
        needed(command, package, "hf")
    from ..hf.loading import load

    given = None if tokenizer is None else named_tokenizer(tokenizer)
    loaded = load(arguments.model, dtype=arguments.dtype, tokenizer=given)
    _place(loaded.model, arguments.device)
    return loaded


def check_keepable(path: Path) -> None:
    """Refuse, before the work, to replace a file that is no memory."""
    from ..hf.memory_file import check_replaced

    check_replaced(path)


def named_tokenizer(name: str) -> Any:
    """The tokenizer of a name as ``miras train`` takes it: ``bytes``, a folder, a ``tokenizer.json``, a name on the hub."""
    from ..data import tokenizer_of

    return tokenizer_of(name).hugging_face()


def _place(model: MirasForCausalLM, device: str | None) -> None:
    """Bring a model to the device that was asked for."""
    import torch

    wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(torch.device(wanted))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {wanted} cannot be used: {str(error).splitlines()[0]}") from error
