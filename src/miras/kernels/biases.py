"""Biases as device functions, chosen by a registered name: the gradient at the prediction, and that gradient's derivatives.

A coordinate-wise bias of one's own is fused by writing two ``@triton.jit`` functions of (error, delta, p), its gradient and the
gradient's derivative, and registering them for it:

    @triton.jit
    def log_cosh(error, delta, p: tl.constexpr):
        return 2 * tl.sigmoid(2 * error) - 1

    @triton.jit
    def log_cosh_slope(error, delta, p: tl.constexpr):
        return 1 - log_cosh(error, delta, p) * log_cosh(error, delta, p)

    register(LogCosh(), log_cosh, log_cosh_slope)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..bias import L1, Bias, Huber, Lp
from ..bias.base import EPS, SHARPNESS
from ..types import require


@triton.jit
def l2_gradient(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """e."""
    return error


@triton.jit
def l2_slope(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """1."""
    return error * 0 + 1.0


@triton.jit
def no_slope(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """0: a gradient that does not read delta."""
    return error * 0


@triton.jit
def huber_gradient(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """e within the threshold, delta sign(e) beyond it: a clamp."""
    return tl.minimum(tl.maximum(error, -delta), delta)


@triton.jit
def huber_slope(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """1 within the threshold, 0 beyond it."""
    return tl.where(tl.abs(error) <= delta, 1.0, 0.0)


@triton.jit
def huber_delta_slope(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """0 within the threshold, sign(e) beyond it."""
    return tl.where(tl.abs(error) <= delta, 0.0, tl.where(error >= 0, 1.0, -1.0))


@triton.jit
def smooth_sign(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """tanh(10 x), by the exponential of a number <= 0."""
    small = tl.exp(-20.0 * tl.abs(x))
    return tl.where(x >= 0, 1.0, -1.0) * (1.0 - small) / (1.0 + small)


@triton.jit
def root_power(square, n: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """x^n of x^2 > 0, by products and a root where n is a small whole number."""
    if n == 0.0:
        return square * 0 + 1.0
    elif n == 1.0:
        return tl.sqrt(square)
    elif n == 2.0:
        return square
    elif n == 3.0:
        return square * tl.sqrt(square)
    else:
        return tl.exp(0.5 * n * tl.log(square))


@triton.jit
def lp_gradient(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """p tanh(10 e) (e^2 + 1e-6)^((p-1)/2)."""
    return p * smooth_sign(error) * root_power(error * error + 1e-6, p - 1.0)


@triton.jit
def lp_slope(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """The derivative of both factors."""
    sign, square = smooth_sign(error), error * error + 1e-6
    power = root_power(square, p - 1.0)
    return p * power * (10.0 * (1.0 - sign * sign) + (p - 1.0) * sign * error / square)


class Device(NamedTuple):
    """A bias on the device: its gradient, and the gradient's derivatives in the error and in delta."""

    gradient: Any
    slope: Any
    delta_slope: Any


class Fused(NamedTuple):
    """A bias as the kernels take it: the name of its device functions, and its exponent."""

    name: str
    p: float


# by the name of their class, and of one's own by their label
DEVICE = {
    "L2": Device(l2_gradient, l2_slope, no_slope),
    "Huber": Device(huber_gradient, huber_slope, huber_delta_slope),
    "Lp": Device(lp_gradient, lp_slope, no_slope),
    # with p = 1 that of l_p
    "L1": Device(lp_gradient, lp_slope, no_slope),
}
OWN = frozenset(DEVICE)


def register(
    bias: Bias, gradient: Callable[..., Any], slope: Callable[..., Any], delta_slope: Callable[..., Any] | None = None
) -> None:
    """Fuse a coordinate-wise bias of one's own: ``@triton.jit`` functions of (error, delta, p), whose p is 2 and means nothing.

    They hold for the bias with just these parameters, which they do not see. One that reads the gate delta needs the
    gradient's derivative in delta too.
    """
    require(type(bias).__name__ not in OWN, f"the library fuses {type(bias).__name__} itself: register a bias of your own")
    reads = any(gate.name == "delta" for gate in bias.gates)
    require(
        delta_slope is not None or not reads, f"{bias.label} reads delta: give delta_slope, its gradient's derivative there"
    )
    DEVICE[bias.label] = Device(gradient, slope, delta_slope or no_slope)


def fused(bias: Bias) -> Fused | str:
    """How the kernels run a bias, or why they cannot."""
    kind = type(bias).__name__
    name = kind if kind in OWN else bias.label
    if name not in DEVICE:
        return f"bias {bias.label} has no device function: register one with miras.kernels.biases.register"
    if isinstance(bias, Huber) and (bias.form != "coordinate" or bias.smooth):
        return f"{bias.label} is not coordinate-wise and exact; the kernels fuse Huber(form='coordinate', smooth=False)"
    if isinstance(bias, Lp | L1) and (
        not bias.smooth or bias.sharpness != SHARPNESS or (isinstance(bias, Lp) and bias.eps != EPS)
    ):
        return f"{bias.label} has other constants than the kernels' smooth form"
    return Fused(name, bias.p if isinstance(bias, Lp) else 1.0 if isinstance(bias, L1) else 2.0)
