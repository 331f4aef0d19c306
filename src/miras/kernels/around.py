"""What the passes around a memory share.

They are functions of autograd and no operators of torch's library: no compiler meets them, and launching an operator takes
several times as long, which is what a small model waits for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.parameter import Parameter

from .launch import DOTS


class Refused(torch.autograd.Function):
    """Gradients as they are, and an error for whoever differentiates them."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.name = name
        return given[:count]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> None:
        raise RuntimeError(
            f"{ctx.name}, a fused kernel, has no derivative of its own: differentiate twice in float64, where plain PyTorch runs"
        )


def once(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., Any]:
    """A backward pass, of the context, what it saved and the gradients that arrive, whose own derivative is refused.

    torch's ``once_differentiable`` refuses it only where the gradients that arrive are differentiated: behind a plain sum, say, a
    second derivative would lack this pass's part without a word.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *outer: Tensor | None) -> Any:
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return backward(ctx, saved, *outer)
        with torch.no_grad():
            made = backward(ctx, saved, *outer)
        return Refused.apply(backward.__qualname__, len(made), *made, *saved, *outer)  # type: ignore[no-untyped-call]

    return wrapped


def watched() -> bool:
    """Whether anything that runs may be differentiated, backwards or, which ``no_grad`` does not switch off, forwards."""
    return torch.is_grad_enabled() or forward_ad._current_level >= 0


def blocks(numbers: int, size: int) -> int:
    """How many blocks of a size hold so many numbers; ``triton.cdiv`` takes 2 us."""
    return -(-numbers // size)


@functools.lru_cache
def power_of_2(number: int) -> int:
    """The first one that is not below a number."""
    power: int = triton.next_power_of_2(number)
    return power


def tokens(x: Tensor) -> Tensor:
    """x ``[...,C]`` as rows ``[N,C]`` that kernels read where they lie: channels side by side, tokens any distance apart."""
    x = x.flatten(0, -2)
    return x if x.stride(1) == 1 else x.contiguous()


def added(shares: Tensor, like: Tensor) -> Tensor:
    """A parameter's gradient in its dtype, from the shares ``[N,...]`` of N programs, which are added in one order."""
    return shares.sum(0).to(like.dtype)


def readable(*given: Tensor) -> bool:
    """Whether kernels read such tensors: not empty, of a dtype that is theirs, and with memory of their own, unlike sharded ones."""
    return all(type(x) in (Tensor, Parameter) and x.dtype in DOTS and x.numel() > 0 for x in given)
