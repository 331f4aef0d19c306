"""``miras eval``: ``perplexity``, ``zero-shot`` and ``needle``, of a saved model."""

from __future__ import annotations

import argparse

from .eval_needle import add_needle
from .eval_perplexity import add_perplexity
from .eval_zero_shot import add_zero_shot


def add_eval(command: argparse.ArgumentParser) -> None:
    """The three measurements and their options."""
    command.description = "Measure a saved model: on a text, on the paper's zero-shot sets, on needles in haystacks."
    kinds = command.add_subparsers(title="measurements", metavar="WHAT", required=True)
    add_perplexity(kinds.add_parser("perplexity", allow_abbrev=False, help="perplexity and bits per byte of a text"))
    add_zero_shot(kinds.add_parser("zero-shot", allow_abbrev=False, help="LAMBADA, PIQA, HellaSwag and others"))
    add_needle(kinds.add_parser("needle", allow_abbrev=False, help="find what was hidden in a long text"))
