"""What a GPU takes for a piece of work, and what the processor takes to launch it."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

# as large as any cache, so that no repeat finds its inputs there
FLUSHED = 2**28
# cycles a second that a GPU sleeps by, at least; and the longest head start
CLOCK, HEAD_START = 2e9, 0.05
# seconds that the repeats of one measurement take, about, and how many there are at most
PATIENCE, MOST = 0.25, 25


def spent(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds until the processor has launched the work, and until the GPU has done it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    launched = time.perf_counter() - began
    torch.cuda.synchronize()
    return launched, time.perf_counter() - began


def gpu_ms(work: Callable[[], object], *, ahead: bool = False) -> float:
    """Median milliseconds by CUDA events, as launched from Python; 3 repeats of slow work, more of quick work.

    With ``ahead`` the GPU sleeps before each repeat for as long as the launches take, up to a limit, so that it works without
    waiting for them, as it does where they are recorded; work of a thousand launches waits all the same.
    """
    cache = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    work()
    launched, done = spent(work)
    repeats = max(3, min(MOST, int(PATIENCE / done)))
    pause = int(min(1.5 * launched, HEAD_START) * CLOCK) if ahead else 0
    spans = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()
        if pause:
            torch.cuda._sleep(pause)
        begin.record()
        work()
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in spans)


def both_passes(call: Callable[[], Tensor], leaves: list[Tensor]) -> None:
    """Forwards, and backwards from ones."""
    y = call()
    torch.autograd.grad(y, leaves, torch.ones_like(y))


def measured(call: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, float]:
    """Milliseconds of the forward pass alone and with the backward pass, launched from Python and ahead; peak memory in GiB."""
    both = functools.partial(both_passes, call, leaves)
    both()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    with torch.no_grad():
        forward, ahead = gpu_ms(call), gpu_ms(call, ahead=True)
    return {
        "forward_ms": forward,
        "forward_backward_ms": gpu_ms(both),
        "forward_ahead_ms": ahead,
        "forward_backward_ahead_ms": gpu_ms(both, ahead=True),
        "peak_gib": peak,
    }
