"""What a memory needs when no layer has learned it: initial weights, and gates from one small grid.

R rows (a setting of the gates, or an outlier share, each), T pairs, H repeats (they run as heads), D channels
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..algorithm import Descent, NonParametric
from ..memorize import memorize, recall
from ..nn.initial import SPREAD, learns_start, link_factor
from ..retention import Lq
from ..spec import Spec
from ..types import Gates, Weights

# A step is relative to the weights it moves: eta = step * std(W_0) * std(A_0), and times 1 - mu with momentum, so that one grid
# serves every memory. A decay is -log alpha.
GRID: dict[str, tuple[float, ...]] = {
    "step": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "decay": (0.0, 0.003, 0.01, 0.03, 0.1),
    "delta": (0.3, 1.0, 3.0, 10.0),
    "mu": (0.3, 0.6, 0.9),
}
GRID_OF_GATE = {"eta": "step", "log_alpha": "decay", "delta": "delta", "mu": "mu"}
# Newton's steps weight the pairs against this ridge, the least that the published model allows itself
RIDGE = 0.25
# softmax attention is tuned over logit scales of D to these powers
SCALE_POWERS = (-0.5, 0.0, 0.5, 1.0)
# the weights of one call stay near what a processor's cache holds
FLOATS_A_CALL = 2**20

Point = dict[str, float]


def variants(spec: Spec, dim: int) -> list[Spec]:
    """The spec with each value of the parameters that are no gates: the scale of softmax attention."""
    if not isinstance(spec.algorithm, NonParametric):
        return [spec]
    scales = [dim**power for power in SCALE_POWERS]
    return [dataclasses.replace(spec, algorithm=NonParametric(scale=scale)) for scale in scales]


def grid(spec: Spec) -> list[Point]:
    """Every setting of the gates that the spec asks for."""
    axes = [GRID_OF_GATE[gate.name] for gate in spec.gates if gate.name in GRID_OF_GATE]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*(GRID[axis] for axis in axes))]


def initial_weights(spec: Spec, repeats: int, dim: int, seed: int) -> Weights | None:
    """Weights of unit scale ``[H,...]``, in the space the retention accumulates in; None where zeros are a place to start."""
    if not learns_start(spec):
        return None
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(repeats, *shape, generator=generator) for shape in spec.memory.shapes(dim, dim)]
    if isinstance(spec.retention, Lq):
        return tuple(weight * link_factor(spec.retention, weight[None]) for weight in drawn)
    return tuple(drawn) if spec.retention.zero_start else tuple(SPREAD * weight for weight in drawn)


def unit_step(spec: Spec, weights: Weights | None) -> float:
    """std(W_0) * std(A_0), the eta of a relative step of 1; 1 for weights that start from zero."""
    if weights is None:
        return 1.0
    held = [spec.retention.start(weight[None]) for weight in weights]
    return sum(float(h.weight.std() * h.accumulated.std()) for h in held) / len(held)


def gate_values(spec: Spec, point: Point, unit: float) -> Point:
    """One setting of the grid as the values of the spec's gates."""
    names = {gate.name for gate in spec.gates}
    values: Point = {}
    if "eta" in names:
        values["eta"] = point["step"] * unit * (1 - point.get("mu", 0.0))
    if "log_alpha" in names:
        # an outer-product decay acts on both sides, so each has half of it
        values["log_alpha"] = -point["decay"] / (2 if "log_beta" in names else 1)
    if "log_beta" in names:
        values["log_beta"] = values["log_alpha"]
    values |= {name: point[name] for name in ("delta", "mu") if name in names}
    if "ridge" in names:
        values["ridge"] = RIDGE
    return values


def gates_for(spec: Spec, values: Sequence[Point], keys: Tensor) -> Gates:
    """The gates of every row, constant in time; a removal key is the key itself, ``[R,T,H,D]``."""
    rows, time, heads, dim = keys.shape
    found: dict[str, Tensor] = {}
    for name in values[0]:
        steps = time * pairs_a_token(spec) if name == "eta" else time
        found[name] = torch.tensor([value[name] for value in values])[:, None, None].expand(rows, steps, heads)
    if "ridge" in found:
        found["ridge"] = torch.full((heads, dim), values[0]["ridge"])
    if spec.decoupled:
        found["kappa"] = keys
    return Gates(**found)


def pairs_a_token(spec: Spec) -> int:
    """How many pairs a token learns: a spec that takes several gets the same one several times."""
    return spec.algorithm.pairs if isinstance(spec.algorithm, Descent) else 1


def read_back(spec: Spec, points: Sequence[Point], keys: Tensor, seen: Tensor, weights: Weights | None) -> Tensor:
    """What each row recalls of every key once it has read all pairs ``[R,T,H,D]``: keys ``[T,H,D]``, seen ``[R,T,H,D]``."""
    unit = unit_step(spec, weights)
    values = [gate_values(spec, point, unit) for point in points]
    read = []
    for rows in batches(spec, len(points), keys):
        k = keys.expand(rows.stop - rows.start, *keys.shape)
        gates = gates_for(spec, values[rows], k)
        # a decoupled write has no rate of its own: the key carries it, so that as much is written as is removed
        written = k * gates.eta[..., None] if spec.decoupled and gates.eta is not None else k
        pairs = pairs_a_token(spec)
        written, value = (x.repeat_interleave(pairs, 1) for x in (written, seen[rows]))
        given = weights[0] if weights is not None and len(weights) == 1 else weights
        _, state = memorize(spec, k, written, value, gates, weights=given, form="recurrent")
        read.append(recall(spec, state, k))
    return torch.cat(read)


def batches(spec: Spec, rows: int, keys: Tensor) -> Iterator[slice]:
    """The rows in calls of a bounded size."""
    _, heads, dim = keys.shape
    floats = heads * sum(math.prod(shape) for shape in spec.memory.shapes(dim, dim))
    size = max(1, FLOATS_A_CALL // floats)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
