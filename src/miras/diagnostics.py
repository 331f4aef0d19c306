"""How a layer or a model behaves, measured: first of all how far noise on its keys travels.

B batch, T time, C channels, K key channels of a head
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .nn import MirasLayer, MirasState
from .torch_modes import exact_products
from .types import require


class NoiseResponse(NamedTuple):
    """How far one layer's output moves, relative to its size, by position, ``[T]``, the largest of all rows.

    ``response`` is to noise on the keys, ``low_precision`` to running the layer under bf16 autocast.
    """

    response: Tensor
    low_precision: Tensor


@torch.no_grad()
def layer_noise(layer: MirasLayer, x: Tensor, *, relative: float = 1e-6, seed: int = 0) -> NoiseResponse:
    """Move every key by ``relative`` of its length, in a random direction, and see how far y moves; x ``[B,T,C]``.

    A tame memory answers with about as much as it was given, at every position. A chaotic one multiplies it, and trains on
    noise.
    """
    prepared = layer.prepare(x)
    k = prepared.k
    if k is None:
        raise ValueError(f"{layer.spec} has no key to move: it is tied to the decay")
    direction = torch.randn(k.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(k)
    noise = relative * k.norm(dim=-1, keepdim=True) * F.normalize(direction, dim=-1)
    moved = prepared._replace(k=k + noise)
    # rounding to TF32 would make 5e-4 of any noise
    with exact_products():
        y, away = (layer.finish(own, layer.remember(own)[0]) for own in (prepared, moved))
    with torch.autocast(x.device.type, torch.bfloat16):
        low, _ = layer(x)
    return NoiseResponse(_apart(away, y), _apart(low.to(y.dtype), y))


def _apart(y: Tensor, want: Tensor) -> Tensor:
    """||y - want|| / ||want|| at each position, the largest of all rows."""
    moved: Tensor = (y - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-30)
    return moved.amax(0)


def noise_response(
    module: nn.Module, *inputs: Any, relative: float = 1e-6, seed: int = 0, **options: Any
) -> dict[str, NoiseResponse]:
    """The response of every :class:`MirasLayer` of a layer, block or model, by its name, at the input that it gets there.

    >>> import torch
    >>> from miras.diagnostics import noise_response
    >>> from miras.nn import Stack
    >>> found = noise_response(Stack(32, 2, "yaad", depth=2), torch.randn(1, 64, 32))
    >>> [(name, bool(response.response.max() < 1e-4)) for name, response in found.items()]
    [('blocks.0.mixer', True), ('blocks.1.mixer', True)]
    """
    met = layer_inputs(module, *inputs, **options)
    return {name: layer_noise(layer, x, relative=relative, seed=seed) for name, (layer, x) in met.items()}


def layer_inputs(module: nn.Module, *inputs: Any, **options: Any) -> dict[str, tuple[MirasLayer, Tensor]]:
    """Every :class:`MirasLayer` of a layer, block or model, by its name, with the input ``[B,T,C]`` that it gets there."""
    layers = {name: part for name, part in module.named_modules() if isinstance(part, MirasLayer)}
    require(bool(layers), f"{type(module).__name__} has no MirasLayer to measure")
    given: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Tensor | MirasState | None, ...]) -> None:
            assert isinstance(arguments[0], Tensor)
            given[name] = arguments[0].detach()

        return hook

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            module(*inputs, **options)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: (layer, given[name]) for name, layer in layers.items()}
