"""How long a memory that decays stays tame: the response of y to 1e-6 on k, by decay and by the tokens read.

    python experiments/tame_start/decays.py          # adds to decays.jsonl beside this file
    python experiments/tame_start/decays.py --table  # docs/results/tame_decays.md from what is there

Four heads of 64 channels, float64, chunks of 64. Four fifths of every key lie along one direction, as keys of trained models
do in text, and what is left is normal; values are normal. Steps are those that a preset starts with, shared among keys alike.
The response is the mean of the last 64 tokens before a place, the largest of the heads.

B batch, T tokens, H heads, D channels
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from gradients import measured_or_written
from torch import Tensor

from miras import Gates, memorize, presets
from miras.lab import results
from miras.lab.provenance import places, provenance
from miras.nn import bounded, recipe_of
from miras.nn.initial import InitialMemory
from miras.nn.shared_steps import Sum, share

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "results" / "tame_decays.md"
MODELS = ("titans_lmm", "yaad", "moneta", "memora")
DECAYS = (1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)
PLACES = (1024, 2048, 4096, 8192)
H, D, CHUNK, ALIKE, NOISE = 4, 64, 64, 0.8, 1e-6


def tokens(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k and v ``[1,T,H,D]``, and noise on k."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    common = math.sqrt(ALIKE) * F.normalize(normal(1, 1, H, D), dim=-1)
    own = [F.normalize(normal(1, max(PLACES), H, D), dim=-1) for _ in range(3)]
    q, k = (common + math.sqrt(1 - ALIKE) * x for x in own[:2])
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1), normal(1, max(PLACES), H, D), NOISE * own[2]


@torch.no_grad()
def response(name: str, anchored: bool, decay: float, seed: int = 0) -> list[float]:
    """How far y moves at each of the places, relative to its size."""
    spec = presets.PRESETS[name](anchor=anchored)
    recipe = bounded(recipe_of(spec))
    torch.manual_seed(seed)
    initial = InitialMemory(spec, H, D, D).double()
    q, k, v, noise = tokens(seed)
    step = recipe.gate("eta")
    assert step is not None and isinstance(step.start, float) and recipe.step_sum is not None
    eta, _ = share(torch.full_like(v, step.start * initial.unit), k, Sum(recipe.step_sum, initial.unit, CHUNK - 1), None, None)
    wanted = {gate.name: gate for gate in recipe.gates}
    wide = {gate: v.shape if own.channelwise else v.shape[:3] for gate, own in wanted.items()}
    made = {"eta": eta, "log_alpha": torch.full(wide["log_alpha"], -decay, dtype=v.dtype)}
    made |= {name: torch.full(wide[name], wanted[name].start, dtype=v.dtype) for name in ("delta", "mu") if name in wanted}
    if "mu" in made:
        made["eta"] = made["eta"] * (1 - made["mu"][..., None])
    gates, weights = Gates(**made), initial.start()
    y, moved = (
        memorize(spec, q, key, v, gates, weights=weights, norm=initial.norm(), chunk_size=CHUNK)[0] for key in (k, k + noise)
    )
    far = ((moved - y).norm(dim=-1) / y.norm(dim=-1))[0]
    return [float(far[place - CHUNK : place].mean(0).max()) for place in PLACES]


def measure(path: Path) -> None:
    """Every setting that is not in the file yet."""
    done = {tuple(row["setting"]) for row in results.rows(path)}
    for setting in itertools.product(MODELS, (False, True), DECAYS):
        if setting not in done:
            found = response(*setting)
            results.add(path, {"setting": setting, "response": found} | provenance())
            print(*setting, *(f"{x:.1e}" for x in found), flush=True)


def table(path: Path) -> str:
    """The page."""
    kept = results.rows(path)
    rows = {tuple(row["setting"]): row["response"] for row in kept}
    lines = [
        "# Decays and noise",
        "",
        "Made by `python experiments/tame_start/decays.py --table` from `experiments/tame_start/decays.jsonl`: how far",
        f"outputs move, relative to their size, when every key is moved by {NOISE:g} of its length, at several places of a",
        "sequence whose keys are alike. Steps are those that presets start with; the script says the rest. A tame memory",
        "answers with about as much as it was given; one near 1 forgets what it was.",
        "",
        f"| model | retention | decay | {' | '.join(f'{place} tokens' for place in PLACES)} |",
        "|---" * (3 + len(PLACES)) + "|",
    ]
    for name, anchored, decay in itertools.product(MODELS, (False, True), DECAYS):
        cells = " | ".join(f"{x:.0e}" for x in rows[name, anchored, decay])
        lines.append(f"| {name} | {'anchored' if anchored else 'plain'} | {decay:g} | {cells} |")
    lines += ["", *places(kept)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measured_or_written(__doc__, HERE / "decays.jsonl", PAGE, measure, table)
