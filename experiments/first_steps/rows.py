"""The rows of the ablations and of the combinations off the map, as small models on a CPU: does each of them train at all?

    python experiments/first_steps/rows.py enwik8.xz                     # adds to rows.jsonl beside this file what is not there
    python experiments/first_steps/rows.py enwik8.xz --plans off_the_map --only bregman-sigmoid,f-chi2
    python experiments/first_steps/rows.py --table                       # docs/results/first_rows.md from what is there

Every model of 4.2M parameters that these plans name, with the plan's own options, but two blocks of 128 channels: 200 steps
of a schedule of 300 at the middle one of the plan's rates, 4 sequences of 1024 bytes a step. A step is thrown when the norm of
its gradient is above 10.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import torch
from language import SIZES, late, measured_or_told, train

from miras.hf import MirasConfig, MirasForCausalLM
from miras.lab import results
from miras.lab.plan_file import load
from miras.lab.provenance import places, provenance
from miras.lab.tables import Table, markdown
from miras.train.config import ModelConfig
from miras.train.models import model_changes

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "results" / "first_rows.md"
PLANS = ("off_the_map", "ablations")
SIZE = "-4m"
HEADINGS = ["model", "rate", "seed", "bits/byte of the last 40", "steps thrown", "largest norm", "parameters"]
BATCH, LENGTH, STEPS, STOP, RATE, THROWN = 4, 1024, 300, 200, 4e-3, 10.0


def models_of(plan: str) -> dict[str, ModelConfig]:
    """The small models of a plan, each once, in its order."""
    found = {}
    for run in load(HERE.parent / plan).runs:
        config = run.config({}).model
        if config.name.endswith(SIZE) and not run.variant.isdigit():
            found.setdefault(run.model, config)
    return found


def measured(config: ModelConfig, text: torch.Tensor, seed: int, rate: float) -> dict[str, Any]:
    """Train one of them; its last bits a byte, its gradients, its pace."""
    torch.manual_seed(seed)
    model = MirasForCausalLM(MirasConfig.preset(config.name, **(model_changes(config) | SIZES)))
    began = time.perf_counter()
    taken = train(model, text, STEPS, rate, batch=BATCH, length=LENGTH, stop=STOP)
    norms = [step.norm if math.isfinite(step.norm) else math.inf for step in taken]
    return {
        "thrown": sum(norm > THROWN for norm in norms),
        "norm": max(norms),
        "bits": late(taken),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": time.perf_counter() - began,
    }


def measure(
    text: torch.Tensor, path: Path, plans: list[str], only: list[str] | None, seed: int, rate: float, own: bool
) -> None:
    """Every model that is not in the file yet; with each token's own step, where that is asked for."""
    for plan in plans:
        for name, config in models_of(plan).items():
            setting = [plan, f"{name}, own steps" if own else name, seed, rate]
            config = dataclasses.replace(config, step_sum=0.0) if own else config
            if (only and name not in only) or setting in [row["setting"] for row in results.rows(path)]:
                continue
            print(*setting, flush=True)
            results.add(path, {"setting": setting} | measured(config, text, seed, rate) | provenance())


def rank(row: dict[str, Any]) -> float:
    """The bits a byte of a row, the larger the worse."""
    return math.inf if row["bits"] is None else row["bits"]


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the page."""
    _, name, seed, rate = row["setting"]
    bits, norm = ("overflow" if row[key] is None else f"{row[key]:{how}}" for key, how in (("bits", ".3f"), ("norm", ".1e")))
    return [name, f"{rate:g}", str(seed), bits, str(row["thrown"]), norm, f"{row['parameters'] / 1e6:.2f}M"]


def table(path: Path) -> str:
    """The page."""
    rows = results.rows(path)
    lines = [
        "# A first look at ablations and combinations",
        "",
        "Made by `python experiments/first_steps/rows.py --table` from `experiments/first_steps/rows.jsonl`; do not edit.",
        f"Small versions of the rows of two plans: two blocks of 128 channels, {STOP} steps of a schedule of {STEPS},",
        f"{BATCH} x {LENGTH} bytes of enwik8 a step, float32. Thrown are steps whose gradient has a norm above {THROWN:g}.",
        "It says which of them train at all, not which is best.",
    ]
    for plan in PLANS:
        own = [row for row in rows if row["setting"][0] == plan]
        lines += [
            "",
            f"## {plan}",
            "",
            markdown(Table(HEADINGS, {"": [cells(row) for row in sorted(own, key=rank)]}, numeric=True)),
        ]
    lines += ["", *places(rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="a text, packed by xz or not; its first 20 MB are taken")
    parser.add_argument("--results", type=Path, default=HERE / "rows.jsonl")
    parser.add_argument("--plans", type=lambda text: text.split(","), default=[*PLANS], help="of these, between commas")
    parser.add_argument("--only", type=lambda text: text.split(","), help="some of their models, between commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE, help="the learning rate (default 4e-3)")
    parser.add_argument("--own-steps", action="store_true", help="no steps are shared among keys alike")
    parser.add_argument("--table", action="store_true", help="write the page instead of measuring")
    given = parser.parse_args()
    options = (given.plans, given.only, given.seed, given.rate, given.own_steps)
    measured_or_told(parser, given, PAGE, table, lambda text, path: measure(text, path, *options))


if __name__ == "__main__":
    main()
