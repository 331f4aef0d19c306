"""``miras inspect``: load a model, read a text, write the page."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from ..files import check_target, replacing, size, text_of
from ..hf.loading import load
from ..types import require
from .page import page
from .reading import Reading, read, steps_of
from .text import tokens_of


def inspect(model: str, source: Path, out: Path | None, limit: int) -> None:
    """Write the page of a model reading a text file, and say where it is."""
    require(limit >= 1, f"--tokens must be 1 or more, got {limit}")
    text = text_of(source)
    target = Path(f"{source.stem}.inspect.html") if out is None else out
    check_target(target, "--out", (source, model))
    # surprise is measured in float32 whatever a model was saved in
    loaded, tokenizer = load(model, dtype=torch.float32)
    tokens = tokens_of(tokenizer, text, limit)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"reading {source.name}", total=steps_of(loaded, len(tokens.ids)))
        reading = read(loaded, tokens, name=loaded.config.label or Path(model).name, advance=lambda n: progress.advance(bar, n))
    with replacing(target) as fresh:
        fresh.write_bytes(page(reading, source.name).encode())
    print(summary(reading, target))


def summary(reading: Reading, target: Path) -> str:
    """What was read and where the page is."""
    shown, total = len(reading.tokens.ids), reading.tokens.total
    part = f"the first {shown} of {total} tokens (--tokens takes more)" if shown < total else f"{total} tokens"
    loss = reading.loss[1:].mean().item()
    said = f", {loss:.3f} nats a token" if shown > 1 else ""
    return f"{reading.model} read {part}{said}. Open {target} ({size(target.stat().st_size)}) in a browser."
