"""Linear maps that stand for the weights of every token of a chunk without being written out.

Queries and errors come as ``[...,C,D]``, weights as ``[...,D,D]`` or, of a vector memory, ``[...,D]``.

C tokens of a chunk, D channels
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory import Factor
from ..products import times
from ..retention import Linear
from .pace import Pace


@dataclass(frozen=True)
class Decayed:
    """The map of token t's retained weights, towards + b_t (W - towards): where ``at="decayed"`` takes its gradients."""

    weight: Tensor
    towards: Tensor | None
    pace: Pace
    chunk: int

    def _kept(self, x: Tensor, inner: bool) -> Tensor:
        for gate in self.pace.kept:
            x = x * self.pace.at(gate, self.chunk).value if (gate.axis == "in") == inner else x
        return x

    def _times(self, x: Tensor, weight: Tensor, transposed: bool) -> Tensor:
        if self.pace.vector:
            return x * weight[..., None, :]
        return x @ weight if transposed else times(x, weight)

    def _apply(self, x: Tensor, transposed: bool) -> Tensor:
        away = self.weight if self.towards is None else self.weight - self.towards
        y = self._kept(self._times(self._kept(x, not transposed), away, transposed), transposed)
        return y if self.towards is None else y + self._times(x, self.towards, transposed)

    def __call__(self, x: Tensor) -> Tensor:
        return self._apply(x, False)

    def transpose(self, u: Tensor) -> Tensor:
        return self._apply(u, True)


@dataclass(frozen=True)
class Read:
    """The map of token t's weights inside a chunk, never materialised: towards + b_t (base - towards) - slope * centred G_t."""

    linear: Linear
    pace: Pace
    factor: Factor
    moved: Tensor | None
    momentum: Tensor | None

    def _plain(self, weight: Tensor, x: Tensor) -> Tensor:
        return x * weight[..., None, :] if self.pace.vector else times(x, weight)

    def _kept(self, weight: Tensor, x: Tensor) -> Tensor:
        return self.pace.keep_out(self._plain(weight, self.pace.keep_in(x)))

    def _base(self, x: Tensor) -> Tensor:
        base, decays, towards, *_ = self.linear
        if not decays:
            return self._plain(base, x)
        if towards is None:
            return self._kept(base, x)
        return self._plain(towards, x) + self._kept(base - towards, x)

    def _update(self, x: Tensor) -> Tensor:
        """G_t x: what was carried in, what momentum adds, what the chunk's own tokens add."""
        update = self.pace.mix(x, self.factor)
        if self.moved is not None:
            update = update + self._kept(self.moved, x)
        if self.momentum is not None:
            assert self.pace.carried is not None
            axis, carried = self.pace.carried
            inner = axis == "in" and not self.pace.vector
            plain = self._plain(self.momentum, x * carried if inner else x)
            update = update + (plain if inner else plain * carried)
        return update

    def __call__(self, x: Tensor) -> Tensor:
        slope, centre = self.linear.slope, self.linear.centre
        if self.pace.vector and centre:
            ones = torch.ones_like(x)
            update = self._update(ones)
            update = (update - update.mean(-1, keepdim=True)) * x
        elif centre == (-1,):
            update = self._update(x - x.mean(-1, keepdim=True))
        elif centre == (-2,):
            update = self._update(x)
            update = update - update.mean(-1, keepdim=True)
        elif centre:
            mean = self._update(x.mean(-1, keepdim=True).expand_as(x)).mean(-1, keepdim=True)
            update = self._update(x) - mean
        else:
            update = self._update(x)
        if slope is not None:
            update = update * (slope if self.pace.vector else slope.flatten(-2)).unsqueeze(-2)
        return self._base(x) - update

    def transpose(self, u: Tensor) -> Tensor:
        raise AssertionError("a read is never differentiated by the inner loop")
