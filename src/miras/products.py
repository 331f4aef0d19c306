"""Products of matrices whose gradients lie in memory as their arguments do.

Where one side is transposed, torch's own gradient of it comes transposed too, and every elementwise pass over it, of a deep
memory's backward pass many, walks across its rows.

... batch and heads, N rows, D and E channels
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Product(Function):
    """Of two factors, both of which its derivatives need."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class Times(Product):
    """x w', ``[...,N,D]`` and ``[...,E,D]``: dx = g w, dw = g' x."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.mT

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx, dw = ctx.needs_input_grad
        return g @ w if dx else None, g.mT @ x if dw else None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dw: Tensor) -> Tensor:
        x, w = ctx.saved_tensors
        product: Tensor = dx @ w.mT + x @ dw.mT
        return product


class Outer(Product):
    """a' b, ``[...,N,D]`` and ``[...,N,E]``: da = b g', db = a g."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        product: Tensor = a.mT @ b
        return product

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        da, db = ctx.needs_input_grad
        return b @ g.mT if da else None, a @ g if db else None

    @staticmethod
    def jvp(ctx: Any, da: Tensor, db: Tensor) -> Tensor:
        a, b = ctx.saved_tensors
        product: Tensor = da.mT @ b + a.mT @ db
        return product


def times(x: Tensor, w: Tensor) -> Tensor:
    """x w', each row of x by the matrix w."""
    product: Tensor = Times.apply(x, w) if _matters(x, w) else x @ w.mT  # type: ignore[no-untyped-call]
    return product


def outer(a: Tensor, b: Tensor) -> Tensor:
    """a' b, the sum of the rows' outer products."""
    product: Tensor = Outer.apply(a, b) if _matters(a, b) else a.mT @ b  # type: ignore[no-untyped-call]
    return product


def _matters(x: Tensor, w: Tensor) -> bool:
    """Whether there is more than a row, which lies one way only, nothing is broadcast, and no compiler lays it out."""
    return x.shape[-2] > 1 and x.shape[:-2] == w.shape[:-2] and not torch.compiler.is_compiling()
