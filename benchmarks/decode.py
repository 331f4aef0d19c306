"""The decoding step of deep memories beside the time to copy their state once, on one GPU.

    python benchmarks/decode.py --out benchmarks/results/decode-h200.json

A chunk of tokens is recorded as one CUDA graph and replayed, so that the processor's own time does not count: ``step`` is the
decoding step alone, ``call`` all that ``memorize`` does (the checks of the gates' ranges among it), ``copy`` a copy of the
state's bytes from one place of the GPU's memory to another, and ``read`` the tokens read before. ``eager`` is the time of a
call without a graph. Times are medians, in microseconds a token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from miras import Gates, Spec, memorize, presets
from miras.kernels import decode
from miras.lab.provenance import provenance
from miras.types import State

SEGMENT = 256  # tokens of a prompt that are read at once


def inputs(spec: Spec, rows: int, tokens: int, heads: int, channels: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Tokens and gates in the tame regime: small steps, little decay."""
    shape = (rows, tokens, heads, channels)
    q, k = (F.normalize(torch.randn(shape, device="cuda"), dim=-1).to(dtype) for _ in range(2))
    made = {
        "eta": 0.01 * torch.rand(shape, device="cuda"),
        "log_alpha": -1e-3 * torch.rand(shape, device="cuda"),
        "delta": torch.full(shape, 4.0, device="cuda"),
        "mu": 0.5 * torch.rand(shape, device="cuda"),
    }
    wanted = {gate.name for gate in spec.gates}
    gates = Gates(**{name: gate for name, gate in made.items() if name in wanted})
    return q, k, torch.randn(shape, device="cuda", dtype=dtype), gates


def cut(arguments: tuple[Any, ...], left: int, right: int) -> tuple[Any, ...]:
    """A stretch of tokens and their gates."""
    *tokens, gates = arguments
    return (*(x[:, left:right] for x in tokens), Gates(*(None if g is None else g[:, left:right] for g in gates)))


def prompt(spec: Spec, rows: int, read: int, heads: int, channels: int, dtype: torch.dtype) -> State:
    """The state after ``read`` tokens; two at least, so that every retention stands inside a chunk."""
    shapes = spec.memory.shapes(channels, channels)
    state: Any = None
    rest: dict[str, Any] = {"weights": tuple(torch.randn(heads, *shape, device="cuda") for shape in shapes)}
    for left in range(0, read, SEGMENT):
        arguments = inputs(spec, rows, min(SEGMENT, read - left), heads, channels, dtype)
        _, state = memorize(spec, *arguments, chunk_size=spec.chunk_size, **rest)
        rest = {"state": state}
    assert isinstance(state, State)
    return state


def chain(spec: Spec, arguments: tuple[Any, ...], start: State, whole: bool) -> Callable[[], tuple[Tensor, Any]]:
    """All tokens one after the other, by ``memorize`` or, where no map is due, by the step itself."""
    size = spec.chunk_size

    def run() -> tuple[Tensor, Any]:
        state: Any = start
        for t in range(arguments[0].shape[1]):
            token = cut(arguments, t, t + 1)
            if whole or decode.must_map(spec, state):
                y, state = memorize(spec, *token, state=state, chunk_size=size)
            else:
                y, state = decode.run(spec, *token, None, state, size)
        return y, state

    return run


def replayed(work: Callable[[], Any], repeats: int) -> float:
    """Median microseconds of one replay of a CUDA graph of ``work``."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    found = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1000 * begin.elapsed_time(end))
    return statistics.median(found)


def eager(work: Callable[[], Any], repeats: int) -> float:
    """Median microseconds of ``work`` by the clock on the wall."""
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(1e6 * (time.perf_counter() - began))
    return statistics.median(found)


def held_bytes(state: State) -> int:
    """The bytes of a state on the GPU, what is shared counted once."""
    tensors = [x for x in pytree.tree_leaves(state) if isinstance(x, Tensor) and x.is_cuda]
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


def row(spec: Spec, rows: int, read: int, heads: int, channels: int, dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """One line of the table."""
    start = prompt(spec, rows, read, heads, channels, dtype)
    tokens = spec.chunk_size
    arguments = inputs(spec, rows, tokens, heads, channels, dtype)
    # a state that the step itself has left, in its own layout
    _, inside = decode.run(spec, *cut(arguments, 0, 1), None, start, spec.chunk_size)
    work = chain(spec, arguments, inside, whole=False)
    size = held_bytes(inside)
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    y, _ = work()

    def copies() -> None:
        for _ in range(tokens):
            target.copy_(source)

    found = {
        "step_us": replayed(work, repeats) / tokens,
        "call_us": replayed(chain(spec, arguments, inside, whole=True), repeats) / tokens,
        "copy_us": replayed(copies, repeats) / tokens,
        "eager_us": eager(chain(spec, arguments, inside, whole=True), max(2, repeats // 4)) / tokens,
    }
    ratio = found["step_us"] / found["copy_us"]
    return {
        "batch": rows,
        "read": read,
        "state_bytes": size,
        **found,
        "step_over_copy": ratio,
        "finite": bool(y.isfinite().all()),
    }


def main() -> int:
    """Run it all, write the numbers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/decode.json"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--read", type=int, nargs="+", default=[2, 1026, 8194], help="tokens read before, inside a chunk")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--presets", nargs="+", default=["yaad", "ttt_mlp", "titans_lmm", "moneta", "memora"])
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs an NVIDIA GPU")
    rows: dict[str, list[dict[str, Any]]] = {}
    with torch.no_grad():
        for name in options.presets:
            rows[name] = []
            for batch in options.batches:
                for read in options.read:
                    case = (batch, read, options.heads, options.channels, torch.bfloat16, options.repeats)
                    rows[name].append(row(presets.get(name), *case))
                    print(name, {k: round(x, 2) if isinstance(x, float) else x for k, x in rows[name][-1].items()}, flush=True)
    results = {
        "provenance": provenance("triton"),
        "gpu": torch.cuda.get_device_name(),
        "heads": options.heads,
        "channels": options.channels,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
