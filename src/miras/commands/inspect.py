"""``miras inspect``: what a model's memories do with a text, as one page for a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from .extras import needed


def add_inspect(command: argparse.ArgumentParser) -> None:
    """The options of ``miras inspect``."""
    command.description = (
        "Run a text through a model and write one self-contained page: the text coloured by surprise, gates over time, what "
        "the thresholds did, how the weights move, for every layer and head."
    )
    command.add_argument("model", metavar="MODEL", help="a folder that save_pretrained wrote, or OWNER/NAME on the hub")
    command.add_argument("file", metavar="FILE", type=Path, help="the text, in UTF-8")
    command.add_argument("--out", metavar="PAGE", type=Path, help="the page (default: FILE's name with .inspect.html, here)")
    command.add_argument("--tokens", metavar="N", type=int, default=2048, help="how many tokens to read (default 2048)")
    command.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace) -> None:
    """``miras inspect``."""
    needed("inspect", "rich")
    needed("inspect", "transformers", extra="hf")
    from ..inspector.command import inspect

    inspect(arguments.model, arguments.file, arguments.out, arguments.tokens)
