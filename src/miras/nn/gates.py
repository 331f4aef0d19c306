"""Gates: what a layer decides token by token, as bounded functions of its input.

B batch, T time, C channels of the input, H heads, D channels of a head, P pairs a token
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import require, require_kinds
from .functional import logit, softplus_inverse, takes_kernels

LinkName = Literal["sigmoid", "softplus", "decay", "soft_decay", "bounded_decay", "ridge", "slopes"]
GateName = Literal["eta", "log_alpha", "log_beta", "delta", "mu", "ridge"]


Curve = Literal["sigmoid", "softplus", "log_sigmoid"]
CURVES: dict[Curve, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "log_sigmoid": F.logsigmoid,
}


class Link(NamedTuple):
    """A gate's value, a curve of a projection times a factor of its limit, and the projection that gives a wanted value."""

    curve: Curve
    factor: Callable[[float], float]
    inverse: Callable[[float, float], float]


LINKS: dict[str, Link] = {
    # a step or a momentum: limit * sigmoid(x)
    "sigmoid": Link("sigmoid", lambda limit: limit, lambda y, limit: logit(y / limit)),
    # a threshold: softplus(x)
    "softplus": Link("softplus", lambda limit: 1.0, lambda y, limit: softplus_inverse(y)),
    # log alpha = -softplus(x); wanted values are -log alpha here and below
    "decay": Link("softplus", lambda limit: -1.0, lambda y, limit: softplus_inverse(y)),
    # log alpha = log sigmoid(x) / limit
    "soft_decay": Link("log_sigmoid", lambda limit: 1 / limit, lambda y, limit: logit(math.exp(-y * limit))),
    # log alpha = -limit * sigmoid(x)
    "bounded_decay": Link("sigmoid", lambda limit: -limit, lambda y, limit: logit(y / limit)),
}


def linked(x: Tensor, bias: Tensor, factor: float, curve: Curve, lean: bool = False) -> Tensor:
    """factor * curve(x + bias), computed in float32 at least and given so, or in the dtype of x where that is asked for."""
    if takes_kernels(x):
        from ..kernels import gate_link

        if gate_link.takes(x, bias):
            return gate_link.gate_link(x.contiguous(), bias, factor, curve, lean)
    wide = torch.promote_types(x.dtype, torch.float32)
    value = CURVES[curve](x.to(wide) + bias.to(wide))
    value = value if factor == 1 else factor * value
    return value.to(x.dtype) if lean else value


@dataclass(frozen=True, kw_only=True)
class GateRecipe:
    """How a layer makes one gate.

    Attributes:
        name: which gate of the memory it is.
        link: the function that bounds it, see ``LINKS``; "ridge" is a learned constant, "slopes" is 2^(-8h/H), fixed.
        channelwise: one value a channel, or one a head.
        rank: of a low-rank projection, or None for a full one.
        start: the value it starts with, or the ends of a range of them (-log alpha for a decay).
        limit: its largest value (for "soft_decay" what divides it, for "ridge" its least).
        rate: whether a learned positive rate a head multiplies it.
        pace: what its matrices are multiplied by, which are as much larger: an optimiser that moves every number by about the
            learning rate moves the gate by so much less.
    """

    name: GateName
    link: LinkName
    channelwise: bool = False
    rank: int | None = None
    start: float | tuple[float, float] = 0.5
    limit: float = 1.0
    rate: bool = False
    pace: float = 1.0

    def __post_init__(self) -> None:
        require_kinds(self)
        require(self.name in get_args(GateName), f"a gate's name is one of {get_args(GateName)}, got {self.name!r}")
        require(self.link in get_args(LinkName), f"{self.name}'s link is one of {get_args(LinkName)}, got {self.link!r}")
        require(self.rank is None or self.rank >= 1, f"{self.name}'s rank must be 1 or more, or None, got {self.rank}")
        require(self.limit > 0, f"{self.name}'s limit must be > 0, got {self.limit}")
        require(self.pace > 0, f"{self.name}'s pace must be > 0, got {self.pace}")
        ends = self.start if isinstance(self.start, tuple) else (self.start, self.start)
        require(min(ends) > 0, f"{self.name}'s start must be > 0, got {self.start}")
        bounded = self.link in ("sigmoid", "bounded_decay")
        require(
            not bounded or max(ends) < self.limit,
            f"{self.name} starts at {self.start}, which must lie below its limit {self.limit}: give both",
        )


class Made(NamedTuple):
    """A gate as the memory takes it, and before a learned rate multiplied it, which is Mamba's time step."""

    value: Tensor
    unrated: Tensor


