"""How many kernels a block launches on a GPU, both ways, and how many bytes they move: where a small model's time goes.

    python benchmarks/layer_ops.py --presets yaad,gated_deltanet --ops

Nothing is computed and no GPU is needed: the block runs on fake tensors under bf16 autocast, with float32 weights and a
float32 residual stream, as if they lay on a GPU. Fused kernels and rms_norm count once; views and empty tensors do not.
The memory itself is left out, but for the copies that lay its arguments out. Bytes are those of every argument and every
result, once.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import math
import pkgutil
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

import miras.nn
from miras.algorithm import NonParametric
from miras.kernels import convolution, gate_link, gated_norm, heads, norm, residual, rotary, shared_steps, swiglu
from miras.nn import Block, MirasLayer

UNCOUNTED = (
    "view",
    "reshape",
    "transpose",
    "expand",
    "slice.",
    "split",
    "unbind",
    "select.",
    "permute",
    "squeeze",
    "unsqueeze",
    "detach",
    "alias",
    "as_strided",
    "t.default",
    "_unsafe_view",
    "_reshape_alias",
    "promote_types",
    "device",
    "empty",
    "new_empty",
)
FILLED = ("zeros", "new_zeros", "zeros_like")
PRODUCTS = ("mm", "addmm", "bmm", "linear")
PASSES = (convolution, gate_link, gated_norm, heads, norm, residual, rotary, shared_steps, swiglu)


@torch.library.custom_op("layer_ops::rms_norm_gain", mutates_args=())
def rms_norm_gain(gradient: Tensor, x: Tensor) -> Tensor:
    """Stands for the gradient of a fused rms_norm's gain."""
    raise NotImplementedError


@rms_norm_gain.register_fake
def _(gradient: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape[-1])


class FusedNorm(torch.autograd.Function):
    """Stands for a fused rms_norm: one operation forward, one backward for the input and one for the gain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, gain)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, gain = ctx.saved_tensors
        return gradient * x, None if gain is None else rms_norm_gain(gradient, x)

    @staticmethod
    def norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        """In the place of ``F.rms_norm``, which copies what is not contiguous."""
        return FusedNorm.apply(x.contiguous(), weight)


class Memory(torch.autograd.Function):
    """Stands for the memory: no operation either way."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, *given: Tensor) -> Tensor:
        ctx.save_for_backward(v, *given)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


class Counter(TorchDispatchMode):
    """Counts operations that launch something, and the bytes of what they take and return; ``latest`` counts kernels too."""

    latest: ClassVar[Counter]

    def __init__(self) -> None:
        super().__init__()
        self.ops: collections.Counter[str] = collections.Counter()
        self.bytes: collections.Counter[str] = collections.Counter()
        Counter.latest = self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.removesuffix(".default")
        if not func.__name__.startswith(UNCOUNTED):
            self.count(name, (() if name in FILLED else args, out))
        return out

    def count(self, name: str, moved: Any) -> None:
        """One more of a name, which moves these tensors."""
        self.ops[name] += 1
        self.bytes[name] += sum(size(x) for x in tree_leaves(moved) if isinstance(x, Tensor))


def launched(kernel: Any, *given: Any, **settings: Any) -> None:
    """Stands for a launch of a kernel of ours."""
    Counter.latest.count(f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}", given)


def size(x: Tensor) -> int:
    """The bytes of a tensor, each once where it is expanded."""
    return math.prod(length for length, stride in zip(x.shape, x.stride(), strict=True) if stride) * x.element_size()


class Count(NamedTuple):
    """What a block launches one way: products of matrices and all else, and the kilobytes a token that both move."""

    products: int
    passes: int
    kilobytes: float
    ops: collections.Counter[str]
    bytes: collections.Counter[str]

    @classmethod
    def of(cls, counter: Counter, tokens: int) -> Count:
        """Of a counter after the pass."""
        products = sum(counter.ops[name] for name in PRODUCTS)
        moved = sum(counter.bytes.values()) / tokens / 1e3
        return cls(products, sum(counter.ops.values()) - products, moved, counter.ops, counter.bytes)


def as_on_a_gpu() -> None:
    """Have the layer take its kernels."""
    F.rms_norm = FusedNorm.norm
    JITFunction.run = launched
    for kernels in PASSES:
        kernels.takes = lambda *given: True
    for found in pkgutil.iter_modules(miras.nn.__path__):
        module = importlib.import_module(f"miras.nn.{found.name}")
        if "takes_kernels" in vars(module):
            module.takes_kernels = lambda x: True


def counted(preset: str, dim: int, heads: int, inner: int, batch: int, time: int) -> tuple[Count, Count]:
    """A block's forward and backward pass."""
    mixer: Any = MirasLayer(dim, heads, preset)
    block = Block(mixer, inner)
    attends = isinstance(mixer.spec.algorithm, NonParametric)

    def remember(prepared: Any, state: Any, cu_seqlens: Any) -> tuple[Tensor, None]:
        given = [x for x in (prepared.v, prepared.q, prepared.k, *prepared.gates) if x is not None]
        return Memory.apply(*(x if attends else x.contiguous() for x in given)), None

    mixer.remember = remember
    own = [parameter for name, parameter in block.named_parameters() if not name.startswith("mixer.memory.")]
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(batch, time, dim, requires_grad=True)
        with Counter() as forward, torch.autocast("cpu", torch.bfloat16):
            y, _ = block(x)
        with Counter() as backward:
            torch.autograd.grad(y, [x, *own], torch.empty_like(y), allow_unused=True)
    return Count.of(forward, batch * time), Count.of(backward, batch * time)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="transformer,gla,deltanet,gated_deltanet,ttt_linear,titans_lmm,moneta,yaad,memora")
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--heads", type=int, default=10)
    parser.add_argument("--inner", type=int, default=1280)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--time", type=int, default=4096)
    parser.add_argument("--ops", action="store_true", help="which operations they are")
    given = parser.parse_args()
    as_on_a_gpu()
    for preset in given.presets.split(","):
        found = counted(preset, given.dim, given.heads, given.inner, given.batch, given.time)
        for way, count in zip(("forward", "backward"), found, strict=True):
            print(
                f"{preset:15} {way:8} {count.products:3} products, {count.passes:3} passes, {count.kilobytes:6.1f} kB a token"
            )
            if given.ops:
                each = ((op, n, count.bytes[op] / given.batch / given.time / 1e3) for op, n in count.ops.items())
                for op, n, kilobytes in sorted(each, key=lambda one: -one[2]):
                    print(f"    {op:32} {n:3} {kilobytes:8.2f} kB")


if __name__ == "__main__":
    main()
