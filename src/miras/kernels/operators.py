"""Operators of torch's library that plain calls take past the library.

Compilers, dispatch modes and tensors without memory of their own meet the operator, with its schema and its fake kernel. Everyone
else gets the same functions called directly: the library takes longer over thirty arguments than their kernels over their launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.parameter import Parameter
from triton.runtime.errors import OutOfResources

from ..torch_modes import UNKNOWN, transformed
from ..types import require

# an argument of an operator: a tensor or none, a list of tensors, or a setting
Argument: TypeAlias = Tensor | list[Tensor] | int | float | bool | str | None
Made: TypeAlias = list[Tensor]
Remember: TypeAlias = Callable[[Any, tuple[Any, ...], Made], None]
Backward: TypeAlias = Callable[[Any, list[Any]], tuple[Any, ...]]


class Operator:
    """A function of tensors, lists of tensors and settings that returns a list of tensors, registered in torch's library."""

    def __init__(self, name: str, run: Callable[..., Made]) -> None:
        self.run = _where_its_tensors_are(run)
        self.library: Any = torch.library.custom_op(name, self.run, mutates_args=())
        self.remember: Remember | None = None
        self.backward: Backward | None = None

    def register_fake(self, fake: Callable[..., Made]) -> Callable[..., Made]:
        """What the operator returns for tensors without numbers."""
        self.library.register_fake(fake)
        return fake

    def register_autograd(self, backward: Backward, *, setup_context: Remember) -> None:
        """What the forward pass keeps, and the backward pass."""
        self.remember, self.backward = setup_context, backward
        self.library.register_autograd(backward, setup_context=setup_context)

    def __call__(self, *given: Any) -> Made:
        counts = _counts(given)
        flat = _flat(given, counts)
        if _seen(flat):
            require(not transformed(flat), f"the fused kernels have {UNKNOWN}: backend='torch' has both")
            return self.library(*given)  # type: ignore[no-any-return]
        if not torch.is_grad_enabled():
            return self.run(*given)
        if self.backward is None:  # the library refuses its derivative
            return self.library(*given)  # type: ignore[no-any-return]
        return list(Direct.apply(self, counts, *flat))  # type: ignore[no-untyped-call]


def _where_its_tensors_are(run: Callable[..., Made]) -> Callable[..., Made]:
    """A function that launches on the GPU of its tensors, where Triton would on the current one, and says what does not fit there."""

    @functools.wraps(run)
    def there(*given: Any) -> Made:
        place = next(x.device for x in given if isinstance(x, Tensor))
        if place.type != "cuda":
            return run(*given)
        with torch.cuda.device(place):
            try:
                return run(*given)
            except OutOfResources as error:
                raise ValueError(unfitting(error)) from None

    return there


def unfitting(error: OutOfResources) -> str:
    """A kernel that asks for more than a multiprocessor has, in words: chunks set how much it is."""
    return (
        f"the fused kernels do not fit this GPU: one needs {error.required} of {error.name}, and there is {error.limit}; "
        "a smaller chunk_size (32 or 16) needs less, backend='torch' none"
    )


def operator(name: str) -> Callable[[Callable[..., Made]], Operator]:
    """Registers a function under a name of torch's library."""
    return lambda run: Operator(name, run)


class Direct(torch.autograd.Function):
    """An operator's functions with autograd's own bookkeeping; lists of tensors are laid out one behind the other."""

    @staticmethod
    def forward(ctx: Any, own: Operator, counts: tuple[int | None, ...], *flat: Any) -> tuple[Tensor, ...]:
        assert own.remember is not None
        given = _gathered(flat, counts)
        made = own.run(*given)
        ctx.own, ctx.given = own, counts
        own.remember(ctx, given, made)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor | None) -> tuple[Any, ...]:
        found = ctx.own.backward(ctx, list(outer))
        return (None, None, *_flat(found, ctx.given))


def _counts(given: Sequence[Argument]) -> tuple[int | None, ...]:
    return tuple(len(x) if isinstance(x, list) else None for x in given)


def _flat(given: Sequence[Any], counts: Sequence[int | None]) -> list[Any]:
    """The arguments, or their gradients, with every list in the place of one; a list without gradients is as many Nones."""
    found: list[Any] = []
    for x, count in zip(given, counts, strict=True):
        found += [x] if count is None else [None] * count if x is None else x
    return found


def _gathered(flat: Sequence[Any], counts: Sequence[int | None]) -> tuple[Argument, ...]:
    found: list[Argument] = []
    place = 0
    for count in counts:
        found.append(flat[place] if count is None else list(flat[place : place + count]))
        place += 1 if count is None else count
    return tuple(found)


def _seen(flat: Sequence[Any]) -> bool:
    """Whether somebody is to see the operator: a compiler, a dispatch mode, a transform, or a tensor of a kind of its own."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or forward_ad._current_level >= 0:
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return any(isinstance(x, Tensor) and type(x) not in (Tensor, Parameter) for x in flat)
