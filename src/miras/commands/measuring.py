"""What the measurements of ``miras eval`` share: options, a bar, a table, what a file of results says about its making."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .extras import needed
from .models import add_model, load

if TYPE_CHECKING:
    import torch

    from ..hf.loading import Loaded

BATCH_TOKENS = 16384


def add_shared(command: argparse.ArgumentParser, needs_model: bool = True) -> None:
    """What all measurements take."""
    add_model(command, needs_model)
    command.add_argument(
        "--tokenizer", metavar="NAME", help="bytes, a folder or a tokenizer.json (default: the one saved with the model)"
    )
    command.add_argument("--autocast", action="store_true", help="compute in bfloat16 where that is safe; weights stay")
    command.add_argument(
        "--batch-tokens",
        type=int,
        default=BATCH_TOKENS,
        metavar="N",
        help=f"tokens in one call of the model (default {BATCH_TOKENS})",
    )


def loaded(arguments: argparse.Namespace) -> Loaded:
    """The model and its tokenizer, once every package is there."""
    for package, extra in (("rich", "cli"), ("numpy", "eval"), ("transformers", "eval")):
        needed("eval", package, extra)
    return load(arguments, "eval", arguments.tokenizer)


def precision(arguments: argparse.Namespace) -> torch.dtype | None:
    """What to compute in, where it is not the weights' own dtype."""
    import torch

    return torch.bfloat16 if arguments.autocast else None


@contextmanager
def bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; the function it gives takes what is done and what there is."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from ..hf.loading import quiet

    console = Console(stderr=True)
    counts = TextColumn("{task.completed:,}/{task.total:,} " + unit)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), counts, TimeRemainingColumn())
    with quiet(), Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=0)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def about(arguments: argparse.Namespace, model: Loaded) -> dict[str, Any]:
    """What a file of results says about its making."""
    import torch

    from ..lab.provenance import provenance

    return {
        **provenance("transformers"),
        "command": shlex.join(["miras", *sys.argv[1:]]),
        "model": str(arguments.model),
        "label": model.model.config.label,
        "device": torch.cuda.get_device_name(model.model.device) if model.model.device.type == "cuda" else "cpu",
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "autocast": "bfloat16" if arguments.autocast else None,
    }


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first of words, the others of numbers; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def names(text: str | None) -> tuple[str, ...] | None:
    """The names of a comma list; None where there is none."""
    return None if text is None else tuple(filter(None, map(str.strip, text.split(","))))


def numbers(option: str, text: str) -> list[int]:
    """The whole numbers of a comma list."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} takes whole numbers such as 1024,2048, got {text!r}") from None
