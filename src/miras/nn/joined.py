"""Several projections of one input as one product of matrices.

One product reads the input once, gives its results side by side, and its gradient to the input needs no sums. The parameters
stay where they are: their matrices are put together at every call, a copy that is small beside many tokens.

C channels of the input, O channels of a projection
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a call of the module is its class's ``forward`` on its own plain parameters, and nothing else.

    Not so where something took the module's place (an adapter), its class was changed (a parametrisation), ``forward`` was
    replaced on it (offloading), a hook waits for the call, or a parameter is of a kind of its own (quantised, sharded).
    """
    hooked = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        modules._global_forward_hooks,
        modules._global_forward_pre_hooks,
        modules._global_backward_hooks,
        modules._global_backward_pre_hooks,
    )
    plain = all(type(weight) in (nn.Parameter, Tensor) for weight in module._parameters.values() if weight is not None)
    return type(module) is kind and "forward" not in vars(module) and not any(hooked) and plain


def many(x: Tensor) -> bool:
    """Whether x ``[...,C]`` is worth putting matrices together for: it has as many tokens as channels, or more."""
    return x.numel() >= x.shape[-1] ** 2


def alike(weights: Sequence[Tensor]) -> bool:
    """Whether there are several matrices, of one dtype on one device."""
    return len(weights) > 1 and all(w.dtype == weights[0].dtype and w.device == weights[0].device for w in weights)


def bare(projection: nn.Module) -> bool:
    """Whether a projection is its matrix and nothing else."""
    return untouched(projection, nn.Linear) and projection.bias is None


def product(x: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """x times each matrix, ``[...,O]``, as parts of one result; zeros fill its rows to the 16 bytes that products ask for."""
    widths = [len(weight) for weight in weights]
    fill = -sum(widths) % 8
    zeros = [weights[0].new_zeros(fill, x.shape[-1])] if fill else []
    joined = F.linear(x, torch.cat([*weights, *zeros]))
    return torch.split(joined, [*widths, *([fill] if fill else [])], -1)[: len(weights)]


def _one_product(x: Tensor, projections: Sequence[nn.Linear]) -> Tensor | None:
    """The projections side by side, ``[...,sum O]``, or None where each has to be called by itself."""
    if not (many(x) and all(map(bare, projections))):
        return None
    weights = [each.weight for each in projections]
    return F.linear(x, torch.cat(weights)) if alike(weights) else None


def together(x: Tensor, projections: Sequence[nn.Linear]) -> Tensor:
    """The projections of x side by side, ``[...,C] -> [...,sum O]``."""
    joined = _one_product(x, projections)
    return torch.cat([each(x) for each in projections], -1) if joined is None else joined


def apart(x: Tensor, projections: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """The projections of x, ``[...,C] -> [...,O]`` each."""
    joined = _one_product(x, projections)
    if joined is None:
        return tuple(each(x) for each in projections)
    return torch.split(joined, [each.out_features for each in projections], -1)
