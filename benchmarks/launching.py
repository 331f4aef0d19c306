"""What the processor takes to launch both passes of a deep memory, without a GPU: what a small model waits for.

    python benchmarks/launching.py --out benchmarks/results/launching-cpu.json

Triton has a driver here that launches nothing and a compiler that compiles nothing; all else is as on a GPU, on small tensors
of the CPU, whose arithmetic is a part of the figure. Each preset is called past torch's library, as plain calls are, and
through it, as calls under a dispatch mode are; medians of milliseconds on one core, side by side.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from miras import Gates, checks, memorize, presets
from miras.kernels import deep_backward, deep_forward, launch, operators
from miras.lab.provenance import provenance

PRESETS = ("ttt_mlp", "yaad", "moneta", "memora", "titans_lmm")
B, T, H, D, CHUNK, REPEATS = 1, 256, 2, 64, 64, 100


class Driver:
    """A GPU in name: Hopper, unless somebody says otherwise."""

    target = GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The usual one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return self.target


class Kernel:
    """Runs nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *given: Any) -> None:
        """None."""

    def run(self, *given: Any) -> None:
        """Nothing."""


def compiled(self: JITFunction, key: str, *given: Any, **named: Any) -> Kernel:
    """In the place of Triton's compiler."""
    kernel = Kernel()
    self.device_caches[0][0][key] = kernel
    return kernel


def as_on_hopper(resident: bool = True) -> None:
    """Have calls on a CPU take Hopper's kernels, or other GPUs', and leave out checks that wait for their result there."""
    driver.set_active(Driver())
    made = launch._options
    for module in (deep_forward, deep_backward):
        module.options = lambda q, *rest: made(q.dtype, q.shape[2], resident, *rest)
    checks._limits = lambda name, value: None
    importlib.import_module("miras.memorize").kernels_refuse = lambda *given: None


def call_of(
    preset: str,
    batch: int = B,
    time: int = T,
    heads: int = H,
    channels: int = D,
    chunk: int = CHUNK,
    recompute: int | None = None,
    **options: Any,
) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """A call with gradients for everything, and what they are the gradients of."""
    spec, wide, single = getattr(presets, preset)(**options), (batch, time, heads, channels), (batch, time, heads)
    wanted = {gate.name for gate in spec.gates}
    q, k, v = (torch.randn(wide, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    made = {
        "eta": 0.01 * torch.rand(wide),
        "log_alpha": -1e-3 * torch.rand(single if "mu" in wanted else wide),
        "delta": torch.full(wide, 4.0),
        "mu": 0.5 * torch.rand(single),
    }
    kinds = {name: torch.bfloat16 if gate.dim() == 4 else torch.float32 for name, gate in made.items()}
    gates = Gates(**{name: gate.to(kinds[name]).requires_grad_() for name, gate in made.items() if name in wanted})
    weights = tuple(torch.randn(heads, *shape, requires_grad=True) for shape in spec.memory.shapes(channels, channels))
    given = {"weights": weights, "chunk_size": chunk, "backend": "triton", "recompute": recompute}
    leaves = [q, k, v, *(gate for gate in gates if gate is not None), *weights]
    return lambda: memorize(spec, q, k, v, gates, **given)[0], leaves


def measured(preset: str) -> dict[str, float]:
    """Milliseconds of each pass, and of the forward pass where nothing is differentiated."""
    call, _ = call_of(preset)
    taken: dict[str, list[float]] = {"forward": [], "backward": [], "forward, no gradients": []}
    for _ in range(REPEATS):
        began = time.perf_counter()
        y = call()
        taken["forward"].append(time.perf_counter() - began)
        total = y.sum()
        began = time.perf_counter()
        total.backward()
        taken["backward"].append(time.perf_counter() - began)
        with torch.no_grad():
            began = time.perf_counter()
            call()
            taken["forward, no gradients"].append(time.perf_counter() - began)
    return {name: 1e3 * statistics.median(each) for name, each in taken.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    as_on_hopper()
    JITFunction._do_compile = compiled
    direct = operators._seen
    rows: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'':12} {'past the library: forward, backward, no gradients':>52} {'through it':>28}   ms")
    for preset in PRESETS:
        found = {}
        for way, seen in (("direct", direct), ("library", lambda given: True)):
            operators._seen = seen
            found[way] = measured(preset)
        rows[preset] = found
        print(f"{preset:12}", *(f"{value:8.2f}" for way in found.values() for value in way.values()))
    if given.out:
        command = f"python benchmarks/launching.py --out {given.out}"
        given.out.write_text(
            json.dumps({"provenance": provenance("triton") | {"command": command}, "ms": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
