"""The command line: ``miras train``, ``plan``, ``sample``, ``table``, ``describe``, ``recall``; others are in ``commands/``."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from . import __version__, presets
from .commands.eval import add_eval
from .commands.extras import MissingExtraError, needed
from .commands.generate import add_generate
from .commands.read import add_read
from .spec import Spec
from .train.config import TrainConfig
from .train.options import add_options, build, refuse_unknown
from .types import require

if TYPE_CHECKING:
    from .lab.recall import Outcome, Settings
    from .lab.tables import Table


TRAIN_PACKAGES = ("numpy", "yaml", "rich", "matplotlib", "safetensors", "tokenizers", "transformers", "accelerate")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like every other error of the command line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} ({self.prog} --help lists what it takes)")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    try:
        arguments, unknown = parser().parse_known_args(argv)
        refuse_unknown(arguments.parser, unknown)
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


def parser() -> Parser:
    """The commands and their options."""
    whole = Parser(prog="miras", description="Sequence models that memorise at test time, as four choices.")
    whole.add_argument("--version", action="version", version=f"miras {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_train(commands.add_parser("train", allow_abbrev=False, help="train a language model; with nothing given, a small one"))
    add_plan(commands.add_parser("plan", allow_abbrev=False, help="what a training will take: parameters, memory, hours"))
    add_sample(commands.add_parser("sample", help="text from a trained model"))
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


# miras train, plan, sample


def add_train(command: argparse.ArgumentParser) -> None:
    """The options of ``miras train``."""
    command.usage = "miras train [--resume] [--config FILE] [--section.key value ...]"
    command.description = (
        "Train a language model. With nothing given: a small one, on Python's own documentation and sources, in two minutes. "
        "On several processes: torchrun --nproc-per-node 8 -m miras train ..., or accelerate launch -m miras train ..."
    )
    command.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest whole checkpoint of --run.folder (or of the newest run in out/), with its configuration",
    )
    add_options(command, TrainConfig)
    command.set_defaults(run=run_train)


def run_train(arguments: argparse.Namespace) -> int:
    """``miras train``."""
    for package in TRAIN_PACKAGES:
        needed("train", package, "train")
    if arguments.resume:
        from .train.run import newest_folder

        folder = Path(vars(arguments).get("run.folder") or newest_folder())
        vars(arguments)["run.folder"] = str(folder)
        if (folder / "config.yaml").exists():
            arguments.config.insert(0, folder / "config.yaml")
    config = build(TrainConfig, arguments)
    from .train.command import train_command

    return train_command(config, arguments.resume)


def add_plan(command: argparse.ArgumentParser) -> None:
    """The options of ``miras plan``."""
    command.usage = "miras plan [--gpus N,N,...] [--measured FILE] [--config FILE] [--section.key value ...]"
    command.description = (
        "What a training will take, from the configuration that miras train would get: parameters, FLOPs a token, memory a "
        "GPU, and hours, from a throughput that was measured."
    )
    command.add_argument("--gpus", metavar="N,N,...", default="8,64", help="numbers of GPUs (default 8,64)")
    command.add_argument(
        "--measured", metavar="FILE", type=Path, help="a JSON file of throughputs (default: benchmarks/results/train.json)"
    )
    add_options(command, TrainConfig)
    command.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> None:
    """``miras plan``."""
    for package in TRAIN_PACKAGES:
        needed("plan", package, "train")
    from .train.plan import plan_command

    plan_command(build(TrainConfig, arguments), counts(arguments.gpus), arguments.measured)


def counts(text: str) -> tuple[int, ...]:
    """The numbers of a comma list."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    require(bool(found) and min(found, default=0) > 0, f"--gpus takes numbers such as 8,64, got {text!r}")
    return found


def add_sample(command: argparse.ArgumentParser) -> None:
    """The options of ``miras sample``."""
    command.description = "Let a trained model go on from a prompt."
    command.add_argument("model", metavar="MODEL", help="such as out/yaad-small-1/model, or OWNER/NAME on the hub")
    command.add_argument("--prompt", default="", help="where to begin (default: at the start of a document)")
    command.add_argument("--tokens", type=int, default=200, help="how many to add (default 200)")
    command.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time (default 0.8)")
    command.add_argument("--top-k", type=int, default=50, help="draw from so many of the likeliest (default 50)")
    command.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    command.set_defaults(run=run_sample)


def run_sample(arguments: argparse.Namespace) -> None:
    """``miras sample``."""
    for package in TRAIN_PACKAGES:
        needed("sample", package, "train")
    from .train.sample import sample

    how = {"temperature": arguments.temperature, "top_k": arguments.top_k, "seed": arguments.seed}
    print(sample(arguments.model, arguments.prompt, arguments.tokens, **how))


# miras table


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
        from .lab.overview import table_of_presets

        print_table(table_of_presets(), arguments.markdown)


def run_combinations(arguments: argparse.Namespace) -> None:
    """``miras table --combinations``."""
    from .lab.combinations import as_json, combinations, table_of_refusals

    tried = combinations()
    if arguments.json:
        print(json.dumps(as_json(tried), indent=2))
        return
    print_table(table_of_refusals(tried), arguments.markdown)
    total = tried.meaningful + tried.refused
    print(f"\nOf {total} combinations of parts, {tried.meaningful} have a meaning and {tried.refused} are refused.")


