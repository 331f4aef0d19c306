"""How large the gradients of small deep models are at the start, on text, up to 4096 tokens: plain and anchored retention.

    python experiments/tame_start/gradients.py          # adds to gradients.jsonl beside this file
    python experiments/tame_start/gradients.py --table  # docs/results/tame_gradients.md from what is there

Three blocks of 4 heads of 64 channels read this project's licence, byte by byte; the norm of the gradient of the mean
loss is taken over a block's parameters, the largest of the three. ``decay`` is -log alpha at the start; steps are each
token's own, or shared among keys alike (``nn.shared_steps``).
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from miras.hf import MirasConfig, MirasForCausalLM
from miras.lab import results
from miras.lab.provenance import places, provenance
from miras.nn.gates import LINKS, Gate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS = ("yaad", "titans_lmm", "moneta", "memora")
LENGTHS = (1024, 2048, 4096)
# whether it is anchored, and its decay
RETENTIONS = ((False, 1e-3), (False, 1e-4), (True, 1e-3), (True, 1e-2))
PAGE = ROOT / "docs" / "results" / "tame_gradients.md"


def text() -> Tensor:
    """The licence's first bytes, ``[1,T]``."""
    return torch.tensor(list((ROOT / "LICENSE").read_bytes()[: max(LENGTHS)]))[None]


def sums(name: str) -> float:
    """What shared steps add up to: a third where the gradient is three times that of l2."""
    return 2.0 / 3.0 if name.startswith("moneta") else 2.0


def model_of(name: str, anchored: bool, decay: float, shared: bool) -> MirasForCausalLM:
    """A small model whose decays start at one value."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
    name = f"{name}{'-anchored' if anchored else ''}-small"
    model = MirasForCausalLM(MirasConfig.preset(name, **sizes, step_sum=sums(name) if shared else 0))
    for gate in model.modules():
        if isinstance(gate, Gate) and gate.recipe.name == "log_alpha":
            torch.nn.init.constant_(gate.bias, LINKS[gate.recipe.link].inverse(decay, gate.recipe.limit))
    return model


def norm(name: str, anchored: bool, decay: float, shared: bool, length: int) -> float:
    """The largest norm of a block's gradient."""
    model, ids = model_of(name, anchored, decay, shared), text()[:, :length]
    model(input_ids=ids, labels=ids).loss.backward()
    blocks = [[p.grad.double().norm() for p in block.parameters() if p.grad is not None] for block in model.model.layers]
    return max(float(torch.stack(norms).norm()) for norms in blocks)


def measure(path: Path) -> None:
    """Every setting that is not in the file yet."""
    done = {setting_of(row) for row in results.rows(path)}
    for name, retention, shared, length in itertools.product(MODELS, RETENTIONS, (False, True), LENGTHS):
        setting = (name, *retention, shared, length)
        if setting in done:
            continue
        began = time.monotonic()
        found = norm(*setting)
        row = {"setting": setting, "norm": found, "seconds": round(time.monotonic() - began, 1)}
        results.add(path, row | provenance())
        print(*setting, f"{found:.1e}", flush=True)


def setting_of(row: dict[str, Any]) -> tuple[str, bool, float, bool, int]:
    """A row's setting; the first rows were measured before steps could be shared."""
    name, anchored, decay, *shared, length = row["setting"]
    return name, anchored, decay, any(shared), length


def table(path: Path) -> str:
    """The page."""
    kept = results.rows(path)
    rows = {setting_of(row): row["norm"] for row in kept}
    lines = [
        "# Gradients at the start",
        "",
        "Made by `python experiments/tame_start/gradients.py --table` from `experiments/tame_start/gradients.jsonl`:",
        "three blocks of 4 heads of 64 channels on text, float32, the largest norm of a block's gradient, one seed.",
        f"Shared steps have `step_sum` {sums('yaad'):g}, Moneta {sums('moneta'):.2g}.",
        "",
        f"| model | retention | decay | steps | {' | '.join(f'{length} tokens' for length in LENGTHS)} |",
        "|---" * (4 + len(LENGTHS)) + "|",
    ]
    for name, (anchored, decay), shared in itertools.product(MODELS, RETENTIONS, (False, True)):
        found = [rows[name, anchored, decay, shared, length] for length in LENGTHS]
        cells = " | ".join("overflow" if value is None else f"{value:.1e}" for value in found)
        kind, steps = "anchored" if anchored else "plain", "shared" if shared else "own"
        lines.append(f"| {name} | {kind} | {decay:g} | {steps} | {cells} |")
    lines += ["", *places(kept)]
    return "\n".join(lines) + "\n"


def measured_or_written(
    said: str | None, kept: Path, page: Path, measure: Callable[[Path], None], table: Callable[[Path], str]
) -> None:
    """The command of this program and of ``decays.py``: measure what is not kept yet, or write the page."""
    parser = argparse.ArgumentParser(description=said, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=kept)
    parser.add_argument("--table", action="store_true", help="write the page instead of measuring")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.table:
        page.write_text(table(given.results))
    else:
        measure(given.results)


if __name__ == "__main__":
    measured_or_written(__doc__, HERE / "gradients.jsonl", PAGE, measure, table)
