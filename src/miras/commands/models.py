"""A saved model and its tokenizer for a command: whatever is wrong with its folder is told in one line."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..types import require
from .extras import needed

if TYPE_CHECKING:
    from ..hf import MirasForCausalLM

DTYPES = ("auto", "float32", "bfloat16")


class Loaded(NamedTuple):
    """A model and the tokenizer that was saved with it."""

    model: MirasForCausalLM
    tokenizer: Any


def add_model(command: argparse.ArgumentParser, needed: bool = True) -> None:
    """The arguments that say which model runs and where."""
    words = "a folder that save_pretrained wrote, with a tokenizer"
    command.add_argument("model", metavar="MODEL", type=Path, nargs=None if needed else "?", help=words)
    command.add_argument("--device", default=None, help="such as cpu or cuda:0 (default: a GPU where there is one)")
    command.add_argument("--dtype", choices=DTYPES, default="auto", help="of the weights (default: as they were saved)")


def load(arguments: argparse.Namespace, command: str, tokenizer: str | None = None) -> Loaded:
    """The model that the arguments name, ready to read, with its own tokenizer or the one that is named here."""
    for package in ("transformers", "safetensors"):
        needed(command, package, "hf")
    folder: Path = arguments.model
    _check_folder(folder)
    with quiet():
        model = _model(folder, arguments.dtype)
        known = _tokenizer(folder) if tokenizer is None else named_tokenizer(tokenizer)
    vocab, where = model.config.vocab_size, f"in {folder}" if tokenizer is None else tokenizer
    require(
        len(known) <= vocab,
        f"the tokenizer {where} has {len(known)} tokens, the model {vocab}: they do not belong together",
    )
    return Loaded(_on(model, arguments.device).eval(), known)


def named_tokenizer(name: str) -> Any:
    """The tokenizer of a name as ``miras train`` takes it: ``bytes``, a folder, a ``tokenizer.json``, a name on the hub."""
    from ..data import tokenizer_of

    return tokenizer_of(name).hugging_face()


def _check_folder(folder: Path) -> None:
    require(folder.exists(), f"there is no folder {folder}")
    described = folder / "config.json"
    require(described.is_file(), f"{folder} is not a model folder: it has no config.json")
    try:
        config = json.loads(described.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{described} is not JSON: {error}") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    require(kind == "miras", f"{folder} holds a model of type {kind!r}, not 'miras' (miras.hf.from_fla reads those of fla)")


def _model(folder: Path, dtype: str) -> MirasForCausalLM:
    from safetensors import SafetensorError

    from ..hf import MirasForCausalLM

    try:
        model, told = MirasForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, local_files_only=True)
    except (SafetensorError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"the weights in {folder} cannot be loaded: {lines[0]}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        found = sorted(map(str, told[kind]))
        what = f"{kind.removesuffix('_keys')} tensors: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"
        require(not found, f"the weights in {folder} are not those of its configuration: {what}")
    assert isinstance(model, MirasForCausalLM)
    return model


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"there is no tokenizer in {folder}: save one there with its save_pretrained") from error


def _on(model: MirasForCausalLM, device: str | None) -> MirasForCausalLM:
    import torch

    wanted = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(torch.device(wanted))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {wanted} cannot be used: {str(error).splitlines()[0]}") from error
    return model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars and remarks: what is wrong is told by the command."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def size(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:,.1f} kB"


def check_target(path: Path) -> None:
    """A place that cannot be written to is found out before the work, not after it."""
    require(path.parent.is_dir(), f"cannot keep a memory in {path}: there is no folder {path.parent}")
    require(not path.is_dir(), f"cannot keep a memory in {path}: it is a folder")


def text_of(path: Path) -> str:
    """A UTF-8 text file."""
    require(path.is_file(), f"there is no file {path}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