class Gate(nn.Module):
    """``[B,T,C] -> [B,T P,H]`` or ``[B,T P,H,D]``: a projection, full or of low rank, and a link.

    ``unit`` multiplies the value: the scale of the weights that a step moves, so that the learned step is relative. A ``lean``
    gate as large as the tokens is bf16 where they are: a step, a threshold and the logarithm of a decay need no more digits.
    """

    def __init__(
        self, recipe: GateRecipe, dim: int, heads: int, width: int, *, pairs: int = 1, unit: float = 1.0, lean: bool = False
    ) -> None:
        super().__init__()
        self.lean = lean and recipe.channelwise and recipe.name in ("eta", "log_alpha", "delta")
        self.recipe, self.heads, self.pairs, self.unit = recipe, heads, pairs, unit
        self.width = width if recipe.channelwise else None
        out = pairs * heads * (width if recipe.channelwise else 1)
        # no linear layers inside: a library that starts all of those in its own way leaves gates alone
        self.down = None if recipe.rank is None else nn.Parameter(torch.empty(recipe.rank, dim))
        self.up = nn.Parameter(torch.empty(out, recipe.rank or dim))
        self.bias = nn.Parameter(torch.empty(out))
        self.log_rate = nn.Parameter(torch.empty(heads)) if recipe.rate else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The bias sets the value a gate starts with, the weights move it a little."""
        if self.down is not None:
            nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5 / self.recipe.pace)
        nn.init.normal_(self.up, std=0.02 / self.recipe.pace)
        ends = self.recipe.start if isinstance(self.recipe.start, tuple) else (self.recipe.start, self.recipe.start)
        low, high = (LINKS[self.recipe.link].inverse(end, self.recipe.limit) for end in ends)
        nn.init.uniform_(self.bias, low, high)
        if self.log_rate is not None:
            nn.init.uniform_(self.log_rate, 0.0, math.log(16.0))

    @property
    def first(self) -> Tensor:
        """The matrix that the input meets."""
        return self.paced(self.up if self.down is None else self.down)

    def paced(self, matrix: Tensor) -> Tensor:
        """A matrix as the gate uses it."""
        return matrix if self.recipe.pace == 1 else self.recipe.pace * matrix

    def forward(self, x: Tensor, met: Tensor | None = None) -> Made:
        """The gate of x; ``met`` is x times the first matrix, where that was made together with others."""
        met = F.linear(x, self.first) if met is None else met
        x = met if self.down is None else F.linear(met, self.paced(self.up))
        link = LINKS[self.recipe.link]
        factor = link.factor(self.recipe.limit) * self.unit
        value = linked(x, self.bias, factor, link.curve, self.lean and x.dtype == torch.bfloat16)
        shape = (x.shape[0], x.shape[1] * self.pairs, self.heads)
        value = value.reshape(*shape) if self.width is None else value.reshape(*shape, self.width)
        if self.log_rate is None:
            return Made(value, value)
        rate = self.log_rate.to(value.dtype).exp()
        return Made(value * (rate if self.width is None else rate[:, None]), value)


class Ridge(nn.Module):
    """A learned constant ``[H,D]``, at least the recipe's limit."""

    def __init__(self, recipe: GateRecipe, heads: int, width: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.raw = nn.Parameter(torch.empty(heads, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        assert isinstance(self.recipe.start, float)
        nn.init.constant_(self.raw, softplus_inverse(self.recipe.start - self.recipe.limit))

    def forward(self, x: Tensor) -> Made:
        raw = self.raw if self.raw.dtype == torch.float64 else self.raw.float()
        value = self.recipe.limit + F.softplus(raw)
        return Made(value, value)


class Slopes(nn.Module):
    """log alpha_h = -2^(-8 h / H), h = 1..H: fixed, from a short memory to a long one."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Made:
        head = torch.arange(
            1, self.heads + 1, device=x.device, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32
        )
        value = -torch.exp2(-8 * head / self.heads)
        return Made(value, value)


def gate_of(
    recipe: GateRecipe, dim: int, heads: int, width: int, *, pairs: int = 1, unit: float = 1.0, lean: bool = False
) -> Gate | Ridge | Slopes:
    """The module that makes a gate."""
    if recipe.link == "ridge":
        return Ridge(recipe, heads, width)
    if recipe.link == "slopes":
        return Slopes(heads)
    return Gate(recipe, dim, heads, width, pairs=pairs, unit=unit, lean=lean)
