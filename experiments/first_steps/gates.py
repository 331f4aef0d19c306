"""What keeps a deep memory together at a high rate: small models on text, on the CPU, two minutes each.

    python experiments/first_steps/gates.py enwik8.xz    # adds to gates.jsonl beside this file what is not there
    python experiments/first_steps/gates.py enwik8.xz --models yaad --variants "slow gates" --rate 2e-2
    python experiments/first_steps/gates.py --table      # docs/results/gate_pace.md from what is there

130 steps of a schedule of 300 at a high rate, 2 sequences of 2048 bytes a step. A step is thrown when the norm of its
gradient is above 10 (usual is 0.5 to 3). ``alike`` is the share of a chunk's keys that lies along one direction, the mean
over heads and blocks: 1/64 for keys that are all different, 1 where they are one key.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from language import SIZES, draws, late, measured_or_told, train
from torch import Tensor

from miras.diagnostics import layer_inputs
from miras.hf import MirasConfig, MirasForCausalLM
from miras.lab import results
from miras.lab.provenance import places, provenance

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "results" / "gate_pace.md"
MODELS = ("yaad", "yaad-anchored", "titans_lmm", "moneta", "memora")
VARIANTS: dict[str, dict[str, float | bool]] = {
    "own steps": {"step_sum": 0},
    "slow gates": {"step_sum": 0, "gate_pace": 0.1},
    "less slow gates": {"step_sum": 0, "gate_pace": 0.3},
    "no SiLU": {"step_sum": 0, "silu": False},
    "shared steps": {"step_sum": 2.0},
    "shared steps of 1": {"step_sum": 1.0},
    "shared steps of 2/3": {"step_sum": 2.0 / 3.0},
    "shared steps of 1/3": {"step_sum": 1.0 / 3.0},
}
SEEDS = (0, 1)
LOST = {"alike": None, "decay": None}
BATCH, LENGTH, STEPS, STOP, RATE, THROWN, CHUNK = 2, 2048, 300, 130, 1e-2, 10.0, 64


def alike(keys: Tensor) -> float:
    """``[B,T,H,K]``, of unit length -> the largest eigenvalue of the first chunk's sum of k k^T over its tokens, a mean."""
    chunk = keys[:, :CHUNK].float().transpose(1, 2)
    return float(torch.linalg.matrix_norm(chunk, 2).square().mean()) / CHUNK


@torch.no_grad()
def looked_at(model: MirasForCausalLM, ids: Tensor) -> dict[str, float]:
    """How alike keys are, and the channel that forgets most of all: the mean of its -log alpha."""
    found = [layer.prepare(x) for layer, x in layer_inputs(model, input_ids=ids).values()]
    keys = [alike(prepared.k) for prepared in found]
    decays = [float(-prepared.gates.log_alpha.flatten(0, 1).mean(0).min()) for prepared in found]
    return {"alike": sum(keys) / len(keys), "decay": max(decays)}


def measure(text: Tensor, path: Path, models: list[str], variants: list[str], rate: float) -> None:
    """Every setting that is not in the file yet."""
    done = {(*row["setting"], rate_of(row)) for row in results.rows(path)}
    for seed, name, variant in itertools.product(SEEDS, models, variants):
        if (name, variant, seed, rate) in done:
            continue
        print(name, variant, seed, flush=True)
        torch.manual_seed(seed)
        model = MirasForCausalLM(MirasConfig.preset(f"{name}-4m", **SIZES, **VARIANTS[variant]))
        taken = train(model, text, STEPS, rate, batch=BATCH, length=LENGTH, stop=STOP)
        norms = [step.norm if math.isfinite(step.norm) else math.inf for step in taken]
        row = {
            "setting": (name, variant, seed),
            "rate": rate,
            "thrown": sum(norm > THROWN for norm in norms),
            "norm": max(norms),
            "bits": late(taken),
            **(looked_at(model, next(draws(text, BATCH, LENGTH))) if math.isfinite(late(taken)) else LOST),
        }
        results.add(path, row | provenance())


def rate_of(row: dict[str, Any]) -> float:
    """At which rate a row was measured; the first ones do not say."""
    rate: float = row.get("rate", RATE)
    return rate


def table(path: Path) -> str:
    """The page."""
    lines = [
        "# What keeps a deep memory together",
        "",
        "Made by `python experiments/first_steps/gates.py --table` from `experiments/first_steps/gates.jsonl`: two blocks",
        "of 2 heads of 64 channels, the first 130 steps of 300, 2 x 2048 bytes of enwik8 a step, float32.",
        "Thrown are steps whose gradient has a norm above 10; alike is the share of a chunk's keys along one direction after",
        "them, decay the largest mean of a channel's -log alpha.",
        "",
        *(f"- {name}: {told(changes)}" for name, changes in VARIANTS.items()),
        "",
        "| model | rate | variant | seed | steps thrown | largest norm | bits/byte of the last 40 | keys alike | decay |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = results.rows(path)
    models, variants = [*MODELS], [*VARIANTS]
    place = lambda row: (models.index(row["setting"][0]), rate_of(row), variants.index(row["setting"][1]), row["setting"][2])  # noqa: E731
    for row in sorted(rows, key=place):
        name, variant, seed = row["setting"]
        digits = {"norm": ".1e", "bits": ".2f", "alike": ".2f", "decay": ".1e"}
        numbers = ("overflow" if row[key] is None else f"{row[key]:{how}}" for key, how in digits.items())
        found = f"{row['thrown']} | {' | '.join(numbers)}"
        lines.append(f"| {name} | {rate_of(row):g} | {variant} | {seed} | {found} |")
    lines += ["", *places(rows)]
    return "\n".join(lines) + "\n"


def told(changes: dict[str, float | bool]) -> str:
    """What a variant changes."""
    return ", ".join(f"`{name}={value}`" for name, value in changes.items())


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads some of the known names, between commas."""

    def read(text: str) -> list[str]:
        for name in (given := text.split(",")):
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}, but {', '.join(known)}")
        return given

    return read


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="a text, packed by xz or not; its first 20 MB are taken")
    parser.add_argument("--results", type=Path, default=HERE / "gates.jsonl")
    parser.add_argument("--models", type=names(MODELS), default=[*MODELS], help="some of them, between commas")
    parser.add_argument("--variants", type=names(VARIANTS), default=[*VARIANTS], help="some of them, between commas")
    parser.add_argument("--rate", type=float, default=RATE, help="the learning rate (default 1e-2)")
    parser.add_argument("--table", action="store_true", help="write the page instead of measuring")
    given = parser.parse_args()
    options = (given.models, given.variants, given.rate)
    measured_or_told(parser, given, PAGE, table, lambda text, path: measure(text, path, *options))


if __name__ == "__main__":
    main()
