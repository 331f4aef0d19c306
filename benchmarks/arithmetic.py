"""The arithmetic that the operations of ``kernels.py`` need, with nothing recomputed, and how fast they were.

- Ours and the plain chunk form: 7 products of C x E x D, 2 of C x C x E and 2 of C x C x D a chunk and head, twice that
  backwards.
- fla's delta rule: 3 products of C x D x D, 5 of C x C x D and the inverse of a triangle C x C (C^3 / 6), twice that backwards.
- Flash attention: 2 products of T x T x D, of which causality leaves half, two and a half times that backwards.
- titans-pytorch is a whole layer with its projections, which is not counted.

B batch, T time, H heads, D channels, C tokens of a chunk, E hidden channels
"""

from __future__ import annotations

from typing import Any, NamedTuple

Sizes = tuple[int, int, int, int]
CHUNK = 64


class Work(NamedTuple):
    """Floating-point operations that an operation needs forwards, and both ways."""

    forward: float
    forward_backward: float


def work_of(name: str, sizes: Sizes) -> Work | None:
    """What the operation of a row needs; None where that is not counted."""
    B, T, H, D = sizes
    C, E, chunks = CHUNK, 4 * D, B * T / CHUNK * H
    if name.startswith("titans-pytorch"):
        return None
    if name.startswith("flash attention"):
        once = B * H * 2 * (2 * T * T * D) / 2
        return Work(once, 3.5 * once)
    if name.startswith("fla delta rule"):
        once = chunks * 2 * (3 * C * D * D + 5 * C * C * D + C**3 / 6)
    else:
        once = chunks * 2 * (7 * C * E * D + 2 * C * C * E + 2 * C * C * D)
    return Work(once, 3 * once)


def rated(row: dict[str, Any], work: Work | None, ceiling: float) -> dict[str, Any]:
    """A row with TFLOP/s and their share of a matrix product's."""
    if "missing" in row:
        return row
    rates: dict[str, float | None] = {}
    for kind in Work._fields:
        tflops = None if work is None else getattr(work, kind) / row[f"{kind}_ms"] / 1e9
        rates |= {f"{kind}_tflops": tflops, f"{kind}_share": None if tflops is None else tflops / ceiling}
    return row | rates
