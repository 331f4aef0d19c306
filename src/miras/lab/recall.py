"""The recall experiment: stream pairs through memories, then ask each for every pair it was shown.

Memories run in the recurrent form, one gradient a pair, those too whose published form takes gradients in mini-batches.

S outlier shares, R rows, T pairs, H repeats (they run as heads), D channels
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import presets
from ..spec import Spec
from ..types import require
from .stream import draw, outlier_count
from .untrained import Point, gate_values, grid, initial_weights, read_back, unit_step, variants

DEFAULT_PRESETS = (
    "linear_attention",
    "gla",
    "deltanet",
    "gated_deltanet",
    "mesa",
    "transformer",
    "ttt_mlp",
    "titans_lmm",
    "moneta",
    "yaad",
    "memora",
)
AGE_BINS = 8
# a recall this far from values of unit variance is as lost as one that is not a number
LOST = 1e6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is streamed, and through what. ``seeds`` repeats differ in keys, values, noise and initial weights."""

    presets: tuple[str, ...] = DEFAULT_PRESETS
    pairs: int = 128
    dim: int = 32
    seeds: int = 8
    outliers: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)
    seed: int = 0

    def __post_init__(self) -> None:
        require(len(self.presets) > 0, "recall needs at least one preset")
        for name in self.presets:
            reason = unfit(presets.get(name))
            require(not reason, f"{name} cannot take part in recall: {reason}")
        require(self.pairs >= 1, f"pairs must be at least 1, got {self.pairs}")
        require(self.dim >= 2, f"dim must be at least 2 (values are standardised over the channels), got {self.dim}")
        require(self.seeds >= 1, f"seeds must be at least 1, got {self.seeds}")
        require(0 <= self.seed < 2**31, f"seed must be at least 0 and less than 2^31, got {self.seed}")
        require(len(self.outliers) > 0, "recall needs at least one outlier share")
        rising = list(self.outliers) == sorted(set(self.outliers))
        require(rising, f"outlier shares must rise and differ, got {', '.join(f'{s:g}' for s in self.outliers)}")
        for share in self.outliers:
            require(0 <= share < 1, f"an outlier share is at least 0 and less than 1, got {share:g}")
            left = outlier_count(share, self.pairs) < self.pairs
            require(left, f"an outlier share of {share:g} leaves none of {self.pairs} pairs to recall")

    @property
    def middle(self) -> int:
        """Which of the outlier shares the gates are tuned at."""
        return len(self.outliers) // 2

    @property
    def ages(self) -> list[tuple[int, int]]:
        """The first and last age of each bin, 1 for the newest pair."""
        bins = min(AGE_BINS, self.pairs)
        edges = [self.pairs * i // bins for i in range(bins + 1)]
        return [(first + 1, last) for first, last in itertools.pairwise(edges)]


class Level(NamedTuple):
    """How well the clean pairs were recalled at one outlier share; ``by_age`` is the cosine in each bin, the newest first.

    ``standard_error`` is over the repeats, None for one. ``lost`` counts recalls that overflowed; their cosine counts as 0.
    """

    share: float
    cosine: float
    standard_error: float | None
    relative_error: float
    by_age: tuple[float | None, ...]
    lost: int


class Outcome(NamedTuple):
    """A preset's recall: the gates chosen for it, how well it did where they were chosen, and at each outlier share."""

    spec: Spec
    grid: Point
    gates: Point
    tuning_cosine: float
    levels: tuple[Level, ...]


def unfit(spec: Spec) -> str:
    """Why a spec cannot be given keys to store, or nothing."""
    return "it writes with the key 1 - alpha, so no key can be given to it" if spec.tied else ""


def experiment(name: str, settings: Settings) -> Outcome:
    """Tune a preset's gates at the middle outlier share on pairs of their own, then measure it on others at every share."""
    with one_thread():
        spec, point, score = tune(presets.get(name), settings)
        return measure(spec, point, score, settings)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: each operation is small, and on a busy machine threads spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure(spec: Spec, point: Point, score: float, settings: Settings) -> Outcome:
    """Measure a spec with chosen gates at every outlier share."""
    weights = initial_weights(spec, settings.seeds, settings.dim, 2 * settings.seed)
    stream = draw(
        pairs=settings.pairs, repeats=settings.seeds, dim=settings.dim, shares=settings.outliers, seed=2 * settings.seed
    )
    read = read_back(spec, [point] * len(settings.outliers), stream.keys, stream.seen, weights)
    levels = [
        level(share, y, stream.values, ~noisy, settings)
        for share, y, noisy in zip(settings.outliers, read, stream.noisy, strict=True)
    ]
    return Outcome(spec, point, gate_values(spec, point, unit_step(spec, weights)), score, tuple(levels))


def tune(spec: Spec, settings: Settings) -> tuple[Spec, Point, float]:
    """The setting of the grid that recalls the clean pairs best, and its mean cosine."""
    share, seed = settings.outliers[settings.middle], 2 * settings.seed + 1
    stream = draw(pairs=settings.pairs, repeats=settings.seeds, dim=settings.dim, shares=(share,), seed=seed)
    clean = ~stream.noisy[0]
    tried = []
    for variant in variants(spec, settings.dim):
        weights = initial_weights(variant, settings.seeds, settings.dim, seed)
        points = grid(variant)
        read = read_back(variant, points, stream.keys, stream.seen.expand(len(points), -1, -1, -1), weights)
        scores = [float(cosine(readable(y)[0], stream.values)[clean].mean()) for y in read]
        tried += [(variant, point, score) for point, score in zip(points, scores, strict=True)]
    return max(tried, key=lambda one: one[2])


def level(share: float, read: Tensor, values: Tensor, clean: Tensor, settings: Settings) -> Level:
    """Compare what was read with the values, both ``[T,H,D]``, where ``clean`` ``[T,H]``."""
    y, lost = readable(read)
    similar = cosine(y, values)
    error = (y - values).norm(dim=-1) / values.norm(dim=-1)
    repeats = torch.stack([similar[:, h][clean[:, h]].mean() for h in range(settings.seeds)])
    return Level(
        share=share,
        cosine=float(similar[clean].mean()),
        standard_error=float(repeats.std() / math.sqrt(settings.seeds)) if settings.seeds > 1 else None,
        relative_error=float(error[clean].mean()),
        by_age=tuple(mean_of(similar[ages], clean[ages]) for ages in slices(settings)),
        lost=int(lost[clean].sum()),
    )


def slices(settings: Settings) -> list[slice]:
    """Where the pairs of each age bin stand in time; the last pair is the newest."""
    return [slice(settings.pairs - last, settings.pairs - first + 1) for first, last in settings.ages]


def mean_of(x: Tensor, chosen: Tensor) -> float | None:
    """The mean of what is chosen, None of nothing."""
    return float(x[chosen].mean()) if bool(chosen.any()) else None


def cosine(y: Tensor, values: Tensor) -> Tensor:
    """The cosine of two vectors, ``[...,D] -> [...]``; 0 for one that is zero."""
    return F.cosine_similarity(y, values, dim=-1)


def readable(y: Tensor) -> tuple[Tensor, Tensor]:
    """y ``[...,D]`` with zeros where it overflowed, and where that is ``[...]``."""
    lost = ~(y.abs() < LOST).all(-1)
    return torch.where(lost[..., None], 0.0, y), lost
