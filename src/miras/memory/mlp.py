"""MLP memory with residual and LayerNorm: M(x) = x + LN(W1 gelu(W2 ... x)).

B batch, H heads, N tokens, D = K = V channels, E = expansion * D hidden channels
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import Norm, Rule, Weights, require
from .base import Factor, Map, Memory, Side
from .matrix import Dense

EPS = 1e-6


class Trace(NamedTuple):
    """Each weight's input and output, outermost first."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    norm: Norm | None


def gelu(x: Tensor) -> Tensor:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the tanh form."""
    return F.gelu(x, approximate="tanh")


def gelu_slope(x: Tensor) -> Tensor:
    """gelu'(x) = (1 + tanh z)/2 + x/2 (1 - tanh^2 z) z', z = sqrt(2/pi) (x + 0.044715 x^3)."""
    scale = math.sqrt(2 / math.pi)
    tanh = torch.tanh(scale * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * scale * (1 + 3 * 0.044715 * x**2)


def standardise(h: Tensor) -> tuple[Tensor, Tensor]:
    """(h - mean) / std over the channels, and 1 / std."""
    centred = h - h.mean(-1, keepdim=True)
    inverse = torch.rsqrt((centred**2).mean(-1, keepdim=True) + EPS)
    return centred * inverse, inverse


def layer_norm(h: Tensor, norm: Norm | None) -> Tensor:
    """gain * (h - mean)/std + shift; gain and shift arrive shaped to broadcast against h ``[B,H,...,N,V]``."""
    unit, _ = standardise(h)
    return unit if norm is None else norm.gain * unit + norm.shift


def layer_norm_backprop(h: Tensor, norm: Norm | None, error: Tensor) -> Tensor:
    """The gradient at h: (e - mean(e) - unit * mean(e * unit)) / std with e = gain * error."""
    unit, inverse = standardise(h)
    error = error if norm is None else norm.gain * error
    along = (error * unit).mean(-1, keepdim=True)
    return inverse * (error - error.mean(-1, keepdim=True) - unit * along)


@dataclass(frozen=True, kw_only=True)
class MLP(Memory):
    """M(x) = x + LN(W1 gelu(W2 x)) and its relatives of depth 1 (TTT-Linear's memory) to 4.

    >>> MLP().shapes(64, 64)
    ((64, 256), (256, 64))
    """

    depth: int = 2
    expansion: int = 4
    square = True
    linear = False
    zero_start = False
    normed = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.depth <= 4, f"MLP depth is 1 to 4, got {self.depth}")
        require(self.expansion >= 1, f"MLP expansion is 1 or more, got {self.expansion}")

    def shapes(self, keys: int, values: int) -> tuple[tuple[int, ...], ...]:
        hidden = self.expansion * keys
        widths = (values, *[hidden] * (self.depth - 1), keys)
        return tuple(itertools.pairwise(widths))

    def maps(self, weights: Weights) -> tuple[Map, ...]:
        return tuple(Dense(weight) for weight in weights)

    def trace(self, maps: Sequence[Map], x: Tensor, norm: Norm | None) -> tuple[Tensor, Trace]:
        inputs, outputs = [x], [maps[-1](x)]
        for layer in reversed(maps[:-1]):
            inputs.insert(0, gelu(outputs[0]))
            outputs.insert(0, layer(inputs[0]))
        prediction = x + layer_norm(outputs[0], norm)
        return prediction, Trace(tuple(inputs), tuple(outputs), norm)

    def backprop(self, maps: Sequence[Map], trace: Trace, error: Tensor) -> tuple[Factor, ...]:
        errors = [layer_norm_backprop(trace.outputs[0], trace.norm, error)]
        for layer, output in zip(maps, trace.outputs[1:], strict=False):
            errors.append(gelu_slope(output) * layer.transpose(errors[-1]))
        return tuple(Factor(e, z) for e, z in zip(errors, trace.inputs, strict=True))

    def gradient(self, factor: Factor) -> Tensor:
        return factor.error.mT @ factor.input

    @property
    def sides(self) -> tuple[Side, ...]:
        """Rows of the outermost weight, columns of the innermost, the mean over channels in between."""
        middle: list[Side] = ["mean"] * (self.depth - 2)
        return ("out",) if self.depth == 1 else ("out", *middle, "in")

    def curvature(self, k: Tensor) -> Tensor:
        raise ValueError(f"{self.label} is not a linear memory: the implicit step is defined for Matrix and Vector only")

    def rule(self) -> Rule:
        inner, latex = "x", "x"
        for layer in range(self.depth, 0, -1):
            argument = inner if layer == self.depth else f"gelu({inner})"
            nested = latex if layer == self.depth else rf"\sigma({latex})"
            inner, latex = f"W{layer} {argument}", f"W_{layer} {nested}"
        return Rule(f"M(x) = x + LN({inner})", rf"\mathcal{{M}}(x) = x + \mathrm{{LN}}({latex})")

    def gradient_rule(self, error: Rule) -> Rule:
        return Rule(
            f"grad_W <M(W; k_t), {error.text}>", rf"\nabla_W \langle \mathcal{{M}}(W; \mathbf{{k}}_t), {error.latex} \rangle"
        )