def print_table(table: Table, as_markdown: bool) -> None:
    """A table as Markdown, or in the way that suits where it is printed."""
    from .lab.tables import markdown, show

    if as_markdown:
        print(markdown(table))
    else:
        show(table)


# miras describe


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
    spec = preset_with(arguments.preset, arguments.parameters)
    if arguments.json:
        print(json.dumps(spec.to_dict(), indent=2))
    else:
        print(spec.describe().latex if arguments.latex else spec.describe())


def preset_with(name: str, assignments: list[str]) -> Spec:
    """A preset with parameters given as ``name=value``."""
    presets.get(name)
    preset = presets.PRESETS[name]
    hints = get_type_hints(preset)
    allowed = list(inspect.signature(preset).parameters)
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        require(bool(equals), f"--set takes NAME=VALUE, got {assignment!r}")
        require(key in allowed, f"{name} has no parameter {key!r}: it has {', '.join(allowed) or 'none'}")
        values[key] = parsed(text)
        require(fits(values[key], hints[key]), f"{name}'s {key} is {expected(hints[key])}, got {text!r}")
    return preset(**values)


def parsed(text: str) -> Any:
    """A value written as JSON, or else the string itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type: a literal, a plain type, or a union of those."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(fits(value, member) for member in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint


def expected(hint: Any) -> str:
    """An annotated type in words."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(expected(member) for member in get_args(hint))
    words = {float: "a number", int: "an integer", bool: "true or false", types.NoneType: "null"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


# miras recall


def add_recall(command: argparse.ArgumentParser) -> None:
    """The options of ``miras recall``."""
    command.description = (
        "Stream random key-value pairs, some values replaced by large noise, through untrained memories, then ask for every "
        "pair again. Step size, decay and the like are chosen for each preset from one small grid, on pairs of their own."
    )
    command.add_argument("--presets", metavar="A,B,...", help="which presets, or all (default: a selection)")
    command.add_argument("--pairs", type=int, default=128, help="how many pairs (default 128)")
    command.add_argument("--dim", type=int, default=32, help="channels of keys and values (default 32)")
    command.add_argument("--seeds", type=int, default=8, help="independent repeats, averaged (default 8)")
    command.add_argument(
        "--outliers", metavar="S,S,...", default="0,0.05,0.1,0.2", help="shares of noise (default 0,0.05,0.1,0.2)"
    )
    command.add_argument("--seed", type=int, default=0, help="of the random numbers (default 0)")
    command.add_argument("--out", metavar="DIR", type=Path, default=Path("recall"), help="for the files (default ./recall)")
    command.set_defaults(run=run_recall)


def run_recall(arguments: argparse.Namespace) -> None:
    """``miras recall``."""
    for package in ("rich", "matplotlib"):
        needed("recall", package)
    from .lab.recall import DEFAULT_PRESETS, Settings
    from .lab.report import headline, most_robust, percent, save, table
    from .lab.tables import show

    settings = Settings(
        presets=chosen(arguments.presets) if arguments.presets is not None else DEFAULT_PRESETS,
        pairs=arguments.pairs,
        dim=arguments.dim,
        seeds=arguments.seeds,
        outliers=shares(arguments.outliers),
        seed=arguments.seed,
    )
    # a folder that cannot be made is found out before the work, not after it
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    outcomes = with_progress(settings)
    save(outcomes, settings, arguments.out)
    print(headline(settings))
    show(table(outcomes, settings))
    print(
        f"Took {time.monotonic() - began:.0f} s. See {arguments.out / 'recall.png'} and {arguments.out / 'recall.json'}. "
        f"Next: miras describe {most_robust(outcomes)} (of a fixed size, the best at {percent(settings.outliers[-1])})"
    )


def with_progress(settings: Settings) -> dict[str, Outcome]:
    """Run the experiment preset by preset, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from .lab.recall import experiment

    console, outcomes = Console(stderr=True), {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(settings.presets))
        for name in settings.presets:
            progress.update(bar, description=name)
            outcomes[name] = experiment(name, settings)
            progress.advance(bar)
    return outcomes


def chosen(text: str) -> tuple[str, ...]:
    """The presets of a comma list, each once; ``all`` leaves out, visibly, those that cannot take part."""
    from .lab.recall import unfit

    if text != "all":
        return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    reasons = {name: unfit(presets.get(name)) for name in presets.PRESETS}
    for name, reason in reasons.items():
        if reason:
            print(f"{name} is left out: {reason}")
    return tuple(name for name, reason in reasons.items() if not reason)


def shares(text: str) -> tuple[float, ...]:
    """The outlier shares of a comma list, in rising order."""
    try:
        return tuple(sorted(float(share) for share in text.split(",")))
    except ValueError:
        raise ValueError(f"--outliers takes shares such as 0,0.05,0.1, got {text!r}") from None


# miras inspect


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
    from .inspector.command import inspect

    inspect(arguments.model, arguments.file, arguments.out, arguments.tokens)


if __name__ == "__main__":
    sys.exit(main())
