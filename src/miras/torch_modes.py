"""What torch's own switches do not do everywhere: computing again, kernels, autocast on a device that has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

Made = TypeVar("Made")
# what no kernel has
UNKNOWN = "neither derivatives forwards (jvp) nor torch.func's transforms"


def again(function: Callable[..., Made], *arguments: Any) -> Made:
    """What a function gives; the backward pass calls it again instead of keeping what it needs of it.

    The transforms of ``torch.func`` take no part in that: under them everything is kept, as it is without gradients, where
    nothing needs to be.
    """
    if not torch.is_grad_enabled() or transforming():
        return function(*arguments)
    made: Made = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return made


def transforming() -> bool:
    """Whether a transform of ``torch.func`` is at work; a compiler puts them together with what it compiles."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def transformed(given: Any) -> bool:
    """Whether a tensor of a tree carries a tangent, its derivative forwards, or is in a transform of ``torch.func``.

    No kernel follows those, and torch's library would drop a tangent without a word.
    """
    forwards, within = forward_ad._current_level >= 0, transforming()
    if not (forwards or within):
        return False
    tensors = [x for x in pytree.tree_leaves(given) if isinstance(x, Tensor)]
    if within and any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors):
        return True
    return forwards and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)  # type: ignore[no-untyped-call]


def uncast(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast on a device, which may be one that knows none."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


@contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 with all of its digits, whatever the process lets a GPU shorten them to (TF32)."""
    asked = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(asked)


def multiplied_in(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The dtype itself, but for float32, under autocast of a device, what autocast multiplies in."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) and dtype == torch.float32
    return torch.get_autocast_dtype(kind) if on else dtype
