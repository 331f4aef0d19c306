"""``miras table``: every preset, or which parts do not go together."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from .. import presets

if TYPE_CHECKING:
    from ..lab.tables import Table


def add_table(command: argparse.ArgumentParser) -> None:
    """The options of ``miras table``."""
    command.description = "Print every preset with its four choices and its write rule."
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="as Markdown")
    form.add_argument("--json", action="store_true", help="as JSON that Spec.from_dict reads")
    command.add_argument("--combinations", action="store_true", help="which parts do not go together instead, and why")
    command.set_defaults(run=run_combinations_or_table)


def run_combinations_or_table(arguments: argparse.Namespace) -> None:
    """``miras table``, with or without ``--combinations``."""
    if arguments.combinations:
        run_combinations(arguments)
    elif arguments.json:
        print(json.dumps([presets.get(name).to_dict() for name in presets.PRESETS], indent=2))
    else:
        from ..lab.overview import table_of_presets

        print_table(table_of_presets(), arguments.markdown)


def run_combinations(arguments: argparse.Namespace) -> None:
    """``miras table --combinations``."""
    from ..lab.combinations import as_json, combinations, table_of_refusals

    tried = combinations()
    if arguments.json:
        print(json.dumps(as_json(tried), indent=2))
        return
    print_table(table_of_refusals(tried), arguments.markdown)
    total = tried.meaningful + tried.refused
    print(f"\nOf {total} combinations of parts, {tried.meaningful} have a meaning and {tried.refused} are refused.")


def print_table(table: Table, as_markdown: bool) -> None:
    """A table as Markdown, or in the way that suits where it is printed."""
    from ..lab.tables import markdown, show

    if as_markdown:
        print(markdown(table))
    else:
        show(table)
