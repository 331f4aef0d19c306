"""The command line: what ``miras`` takes, and how it fails; the commands are in ``commands/``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from . import __version__
from .commands.describe import add_describe
from .commands.eval import add_eval
from .commands.extras import MissingExtraError
from .commands.generate import add_generate
from .commands.inspect import add_inspect
from .commands.read import add_read
from .commands.recall import add_recall
from .commands.table import add_table
from .commands.train import add_plan, add_train
from .train.options import refuse_unknown


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like every other error of the command line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} ({self.prog} --help lists what it takes)")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    try:
        arguments, unknown = parser().parse_known_args(argv)
        refuse_unknown(arguments.parser, unknown)
        import_own(arguments.modules)
        run: Callable[[argparse.Namespace], int | None] = arguments.run
        code = run(arguments)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # whoever read the output has seen enough; the interpreter must not flush into the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MissingExtraError as missing:
        print(missing, file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        # of several processes that fail alike, one says so
        if os.environ.get("RANK", "0") == "0":
            print("miras:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("miras: interrupted", file=sys.stderr)
        return 130


def import_own(modules: list[str]) -> None:
    """Import what defines parts of a user's own, so that models made of them are found."""
    if modules and "" not in sys.path:
        sys.path.insert(0, "")
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            module = name.removesuffix(".py")
            said = str(error) if module == name else f"it takes a module's name, not a file's: --import {module}"
            raise ValueError(f"--import {name}: {said}") from error


def parser() -> Parser:
    """The commands and their options."""
    whole = Parser(prog="miras", description="Sequence models that memorise at test time, as four choices.")
    whole.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that defines parts of your own, from the folder you are in or installed; before the command",
    )
    whole.add_argument("--version", action="version", version=f"miras {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_train(commands.add_parser("train", allow_abbrev=False, help="train a language model; with nothing given, a small one"))
    add_plan(commands.add_parser("plan", allow_abbrev=False, help="what a training will take: parameters, memory, hours"))
    add_table(commands.add_parser("table", help="every preset with its four choices and its write rule"))
    add_describe(commands.add_parser("describe", help="the update rule of one preset"))
    add_recall(commands.add_parser("recall", help="how well memories recall pairs, by age and under noise"))
    add_inspect(commands.add_parser("inspect", help="what a model's memories do with a text, as one page for a browser"))
    add_generate(commands.add_parser("generate", help="text from a model, as it comes, after a prompt or a kept memory"))
    add_read(commands.add_parser("read", help="a text into a memory that is kept in a file"))
    add_eval(commands.add_parser("eval", help="perplexity, zero-shot sets and needles in haystacks, of any saved model"))
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return whole


if __name__ == "__main__":
    sys.exit(main())
