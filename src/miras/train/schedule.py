"""The learning rate of every step: a pure function, so that there is no schedule to save."""

from __future__ import annotations

import math


def rate_at(step: int, *, steps: int, peak: float, warmup: float, final: float) -> float:
    """A line from 0 up to the peak, then half a cosine down to ``final`` of it.

    With w = warmup * steps: peak (s+1)/w for s < w, else peak (f + (1-f)/2 (1 + cos(pi (s-w)/(steps-w)))).

    >>> [round(rate_at(s, steps=8, peak=1.0, warmup=0.25, final=0.1), 3) for s in range(8)]
    [0.5, 1.0, 1.0, 0.94, 0.775, 0.55, 0.325, 0.16]
    """
    rise = math.ceil(warmup * steps)
    if step < rise:
        return peak * (step + 1) / rise
    done = (step - rise) / max(steps - rise, 1)
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
