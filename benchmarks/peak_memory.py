"""Peak resident memory of one forward and backward pass, in a process of its own; prints JSON.

Run by ``chunk.py``. A warm-up at a small length loads the libraries first. What counts is the highest resident memory of the
process during the call, less what is resident when the inputs are there.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
from pathlib import Path

import torch
from calls import draw

from miras import memorize, presets


def status(field: str) -> int | None:
    """A size that Linux reports of this process, in bytes; None elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def peak() -> int:
    """The highest resident memory so far, in bytes.

    On Linux not by ``getrusage``, whose number a process inherits from the one that started it.
    """
    counted_in = 1 if sys.platform == "darwin" else 1024
    return status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * counted_in


def resident() -> int:
    """The resident memory now, in bytes; the highest so far where the system does not say."""
    return status("VmRSS") or peak()


def run(name: str, time: int, heads: int, dim: int, chunk: int) -> dict[str, int]:
    """One pass of a preset over ``time`` tokens: how far it drove memory up."""
    spec, q, k, v, gates, weights, norm = call = draw(presets.get(name), time=time, heads=heads, dim=dim, channelwise=True)
    gc.collect()
    before, highest = resident(), peak()
    y, _ = memorize(spec, q, k, v, gates, weights=weights, norm=norm, chunk_size=chunk)
    torch.autograd.grad(y.sum(), call.leaves)
    inputs = sum(x.numel() * x.element_size() for x in call.leaves)
    return {"peak_above_inputs": peak() - before, "peak_above_highest_before": peak() - highest, "inputs": inputs}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="yaad")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = (arguments.heads, arguments.dim, arguments.chunk)
    run(arguments.preset, 2 * arguments.chunk, *shape)
    print(json.dumps(run(arguments.preset, arguments.tokens, *shape)))


if __name__ == "__main__":
    main()
