"""The room of memories: what stores.

B batch, H heads, N tokens that read the same weights, K key channels, V value channels
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from ..types import Norm, Part, Rule, Weights


class Map(Protocol):
    """A linear map that one weight stands for; the chunk form gives maps that are never materialised."""

    def __call__(self, x: Tensor) -> Tensor:
        """W x for every token: ``[B,H,N,in] -> [B,H,N,out]``."""

    def transpose(self, u: Tensor) -> Tensor:
        """W' u for every token: ``[B,H,N,out] -> [B,H,N,in]``."""


# its rows, its columns, everywhere with the mean over the channels, or (a vector) each entry with its own
Side = Literal["out", "in", "mean", "each"]


class Factor(NamedTuple):
    """A weight's gradient before the outer product is taken: errors at its output, its inputs, for each token."""

    error: Tensor
    input: Tensor


@dataclass(frozen=True, kw_only=True)
class Memory(Part, ABC):
    """M(W; x): an associative memory, linear in each of its weights, with the closed-form gradient of all of them."""

    room: ClassVar[str] = "memory"

    square: ClassVar[bool]  # keys and values must have the same width
    linear: ClassVar[bool]  # linear in the weights as a whole, so that implicit and exact solutions exist
    zero_start: ClassVar[bool]  # weights of zero are a place to start from
    normed: ClassVar[bool] = False  # it has a LayerNorm, whose gain and shift are given from outside

    @abstractmethod
    def shapes(self, keys: int, values: int) -> tuple[tuple[int, ...], ...]:
        """The shape of each weight of one head, outermost first."""

    @abstractmethod
    def maps(self, weights: Weights) -> tuple[Map, ...]:
        """The linear maps of given weights ``[B,H,...]``."""

    @abstractmethod
    def trace(self, maps: Sequence[Map], x: Tensor, norm: Norm | None) -> tuple[Tensor, Any]:
        """M(W; x) and what ``backprop`` needs of the way there."""

    @abstractmethod
    def backprop(self, maps: Sequence[Map], trace: Any, error: Tensor) -> tuple[Factor, ...]:
        """The factors of each weight's gradient, given the gradient at the prediction."""

    @abstractmethod
    def gradient(self, factor: Factor) -> Tensor:
        """A weight's gradient, summed over the tokens of its factor."""

    @property
    @abstractmethod
    def sides(self) -> tuple[Side, ...]:
        """Where a channel-wise gate acts on each weight."""

    @abstractmethod
    def curvature(self, k: Tensor) -> Tensor:
        """k.k as it enters the implicit step, ``[B,H,D or 1]``, for a linear memory."""

    @abstractmethod
    def rule(self) -> Rule:
        """M(x), as a formula."""

    @abstractmethod
    def gradient_rule(self, error: Rule) -> Rule:
        """The gradient of the weights, as a formula, given that of the error at the prediction."""

    def recall(self, maps: Sequence[Map], x: Tensor, norm: Norm | None) -> Tensor:
        """M(W; x): ``[B,H,N,K] -> [B,H,N,V]``."""
        return self.trace(maps, x, norm)[0]
