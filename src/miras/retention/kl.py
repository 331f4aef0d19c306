"""KL retention (Memora): weights on a scaled simplex, W = c softmax(alpha log W_prev - eta g)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..types import Gate, Held, Rule, require
from .base import Linear, Retention, decay
from .simplex import Slice, in_simplex, linear_in_simplex, log_simplex

FLOOR = 1e-8
Chunk = Literal["lag", "dual"]


@dataclass(frozen=True, kw_only=True)
class KL(Retention):
    """W = c softmax(alpha log W_prev - eta g) over each slice of a weight; weights are kept >= 1e-8 before the logarithm.

    It minimises <W - W_prev, eta g> + sum W (log W - alpha log W_prev) over the simplex: KL to the past and negative entropy
    (with ``anchor``: KL to W_0). ``slice`` is a row (over the input side), a column, or the whole matrix; ``c`` is the sum of
    a slice, its length if None. ``chunk`` says how the chunk form approximates: "lag", the paper's, takes the exact step on
    the first token of a chunk and moves the weights linearly after it; "dual" accumulates in log W and maps at the chunk's end.
    """

    c: float | None = None
    slice: Slice = "column"
    chunk: Chunk = "lag"
    anchor: bool = False
    scales_gradient = True
    zero_start = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.c is None or self.c > 0, f"KL needs c > 0, or None for the slice's length, got {self.c}")
        require(self.slice in get_args(Slice), f"KL slice is one of {get_args(Slice)}, got {self.slice!r}")
        require(self.chunk in get_args(Chunk), f"KL chunk is one of {get_args(Chunk)}, got {self.chunk!r}")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return (Gate("log_alpha", "value"),)

    @property
    def anchored(self) -> bool:
        return self.anchor

    @property
    def leads(self) -> bool:
        return self.chunk == "lag"

    def hold(self, weight: Tensor) -> Held:
        return Held(weight.clamp_min(FLOOR).log(), weight)

    def start(self, initial: Tensor) -> Held:
        accumulated = log_simplex(initial, self.slice, self.c)
        return Held(accumulated, accumulated.exp())

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        previous = held.accumulated.clamp_min(math.log(FLOOR))
        return self.start(decay(previous, log_decay, anchor) - update)

    def linear(self, held: Held, anchor: Tensor | None) -> Linear:
        return linear_in_simplex(held.weight, self.slice, self.c)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        previous = decay(held.accumulated.clamp_min(math.log(FLOOR)), log_alpha, anchor)
        value = (weight * (weight.clamp_min(1e-300).log() - previous)).sum()
        return torch.where(in_simplex(weight, self.slice, self.c), value, torch.inf)

    def rule(self, update: Rule) -> Rule:
        pull = (" + (1 - alpha_t) log W_0", r" + (1 - \alpha_t) \log W_0") if self.anchor else ("", "")
        return Rule(
            f"W_t = c softmax(alpha_t log W_(t-1){pull[0]} - {update.text})",
            rf"W_t = c\, \mathrm{{Softmax}}\left(\alpha_t \log W_{{t-1}}{pull[1]} - {update.latex}\right)",
        )
