"""How much memory both passes of a deep memory take at their highest, counted without a GPU.

    python benchmarks/kernel_memory.py --out benchmarks/results/kernel-memory.json

Triton has a driver here that launches nothing (``launching.py``); all else is as on a GPU. What is counted is every tensor's
storage from its making to its end, in the blocks of 512 bytes that torch's allocator gives out on a GPU, beside the inputs:
what ``benchmarks/kernels.py`` measures there. Columns with a number of tokens keep a state after as many (``recompute``).
"""

from __future__ import annotations

import argparse
import json
import weakref
from pathlib import Path
from typing import Any

import torch
from launching import as_on_hopper, call_of, compiled
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from miras.kernels import operators
from miras.lab.provenance import provenance

CASES = {
    **{name: (name, {}) for name in ("ttt_mlp", "yaad", "moneta", "memora", "titans_lmm")},
    "yaad, anchored": ("yaad", {"anchor": True}),
}
BLOCK = 512


class Held(TorchDispatchMode):
    """Bytes of the storages that were made under it and are still there, and the most that ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, function: Any, kinds: Any, given: tuple[Any, ...] = (), named: Any = None) -> Any:
        for x in pytree.tree_leaves((given, named)):
            if isinstance(x, Tensor):
                self._meet(x, made=False)
        result = function(*given, **(named or {}))
        for x in pytree.tree_leaves(result):
            if isinstance(x, Tensor):
                self._meet(x, made=True)
        return result

    def _meet(self, x: Tensor, made: bool) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        size = -(-storage.nbytes() // BLOCK) * BLOCK if made else 0

        def gone(_: Any) -> None:
            self.now -= size
            del self.known[key]

        self.known[key] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def peak(preset: str, recompute: int | None, sizes: dict[str, int], **options: bool) -> float:
    """GiB beside the inputs, forwards and backwards from ones."""
    call, leaves = call_of(preset, recompute=recompute, **sizes, **options)
    with Held() as held:
        y = call()
        torch.autograd.grad(y, leaves, torch.ones_like(y))
    return held.most / 2**30


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--time", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--recompute", default="2048,1024,512", help="tokens after which a state is kept, with commas")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    as_on_hopper()
    JITFunction._do_compile = compiled
    # past torch's library, as a plain call goes: the mode is there to count
    operators._seen = lambda flat: False
    lengths = [None, *map(int, given.recompute.split(","))]
    sizes = {"batch": given.batch, "time": given.time, "heads": given.heads}
    rows: dict[str, dict[str, float]] = {}
    print(f"{'GiB':16}", *(f"{'all kept' if n is None else n:>9}" for n in lengths))
    for name, (preset, options) in CASES.items():
        rows[name] = {str(n): peak(preset, n, sizes, **options) for n in lengths}
        print(f"{name:16}", *(f"{value:9.2f}" for value in rows[name].values()), flush=True)
    if given.out:
        command = f"python benchmarks/kernel_memory.py --out {given.out}"
        made = {"provenance": provenance("triton") | {"command": command}, "sizes": sizes, "gib": rows}
        given.out.write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
