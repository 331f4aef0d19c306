"""How far the chunk form drifts from the exact recurrence: the settings, the inputs, the measurement.

T tokens, H repeats (they run as heads), D channels
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, recall, retention
from miras.forms.common import as_tuple
from miras.lab.untrained import Point, gate_values, initial_weights, unit_step
from miras.types import AnyState

TOKENS, DIM, SEEDS, SEED = 512, 32, 5, 0
CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# correlation of a key with the next one: independent keys, and an AR(1) process
KEYS = {"random": 0.0, "correlated": 0.95}
# eta = step * std(W_0) * std(A_0), times 1 - mu with momentum
STEPS = (0.1, 0.5)
# the gradient of a third power is several times as large, so Moneta is measured at a smaller step too
SMALL_STEP = 0.02
DECAY, STRONG_DECAY = 1e-3, 3e-2
DELTA, MU = 4.0, 0.5

MODELS = {
    "Yaad": presets.yaad(),
    "Yaad, anchored": presets.yaad(anchor=True),
    "Titans": presets.titans_lmm(),
    "Titans, anchored": presets.titans_lmm(anchor=True),
    "Moneta": presets.moneta(),
    "Moneta, anchored": presets.moneta(anchor=True),
    "Memora, dual": presets.memora(chunk="dual"),
    "Memora, dual, anchored": presets.memora(chunk="dual", anchor=True),
    "Memora, lag": presets.memora(),
    "Memora, lag, anchored": presets.memora(anchor=True),
}
# thresholds and a radius at which each retention acts on weights of unit scale without taking over
RETENTIONS: dict[str, retention.Retention] = {
    "L2 (linear, for comparison)": retention.L2(at="previous"),
    "L2Ball(radius=60)": retention.L2Ball(radius=60.0),
    "ElasticNet(a=100, b=100)": retention.ElasticNet(a=100.0, b=100.0),
    "ElasticNetFTRL(a=1)": retention.ElasticNetFTRL(a=1.0),
    "Lq(q=4, link=paper)": retention.Lq(q=4.0, link="paper"),
    "Lq(q=4, link=exact)": retention.Lq(q=4.0, link="exact"),
    "Lq(q=3, link=exact)": retention.Lq(q=3.0, link="exact"),
    "KL(chunk=dual)": retention.KL(chunk="dual"),
    "KL(chunk=lag)": retention.KL(chunk="lag"),
    **{f"FDivergence(g={g})": retention.FDivergence(g=g) for g in ("kl", "reverse_kl", "chi2", "hellinger")},
    "Bregman(link=sigmoid)": retention.Bregman(link="sigmoid"),
}
RETENTION_CHUNKS = (16, 64)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A memory, how its keys follow each other, and how fast it learns and forgets."""

    part: str  # "models" or "retentions"
    name: str
    spec: Spec
    keys: str
    step: float
    decay: float
    chunks: tuple[int, ...]


def settings() -> Iterator[Setting]:
    """Everything that is measured; anchored models at a strong decay too, which they learn to have."""
    for keys in KEYS:
        for step in (SMALL_STEP, *STEPS):
            for name, spec in MODELS.items():
                if step == SMALL_STEP and spec.name != "moneta":
                    continue
                for decay in (DECAY, STRONG_DECAY) if spec.retention.anchored else (DECAY,):
                    yield Setting(part="models", name=name, spec=spec, keys=keys, step=step, decay=decay, chunks=CHUNKS)
            for name, kept in RETENTIONS.items() if step in STEPS else ():
                spec = Spec(memory=memory.MLP(), bias=bias.L2(), retention=kept, algorithm=algorithm.GradientDescent())
                yield Setting(
                    part="retentions", name=name, spec=spec, keys=keys, step=step, decay=DECAY, chunks=RETENTION_CHUNKS
                )


def process(rho: float, generator: torch.Generator) -> Tensor:
    """x_t = rho x_(t-1) + sqrt(1 - rho^2) noise, each vector scaled to length 1: ``[1,T,H,D]``."""
    noise = torch.randn(TOKENS, SEEDS, DIM, generator=generator, dtype=torch.float64)
    rows = [noise[0]]
    for fresh in noise[1:]:
        rows.append(rho * rows[-1] + (1 - rho**2) ** 0.5 * fresh)
    return F.normalize(torch.stack(rows), dim=-1)[None]


def inputs(setting: Setting) -> tuple[tuple[Tensor, Tensor, Tensor, Gates], tuple[Tensor, ...]]:
    """q, k, v, constant gates, and initial weights, all float64."""
    generator = torch.Generator().manual_seed(SEED)
    q, k = (process(KEYS[setting.keys], generator) for _ in range(2))
    v = torch.randn(1, TOKENS, SEEDS, DIM, generator=generator, dtype=torch.float64)
    drawn = initial_weights(setting.spec, SEEDS, DIM, SEED)
    assert drawn is not None
    weights = tuple(weight.double() for weight in drawn)
    point: Point = {"step": setting.step, "decay": setting.decay, "delta": DELTA, "mu": MU}
    if not isinstance(setting.spec.algorithm, algorithm.Momentum):
        del point["mu"]
    values = gate_values(setting.spec, point, unit_step(setting.spec, weights))
    gates = Gates(**{name: torch.full((SEEDS,), value, dtype=torch.float64) for name, value in values.items()})
    return (q, k, v, gates), weights


def apart(x: Tensor, exact: Tensor) -> list[float]:
    """||x - exact|| / ||exact|| of each repeat; the repeats stand where heads do, second or third."""
    axis = 2 if x.shape[2] == SEEDS else 1
    rows, wanted = (t.movedim(axis, 0).flatten(1) for t in (x, exact))
    return ((rows - wanted).norm(dim=1) / wanted.norm(dim=1)).tolist()


def compared(y: Tensor, state: AnyState, exact: Tensor, wanted: AnyState) -> dict[str, list[float]]:
    """How far outputs and final weights are apart, relative to the exact ones."""
    pairs = zip(as_tuple(state.weights), as_tuple(wanted.weights), strict=True)
    return {"y": apart(y, exact), **{f"W{i}": apart(w, v) for i, (w, v) in enumerate(pairs, 1)}}


@torch.no_grad()
def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """One row for each chunk size: the drift of every repeat, its median, and how far learning itself moved things."""
    given, weights = inputs(setting)
    q, k, v, gates = given
    exact, wanted = memorize(setting.spec, *given, weights=weights, form="recurrent")
    _, untouched = memorize(setting.spec, q[:, :0], k[:, :0], v[:, :0], gates, weights=weights, form="recurrent")
    moved = compared(recall(setting.spec, untouched, q), untouched, exact, wanted)
    for chunk in setting.chunks:
        y, state = memorize(setting.spec, *given, weights=weights, form="chunk", chunk_size=chunk)
        drift = compared(y, state, exact, wanted)
        yield {
            "part": setting.part,
            "name": setting.name,
            "keys": setting.keys,
            "step": setting.step,
            "decay": setting.decay,
            "chunk": chunk,
            "drift": {name: statistics.median(values) for name, values in drift.items()},
            "moved": {name: statistics.median(values) for name, values in moved.items()},
            "drift_of_each": {name: [float(f"{value:.4g}") for value in values] for name, values in drift.items()},
            "spec": str(setting.spec),
            "gates": {name: float(gate[0]) for name, gate in gates._asdict().items() if gate is not None},
            "tokens": TOKENS,
            "dim": DIM,
            "seed": SEED,
            "repeats": SEEDS,
        }
