"""``miras describe``: the update rule of one preset."""

from __future__ import annotations

import argparse
import json

from .. import presets
from ..train.options import called


def add_describe(command: argparse.ArgumentParser) -> None:
    """The options of ``miras describe``."""
    command.description = "Print the update rule of a preset, as text and as LaTeX."
    command.add_argument("preset", metavar="PRESET", help=f"one of {', '.join(presets.PRESETS)}")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="parameters",
        help="a parameter of the preset, such as p=2 or link=exact; may be repeated",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true", help="LaTeX alone")
    form.add_argument("--json", action="store_true", help="the choices as JSON that Spec.from_dict reads")
    command.set_defaults(run=run_describe)


def run_describe(arguments: argparse.Namespace) -> None:
    """``miras describe``."""
    presets.get(arguments.preset)
    spec = called(presets.PRESETS[arguments.preset], arguments.parameters, "--set")
    if arguments.json:
        print(json.dumps(spec.to_dict(), indent=2))
    else:
        print(spec.describe().latex if arguments.latex else spec.describe())
