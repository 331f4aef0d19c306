"""How many operations a layer launches, forward and backward, and how many bytes they write: where a small model's time goes.

    python benchmarks/layer_ops.py --presets yaad,gated_deltanet

Counted on the CPU under bf16 autocast; views are not counted, and rms_norm counts once each way, as GPUs have it fused. The
memory itself is left out: kernels take its place on a GPU.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from miras.nn import Block, MirasLayer

VIEWS = (
    "view",
    "reshape",
    "transpose",
    "expand",
    "slice",
    "split",
    "unbind",
    "select",
    "permute",
    "squeeze",
    "unsqueeze",
    "detach",
    "alias",
    "as_strided",
    "t.default",
    "_unsafe_view",
    "_reshape_alias",
)


class OneKernel(torch.autograd.Function):
    """Stands for a fused rms_norm: one operation forward, one backward for the input and one for the gain."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        ctx.gain = gain
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return gradient.clone(), None if ctx.gain is None else ctx.gain.clone()

    @staticmethod
    def norm(x: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None) -> torch.Tensor:
        """In the place of ``F.rms_norm``."""
        return OneKernel.apply(x, weight)


class Counter(TorchDispatchMode):
    """Counts operations that are not views, and the bytes of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: collections.Counter[str] = collections.Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__
        if not any(name.startswith(view) for view in VIEWS):
            self.ops[name] += 1
            self.bytes += sum(x.numel() * x.element_size() for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


def counted(preset: str, dim: int, heads: int, time: int) -> dict[str, tuple[int, float, collections.Counter[str]]]:
    """Operations, and kilobytes a token, of each part of a block, forward and backward."""
    F.rms_norm = OneKernel.norm
    block = Block(MirasLayer(dim, heads, preset), 4 * dim // 2)
    mixer: Any = block.mixer
    x = torch.randn(1, time, dim, dtype=torch.bfloat16, requires_grad=True)
    found = {}

    def over(name: str, module: torch.nn.Module, leaf: torch.Tensor, work: Callable[[], Any]) -> Any:
        with Counter() as forward, torch.autocast("cpu", torch.bfloat16):
            out = work()
        ends = [end for end in tree_leaves(out) if isinstance(end, torch.Tensor) and end.requires_grad]
        with Counter() as backward:
            torch.autograd.grad(
                ends,
                [leaf, *module.parameters()],
                [torch.empty_like(end) for end in ends],
                allow_unused=True,
                retain_graph=True,
            )
        for way, counter in (("forward", forward), ("backward", backward)):
            found[f"{name}, {way}"] = (sum(counter.ops.values()), counter.bytes / time / 1e3, counter.ops)
        return out

    normed = over("norm", block.mixer_norm, x, lambda: block.mixer_norm(x)).detach().requires_grad_()
    prepared = over("before the memory", mixer, normed, lambda: mixer.prepare(normed))
    y = torch.empty_like(prepared.v).detach().requires_grad_()
    out = over("after it", mixer, y, lambda: mixer.finish(prepared, y)).detach().requires_grad_()
    over("feed-forward", block, out, lambda: out + block.mlp(block.mlp_norm(out)))
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="transformer,gla,deltanet,gated_deltanet,ttt_linear,titans_lmm,moneta,yaad,memora")
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--heads", type=int, default=10)
    parser.add_argument("--time", type=int, default=1024)
    parser.add_argument("--ops", action="store_true", help="which operations they are")
    given = parser.parse_args()
    for preset in given.presets.split(","):
        found = counted(preset, given.dim, given.heads, given.time)
        cells = [f"{name}: {count} ops, {size:.0f} kB a token" for name, (count, size, _) in found.items()]
        print(f"{preset:16} " + "; ".join(cells))
        if given.ops:
            for name, (_, _, ops) in found.items():
                print(f"    {name}: " + ", ".join(f"{op.removesuffix('.default')} {n}" for op, n in ops.most_common()))


if __name__ == "__main__":
    main()
