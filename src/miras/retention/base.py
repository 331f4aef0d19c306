"""The room of retentions: what is kept of the past.

A retention acts on one weight at a time, ``[B,H,out,in]`` for a matrix and ``[B,H,D]`` for a vector; gates arrive shaped to
broadcast against it. A is what it accumulates in, W what the memory reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from ..types import Gate, Held, Part, Rule


class Rates(NamedTuple):
    """How fast one token moves a weight: logarithm of what is kept, step, soft threshold (None: 1, -, 0)."""

    log_decay: Tensor | None
    step: Tensor
    threshold: Tensor | None


class Linear(NamedTuple):
    """How a weight moves inside a chunk: W_t = towards + b_t (base - towards) - slope * (G_t, centred over its slice).

    b_t is the decay since the chunk's start (1 unless ``decays``), G_t the decayed sum of the steps, ``towards`` None for 0.
    """

    base: Tensor
    decays: bool = True
    towards: Tensor | None = None
    slope: Tensor | None = None
    centre: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Retention(Part, ABC):
    """What a step keeps of the state: the minimiser of <W - W_prev, g> + Ret(W, W_prev).

    A retention of one's own needs ``step`` and ``rule``. The other methods hold for one that accumulates in W itself, takes
    its surprise there, and moves linearly inside a chunk; where one of these is not so, it says so.
    """

    room: ClassVar[str] = "retention"
    # True where the penalty cannot carry a channel-wise eta: the objective is then <W - W_prev, eta g> + Ret
    scales_gradient: ClassVar[bool] = False

    # True where ``step`` over a chunk is what ``linear`` gives at its end, so that the last token needs no read of its own
    linear_step: ClassVar[bool] = False
    # True where the thresholds of a chunk's tokens add up (decayed); elsewhere the last token's holds
    sums_thresholds: ClassVar[bool] = False
    # whether zeros are a place to start from in the space it accumulates in
    zero_start: ClassVar[bool] = True

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The gates this retention reads besides eta."""
        return ()

    @property
    def anchored(self) -> bool:
        """Whether decay pulls towards the learned initial weights instead of zero."""
        return False

    @property
    def leads(self) -> bool:
        """Whether a chunk's first token takes the step alone, and the weights themselves move linearly after it."""
        return False

    def hold(self, weight: Tensor) -> Held:
        """The state of a weight that has moved linearly, for a retention that leads."""
        return Held(weight, weight)

    def start(self, initial: Tensor) -> Held:
        """The state of initial weights, given unconstrained in the space the retention accumulates in."""
        return Held(initial, initial)

    def rates(self, eta: Tensor, log_alpha: Tensor | None) -> Rates:
        """What one token's gates mean for this retention."""
        return Rates(log_alpha, eta, None)

    def probe(self, held: Held, log_decay: Tensor | None, anchor: Tensor | None) -> Tensor:
        """The weight at which the surprise is measured."""
        return held.weight

    def linear(self, held: Held, anchor: Tensor | None) -> Linear:
        """How the weight moves inside a chunk that starts at ``held``, before ``step`` is taken for the whole of it."""
        return Linear(held.weight, towards=anchor)

    @abstractmethod
    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        """The state after retaining ``exp(log_decay)`` of it and learning ``update``: of a token, or summed over a chunk."""

    @property
    def probe_rule(self) -> Rule:
        """Where the surprise is measured, as a formula."""
        return Rule("W_(t-1)", "W_{t-1}")

    @property
    def rate_rule(self) -> Rule:
        """What multiplies the gradient, as a formula."""
        return Rule("eta_t", r"\eta_t")

    @abstractmethod
    def rule(self, update: Rule) -> Rule:
        """The step, as a formula, given the formula of what is learned."""

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        """Ret(W, W_prev), whose minimiser with the linearised loss is ``step``; infinite outside its domain."""
        raise ValueError(f"{self.label} states no penalty: its step is not known to minimise one")

    def objective(
        self,
        weight: Tensor,
        held: Held,
        gradient: Tensor,
        eta: Tensor,
        log_alpha: Tensor | None = None,
        anchor: Tensor | None = None,
    ) -> Tensor:
        """<W - W_prev, g> + Ret(W, W_prev): what ``step`` minimises (with eta g for g where ``scales_gradient``)."""
        slope = eta * gradient if self.scales_gradient else gradient
        return ((weight - held.weight) * slope).sum() + self.penalty(weight, held, eta, log_alpha, anchor)


@dataclass(frozen=True, kw_only=True)
class Dual(Retention, ABC):
    """A retention that accumulates A = alpha A - eta g linearly and reads W = link(A). One's own is three short methods.

    >>> class Cubic(Dual):
    ...     def to_weight(self, accumulated):
    ...         return accumulated + accumulated**3
    ...     def slope(self, accumulated):
    ...         return 1 + 3 * accumulated**2
    ...     def rule(self, update):
    ...         return Rule(f"A_t = A_(t-1) - {update.text}, W_t = A_t + A_t^3", "...")
    """

    @abstractmethod
    def to_weight(self, accumulated: Tensor) -> Tensor:
        """W as a function of A."""

    @abstractmethod
    def slope(self, accumulated: Tensor) -> Tensor:
        """dW/dA, coordinate by coordinate: how far a weight moves inside a chunk."""

    def start(self, initial: Tensor) -> Held:
        return Held(initial, self.to_weight(initial))

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        accumulated = decay(held.accumulated, log_decay, anchor) - update
        return Held(accumulated, self.to_weight(accumulated))

    def linear(self, held: Held, anchor: Tensor | None) -> Linear:
        """W_t = b_t W - s G_t with s the mean slope of the link at A, one scalar a matrix."""
        slope = self.slope(held.accumulated).mean(weight_axes(held.weight), keepdim=True)
        return Linear(held.weight, towards=None if anchor is None else self.to_weight(anchor), slope=slope)


def decay(accumulated: Tensor, log_decay: Tensor | None, anchor: Tensor | None) -> Tensor:
    """alpha A, or alpha A + (1 - alpha) A_0 with an anchor."""
    if log_decay is None:
        return accumulated
    kept = log_decay.exp()
    return kept * accumulated if anchor is None else anchor + kept * (accumulated - anchor)


def weight_axes(weight: Tensor) -> tuple[int, ...]:
    """The axes of one weight of one head: all but batch and head."""
    return tuple(range(2 - weight.dim(), 0))
