"""``miras read``: a text into a memory that is kept."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import check_target, size, text_of
from .extras import needed
from .models import add_model, check_keepable, load

if TYPE_CHECKING:
    from ..hf import KeptMemory
    from ..hf.loading import Loaded


def add_read(command: argparse.ArgumentParser) -> None:
    """The options of ``miras read``."""
    command.description = (
        "Read a text of any length once and keep the memory of it in a file of constant size (but for transformer, which keeps "
        "every token). miras generate goes on from that file, on any machine that has the model; another model refuses it."
    )
    add_model(command)
    command.add_argument("file", metavar="FILE", type=Path, help="the text, in UTF-8")
    command.add_argument("--state", metavar="OUT", type=Path, required=True, help="the safetensors file to keep the memory in")
    command.add_argument("--from", metavar="STATE", type=Path, dest="start", help="a memory to read on from")
    command.add_argument("--stretch", type=int, default=2048, metavar="N", help="tokens read at once (default 2048)")
    command.set_defaults(run=run_read)


def run_read(arguments: argparse.Namespace) -> None:
    """``miras read``."""
    needed("read", "rich")
    check_target(arguments.state, "cannot keep a memory in", (arguments.file, arguments.model))
    text = text_of(arguments.file)
    loaded = load(arguments, "read")
    check_keepable(arguments.state)
    began = time.monotonic()
    memory, read = with_progress(loaded, text, arguments)
    seconds = time.monotonic() - began
    memory.save(arguments.state)
    before = memory.tokens - read
    print(
        f"Read {read:,} tokens of {arguments.file}{f' after {before:,}' if before else ''} in {seconds:.1f} s "
        f"({read / seconds:,.0f} a second). The memory of them takes {size(memory.nbytes)}: {arguments.state}. "
        f"Next: miras generate {arguments.model} --state {arguments.state} --prompt '...'"
    )


def with_progress(loaded: Loaded, text: str, arguments: argparse.Namespace) -> tuple[KeptMemory, int]:
    """The memory of a text and the number of its tokens, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from ..hf import KeptMemory
    from ..hf.loading import quiet

    model, tokenizer = loaded
    start = None if arguments.start is None else KeptMemory.load(arguments.start, model)
    console = Console(stderr=True)
    rate = TextColumn("{task.completed:,}/{task.total:,} tokens, {task.fields[rate]:,.0f} a second")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), rate, TimeRemainingColumn())
    with quiet(), Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(arguments.file.name, total=0, rate=0.0)
        began = time.monotonic()

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total, rate=done / max(time.monotonic() - began, 1e-9))

        memory = model.read(text, memory=start, tokenizer=tokenizer, stretch=arguments.stretch, progress=show)
    return memory, memory.tokens - (0 if start is None else start.tokens)
