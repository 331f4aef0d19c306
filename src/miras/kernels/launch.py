"""Block sizes, warps and compile-time arguments of the kernels of the 2-layer MLP memory.

R sequences, B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arguments import Link

# as many registers a thread as let two programs of eight warps share a multiprocessor
FULL = {"num_warps": 8, "maxnreg": 128}
# of the machine's first GPU
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
HOPPER = (9, 0)
# Gluon is experimental: its kernels run where they were compared, and are written for that version
GLUON = triton.__version__.startswith("3.6.")
RESIDENT = GLUON and CAPABILITY == HOPPER
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
DOTS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def products_of(dtype: torch.dtype) -> dict[str, Any]:
    """How kernels multiply numbers of a dtype."""
    # three products of rounded numbers are as good as one in float32, and the matrix units do them
    exact = "ieee" if INTERPRETED else "tf32x3"
    return {"DOT": DOTS[dtype], "PRECISION": exact if dtype == torch.float32 else "tf32"}


class Options(NamedTuple):
    """The compile-time arguments and launch settings of each kind of kernel; ``pairs`` are those between a chunk's tokens."""

    anchored: bool
    scan_resident: bool
    scan_backward_resident: bool
    reads_resident: bool
    wide: int
    pairs: dict[str, Any]
    gates: dict[str, Any]
    led: dict[str, int]
    moved: dict[str, Any]
    scan: dict[str, Any]
    read: dict[str, Any]
    read_backward: dict[str, Any]
    scan_backward: dict[str, Any]
    write_backward: dict[str, Any]


def options(q: Tensor, size: int, hidden: int, decays: bool, anchored: bool, moves: bool, link: Link) -> Options:
    """What the kernels are told, made once for each kind of call."""
    return _options(q.dtype, q.shape[2], RESIDENT and q.is_cuda, size, hidden, decays, anchored, moves, link)


@functools.lru_cache
def _options(
    dtype: torch.dtype,
    channels: int,
    hopper: bool,
    size: int,
    hidden: int,
    decays: bool,
    anchored: bool,
    moves: bool,
    link: Link,
) -> Options:
    """As many hidden channels at once as registers and shared memory hold."""
    wide = triton.next_power_of_2(channels)
    exact, large = dtype == torch.float32, wide > 64
    shape, warps = {"C": size, "DP": wide}, 8 if large else 4
    products = products_of(dtype)
    # float16 has no room for the exponents that split a decay between two tokens
    paired = products | ({"DOT": tl.float32} if dtype == torch.float16 else {})

    def blocks(most: int, warps: int, stages: int = 1) -> dict[str, Any]:
        block = min(most // (2 if exact else 1) // (2 if large else 1), triton.next_power_of_2(hidden))
        return (
            shape
            | products
            | momentum
            | linked
            | {"EB": block, "NE": triton.cdiv(hidden, block), "num_warps": warps, "num_stages": stages}
        )

    momentum = {"MOMENTUM": moves}
    linked = {"LINK": link.q}
    # the first slot of a chunk that writes and decays: the second where the first token has a step of its own
    led = {"LED": int(link.mass1 > 0)}
    mapped = {"FLOOR": link.floor, "MASS1": link.mass1, "MASS2": link.mass2}
    fast = {"FAST": not exact and not INTERPRETED}
    alpha = {"HAS_ALPHA": decays}
    fits = size == 64 and channels % 16 == 0 and channels <= 64 and hidden <= 256
    resident = hopper and not exact and fits
    common = alpha | momentum | led | fast
    # a momentum's factors are sums over the channels, which one program then has
    full = {"num_warps": 16} if size == 64 and wide == 64 and not exact else FULL
    gated = {"DB": wide} | full if moves else {"DB": min(wide, 32), "num_warps": 4}
    return Options(
        anchored=anchored,
        scan_resident=resident,
        scan_backward_resident=resident,
        reads_resident=resident and not (anchored and moves),
        wide=wide,
        pairs=shape | paired | common | {"num_warps": warps},
        gates=common | {"C": size} | gated,
        led=led,
        moved=momentum | linked | mapped,
        scan=blocks(128, 8) | fast | mapped | {"LB": 32},
        read=blocks(128, 8) | fast if large else blocks(64, 4) | fast,
        read_backward=blocks(128, 8) | fast | led,
        scan_backward=blocks(128, 8) | fast | mapped | {"LB": 32},
        write_backward=blocks(128, 8),
    )


def strides(gate: Tensor | None) -> tuple[int, int, int]:
    """Token, head and channel strides of a gate ``[T,H,D or 1]``; a scalar gate stands still along the channels."""
    if gate is None:
        return 0, 0, 0
    return gate.stride(0), gate.stride(1), 0 if gate.shape[2] == 1 else gate.stride(2)


def room_for(gate: Tensor, q: Tensor) -> Tensor:
    """Room for a gate's gradient, channel by channel: in float32 where it is yet to be summed over them."""
    return torch.empty_like(q, dtype=gate.dtype if gate.shape[2] > 1 else torch.float32)


def in_width(gradient: Tensor | None, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient in the gate's own width."""
    if gate is None or gradient is None:
        return None
    return gradient if gate.shape[2] > 1 else gradient.sum(2, keepdim=True)


def arrived(gradients: Sequence[Tensor | None], like: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The gradients of an operator's results, zeros where nothing arrived."""
    pairs = zip(gradients, like, shapes, strict=True)
    return [x.new_zeros(tuple(shape)) if g is None else g for g, x, shape in pairs]


def laid(outer: Sequence[Tensor]) -> list[Tensor]:
    """Gradients as kernels read them; inside an operator, since a compiler may be wrong about strides.

    Torch's fake log_softmax, for one, gives a gradient other strides than the real one, and a copy that is not needed is left out.
    """
    return [x.contiguous() for x in outer]


def given_back(q: Tensor, gradients: tuple[Tensor | None, ...], inputs: tuple[Tensor | None, ...]) -> list[Tensor]:
    """The gradients of an operator's arguments in their dtypes, empty where there is none: an operator returns no None."""
    pairs = zip(gradients, inputs, strict=True)
    return [q.new_empty(0) if d is None or x is None else d.to(x.dtype) for d, x in pairs]


def rounded(anchors: tuple[Tensor | None, Tensor | None], q: Tensor) -> list[Tensor | None]:
    """Anchors in the dtype of the products."""
    return [None if anchor is None else anchor.to(q.dtype) for anchor in anchors]
