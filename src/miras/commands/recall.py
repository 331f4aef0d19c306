"""``miras recall``: how well untrained memories recall pairs, by age and under noise."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .. import presets
from ..types import require
from .extras import needed

if TYPE_CHECKING:
    from ..lab.recall import Outcome, Settings


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
    from ..lab.recall import DEFAULT_PRESETS, Settings
    from ..lab.report import headline, most_robust, percent, save, table
    from ..lab.tables import show

    settings = Settings(
        presets=chosen(arguments.presets) if arguments.presets is not None else DEFAULT_PRESETS,
        pairs=arguments.pairs,
        dim=arguments.dim,
        seeds=arguments.seeds,
        outliers=shares(arguments.outliers),
        seed=arguments.seed,
    )
    # a folder that cannot be made is found out before the work, not after it
    require(not arguments.out.is_file(), f"--out {arguments.out} is a file: name a folder")
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

    from ..lab.recall import experiment

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
    from ..lab.recall import unfit

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
