"""What torch's own switches do not do everywhere: computing again under a transform, autocast on a device that has none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

Made = TypeVar("Made")


def again(function: Callable[..., Made], *arguments: Any) -> Made:
    """What a function gives; the backward pass calls it again instead of keeping what it needs of it.

    The transforms of ``torch.func`` take no part in that: under them everything is kept, as it is without gradients, where
    nothing needs to be.
    """
    if not torch.is_grad_enabled() or transformed():
        return function(*arguments)
    made: Made = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return made


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work; a compiler puts them together with what it compiles."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def uncast(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast on a device, which may be one that knows none."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def multiplied_in(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The dtype itself, but for float32, under autocast of a device, what autocast multiplies in."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) and dtype == torch.float32
    return torch.get_autocast_dtype(kind) if on else dtype
