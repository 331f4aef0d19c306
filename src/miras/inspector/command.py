"""``miras inspect``: load a model, read a text, write the page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from transformers import AutoTokenizer
from transformers.utils import logging

from ..hf import MirasConfig, MirasForCausalLM
from ..types import require
from .page import page
from .reading import Reading, read, steps_of
from .text import tokens_of


def inspect(model: str, source: Path, out: Path | None, limit: int) -> None:
    """Write the page of a model reading a text file, and say where it is."""
    require(limit >= 1, f"--tokens must be 1 or more, got {limit}")
    text = text_of(source)
    target = Path(f"{source.stem}.inspect.html") if out is None else out
    # a folder that is not there is found out before the work, not after it
    require(target.parent.is_dir(), f"--out {target}: there is no folder {target.parent}")
    require(not target.is_dir(), f"--out {target} is a folder: name a file")
    loaded, tokenizer = load(model)
    tokens = tokens_of(tokenizer, text, limit)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"reading {source.name}", total=steps_of(loaded, len(tokens.ids)))
        reading = read(loaded, tokens, name=loaded.config.label or Path(model).name, advance=lambda n: progress.advance(bar, n))
    write(target, page(reading, source.name))
    print(summary(reading, target))


def text_of(source: Path) -> str:
    """The text of a file, which has to be UTF-8."""
    try:
        # newlines as they are: a tokenizer sees every character
        return source.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text: byte {error.start} cannot be read") from None


def load(name: str) -> tuple[MirasForCausalLM, Any]:
    """A saved Miras model in float32, complete or refused, and its tokenizer."""
    known = Path(name).is_dir() or re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
    require(known, f"there is no folder {name}: MODEL is a folder that save_pretrained wrote, or OWNER/NAME on the hub")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # what a failed download says again and again is said once, below
    getLogger("huggingface_hub").setLevel(ERROR)
    config, _ = tried(f"cannot load {name}", lambda: MirasConfig.get_config_dict(name))
    kind = config.get("model_type")
    require(kind == "miras", f"{name} is a model of type {kind!r}: miras inspect looks into Miras models")
    model, info = tried(
        f"cannot load {name}",
        lambda: MirasForCausalLM.from_pretrained(name, dtype=torch.float32, output_loading_info=True),
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        wrong = sorted(map(str, info[kind]))
        require(not wrong, f"{name} has {kind.replace('_keys', '')} tensors: {', '.join(wrong[:3])} ({len(wrong)} in all)")
    tokenizer = tried(f"{name} has no tokenizer that can be loaded", lambda: AutoTokenizer.from_pretrained(name))
    return model.eval(), tokenizer


def tried(what: str, load: Callable[[], Any]) -> Any:
    """What ``load`` gives; whatever goes wrong with a file of others is one line."""
    try:
        return load()
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"{what}: {reason}") from None


def write(target: Path, text: str) -> None:
    """The file under its name once it is complete."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text.encode())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def summary(reading: Reading, target: Path) -> str:
    """What was read and where the page is."""
    shown, total = len(reading.tokens.ids), reading.tokens.total
    part = f"the first {shown} of {total} tokens (--tokens takes more)" if shown < total else f"{total} tokens"
    loss = reading.loss[1:].mean().item()
    said = f", {loss:.3f} nats a token" if shown > 1 else ""
    size = target.stat().st_size
    weight = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return f"{reading.model} read {part}{said}. Open {target} ({weight}) in a browser."
