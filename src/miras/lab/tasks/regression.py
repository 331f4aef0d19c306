"""In-context linear regression, after Garg et al. (2022).

B rows, T time, N = T/2 points, K channels of a point
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ...types import require
from .base import Task, Vectors, VectorTask, lengthened


@dataclass(frozen=True, kw_only=True)
class LinearRegression(VectorTask):
    """Points x and their y = w.x / sqrt(K) in turn, each row with its own w; y is asked for at x, from the (K+1)-th point on.

    An input is (x, 0) or (0, y). Whoever solves the least squares of the points before knows y exactly, up to the noise.
    """

    name: ClassVar[str] = "regression"
    dim: int = 8
    length: int = 128
    noise: float = 0.0

    def __post_init__(self) -> None:
        require(self.length % 2 == 0, f"length must be even, two for each point, got {self.length}")
        least = 2 * self.dim + 2
        require(self.length >= least, f"length={self.length} leaves nothing to ask after {self.dim} points: give {least}")

    @property
    def widths(self) -> tuple[int, int]:
        return self.dim + 1, 1

    def draw(self, rows: int, random: torch.Generator) -> Vectors:
        points = self.length // 2
        x = torch.randn(rows, points, self.dim, generator=random, device=random.device)
        w = torch.randn(rows, self.dim, 1, generator=random, device=random.device)
        y = x @ w / self.dim**0.5
        seen = y + self.noise * torch.randn(y.shape, generator=random, device=random.device)
        inputs = torch.stack([F.pad(x, (0, 1)), F.pad(seen, (self.dim, 0))], 2).flatten(1, 2)
        where = 2 * torch.arange(self.dim, points, device=random.device).expand(rows, -1)
        return Vectors(inputs, where, y[:, self.dim :])

    def readings(self) -> dict[str, Task]:
        """More points."""
        return lengthened(self)
