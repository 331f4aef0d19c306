"""Numbers as bytes: every row of an array between its own smallest and largest value, in 254 steps.

S values of a row
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MISSING, TOP = 255, 254


class Packer:
    """Arrays one after the other in one string of bytes, and what is needed to read them back.

    A byte b of 1 to 254 stands for low + (high - low) (b - 1)/253, of the logarithm where ``log`` is set; 0 stands for zero
    there and for low elsewhere; 255 for a value that is missing.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, values: Tensor, *, log: bool = False) -> dict[str, Any]:
        """Append ``[..., S]`` and say where it is: offset, row length, and each row's low and high, rows flattened."""
        rows = values.detach().to("cpu", torch.float64).reshape(-1, values.shape[-1])
        there = rows.isfinite() & ((rows > 0) if log else torch.ones_like(rows, dtype=torch.bool))
        x = torch.where(there, rows.clamp_min(1e-300).log() if log else rows, 0.0)
        low = torch.where(there, x, torch.inf).amin(1, keepdim=True)
        high = torch.where(there, x, -torch.inf).amax(1, keepdim=True)
        some = there.any(1, keepdim=True)
        low, high = torch.where(some, low, 0.0), torch.where(some, high, 0.0)
        level = 1 + ((x - low) / (high - low).clamp_min(1e-300) * (TOP - 1)).round()
        level = torch.where(there, level, torch.where(rows.isfinite(), 0, MISSING))
        data = bytes(level.to(torch.uint8).flatten().tolist())
        place = {
            "at": self.size,
            "length": rows.shape[1],
            "log": log,
            "low": [float(f"{value:.7g}") for value in low.flatten().tolist()],
            "high": [float(f"{value:.7g}") for value in high.flatten().tolist()],
        }
        self.parts.append(data)
        self.size += len(data)
        return place

    def text(self) -> str:
        """All bytes, deflated, in base64."""
        return base64.b64encode(zlib.compress(b"".join(self.parts), 9)).decode()


REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(-1),
    "low": lambda x: x.amin(-1),
    "high": lambda x: x.amax(-1),
}


def thinned(values: Tensor, every: int, how: str) -> Tensor:
    """``[..., T]`` to the mean, smallest or largest ("mean", "low", "high") of every so many values, the last of fewer."""
    if every == 1:
        return values
    return torch.stack([REDUCE[how](group) for group in torch.split(values, every, -1)], -1)
