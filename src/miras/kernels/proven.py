"""Where kernels may run: on a GPU for the shapes that were compared there, in Triton's interpreter for all it can run."""

from __future__ import annotations

import torch
import triton

from . import launch
from .launch import DOTS, INTERPRETED

# chunk sizes and channels a head, of each dtype
Proven = dict[torch.dtype, tuple[tuple[int, ...], tuple[int, ...]]]

# what Triton's interpreter runs
SIZES, NARROWEST, WIDEST = (16, 32, 64), 16, 128


def unproven(proven: Proven, device: torch.device, dtype: torch.dtype, channels: int, size: int) -> str | None:
    """Why kernels do not run on a device in a dtype and shape, or None where they do."""
    if INTERPRETED:
        known = size in SIZES and NARROWEST <= channels <= WIDEST and dtype in DOTS
        return None if known else f"the kernels take chunks of {_listed(SIZES)} tokens, not {size}"
    if device.type != "cuda":
        return f"the kernels need an NVIDIA GPU (or TRITON_INTERPRET=1), not {device.type}"
    sizes, widths = proven.get(dtype, ((), ()))
    if size not in sizes or channels not in widths:
        shapes = f"chunks of {_listed(sizes)} tokens and {_listed(widths)} channels a head"
        allowed = shapes if sizes else "16-bit or float32 tokens"
        return f"in {dtype} the kernels are proven for {allowed}, not for {size} and {channels}"
    return None


def elsewhere(device: torch.device) -> str | None:
    """Why a GPU is not one that kernels were compared on, or None where it is, or where there is none to ask."""
    if device.type != "cuda" or launch.CAPABILITY in (None, launch.HOPPER):
        return None
    major, minor = launch.CAPABILITY
    return (
        f"the kernels were compared with float64 on Hopper alone, not on compute capability {major}.{minor}: backend='triton' asks for "
        "them, and benchmarks/kernel_numerics.py compares them"
    )


def untried(device: torch.device) -> str | None:
    """What is said of a GPU that kernels were compared on with another Triton, or None where that is the same or nobody asks."""
    if device.type != "cuda" or launch.CAPABILITY != launch.HOPPER or launch.RESIDENT:
        return None
    return (
        f"those in plain Triton, which were compared with float64 under Triton 3.6, not under {triton.__version__}: "
        "benchmarks/kernel_numerics.py compares them"
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
