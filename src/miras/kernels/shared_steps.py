"""Steps shared among keys alike (``nn.shared_steps``) in one pass each way: what stands between tokens never leaves a program.

With A_ti = (k_t . k_i)^2 for i = t and the W tokens before t, f = 1 / unit and s = min(1, m / (f A eta)), the result is y = eta s,
and from dy, where s < 1,

    r_t = -dy_t eta_t s_t^2 / m,     deta = dy s + f A' r,     dA = f r eta',     dG = 2 G dA,     dk_t += dG_ti k_i,  dk_i += dG_ti k_t.

A program has a block of tokens, as readers of the block before and of themselves, and backwards as what the block after reads.

B batch, S tokens behind each other, of which the first L are only read, H heads, K key channels, D channels of a step
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import launch
from .around import blocks, once, power_of_2, readable
from .launch import INTERPRETED, products_of

# tokens of a program: Triton's products of fewer rows are not to be relied upon everywhere (docs/kernels_numbers.md)
BLOCK = 64
# channels a head of the memories that share their steps on a GPU
WIDTHS = (48, 64, 96, 128)


@triton.jit
def places(row, token, first, S, H, D: tl.constexpr, DP: tl.constexpr):
    """Where tokens ``[BLOCK,DP]`` of one row and head lie, and which of them there are; ``first`` is the first that is kept."""
    d = tl.arange(0, DP)
    at = ((row // H).to(tl.int64) * (S - first) + token - first) * H + row % H
    return at[:, None] * D + d[None, :], ((token >= first) & (token < S))[:, None] & (d < D)[None, :]


@triton.jit
def rows(x_ptr, row, token, first, S, H, D: tl.constexpr, DP: tl.constexpr):
    """Tokens ``[BLOCK,DP]``, zeros where there is none."""
    at, inside = places(row, token, first, S, H, D, DP)
    return tl.load(x_ptr + at, mask=inside, other=0.0)


@triton.jit
def keep(y_ptr, y, row, token, first, S, H, D: tl.constexpr, DP: tl.constexpr):
    """Tokens ``[BLOCK,DP]`` to where they belong."""
    at, inside = places(row, token, first, S, H, D, DP)
    tl.store(y_ptr + at, y, mask=inside)


@triton.jit
def products(reader, source, later, earlier, WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    """k_t . k_i for each reader t, itself and each of the WIDTH tokens i before it, 0 elsewhere."""
    back = later[:, None] - earlier[None, :]
    seen = (back >= 0) & (back <= WIDTH)
    return tl.where(seen, tl.dot(reader, tl.trans(source), input_precision=PRECISION), 0.0)


@triton.jit
def mixed(weights, x, DP: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """weights x, of weights ``[BLOCK,BLOCK]`` and x ``[BLOCK,DP]``; one channel is a sum, not a product with fifteen of zeros."""
    if DP == 1:
        y = tl.sum(weights * tl.trans(x.to(tl.float32)), 1)[:, None]
    else:
        y = tl.dot(weights.to(DOT), x.to(DOT), input_precision=PRECISION)
    return y


@triton.jit
def numbers(x):
    """x, and 0 where it is no number: 0 times that would reach the sequences behind."""
    return tl.where(tl.abs(x.to(tl.float32)) < float("inf"), x, 0.0).to(x.dtype)


@triton.jit
def met(x, y, DP: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """x y', each ``[BLOCK,DP]``."""
    if DP == 1:
        z = x.to(tl.float32) * tl.trans(y.to(tl.float32))
    else:
        z = tl.dot(x.to(DOT), tl.trans(y.to(DOT)), input_precision=PRECISION)
    return z


@triton.jit
def forward_kernel(
    k_ptr, eta_ptr, share_ptr, y_ptr, S, L, H, N, factor, most,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y = eta s, and the share s."""
    row = tl.program_id(0) // N
    token = L + tl.program_id(0) % N * BLOCK + tl.arange(0, BLOCK)
    key, eta = rows(k_ptr, row, token, 0, S, H, K, KP).to(DOT), rows(eta_ptr, row, token, 0, S, H, D, DP)
    near = products(key, key, token, token, WIDTH, PRECISION)
    crowd = mixed(near * near, numbers(eta), DP, DOT, PRECISION)
    before, moved = rows(k_ptr, row, token - BLOCK, 0, S, H, K, KP).to(DOT), rows(eta_ptr, row, token - BLOCK, 0, S, H, D, DP)
    far = products(key, before, token, token - BLOCK, WIDTH, PRECISION)
    crowd += mixed(far * far, numbers(moved), DP, DOT, PRECISION)
    share = most / tl.maximum(factor * crowd, most)
    keep(share_ptr, share, row, token, L, S, H, D, DP)
    keep(y_ptr, eta.to(tl.float32) * share, row, token, L, S, H, D, DP)


@triton.jit
def pull(dy_ptr, eta_ptr, share_ptr, row, token, L, S, H, most, D: tl.constexpr, DP: tl.constexpr):
    """What arrives at a reader's f A eta: -dy eta s^2 / m, or nothing."""
    dy, share = (
        rows(dy_ptr, row, token, L, S, H, D, DP).to(tl.float32),
        rows(share_ptr, row, token, L, S, H, D, DP).to(tl.float32),
    )
    pulled = -dy * rows(eta_ptr, row, token, 0, S, H, D, DP).to(tl.float32) * share * share / most
    return tl.where(share < 1.0, pulled, 0.0)


@triton.jit
def backward_kernel(
    k_ptr, eta_ptr, share_ptr, dy_ptr, dk_ptr, deta_ptr, S, L, H, N, factor, most,
    K: tl.constexpr, D: tl.constexpr, KP: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, LED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and deta of a block: as readers, and as what the readers of this block and the next have seen."""
    row = tl.program_id(0) // N
    token = L + (tl.program_id(0) % N - LED) * BLOCK + tl.arange(0, BLOCK)
    key, eta = rows(k_ptr, row, token, 0, S, H, K, KP).to(DOT), rows(eta_ptr, row, token, 0, S, H, D, DP)
    own = pull(dy_ptr, eta_ptr, share_ptr, row, token, L, S, H, most, D, DP)
    near = products(key, key, token, token, WIDTH, PRECISION)
    slope = (2.0 * factor * near * met(own, eta, DP, DOT, PRECISION)).to(DOT)
    dk = tl.dot(slope, key, input_precision=PRECISION) + tl.dot(tl.trans(slope), key, input_precision=PRECISION)
    deta = mixed(tl.trans(near * near), own, DP, DOT, PRECISION)
    before, moved = rows(k_ptr, row, token - BLOCK, 0, S, H, K, KP).to(DOT), rows(eta_ptr, row, token - BLOCK, 0, S, H, D, DP)
    far = products(key, before, token, token - BLOCK, WIDTH, PRECISION)
    slope = (2.0 * factor * far * met(own, moved, DP, DOT, PRECISION)).to(DOT)
    dk += tl.dot(slope, before, input_precision=PRECISION)
    after = rows(k_ptr, row, token + BLOCK, 0, S, H, K, KP).to(DOT)
    other = pull(dy_ptr, eta_ptr, share_ptr, row, token + BLOCK, L, S, H, most, D, DP)
    far = products(after, key, token + BLOCK, token, WIDTH, PRECISION)
    slope = (2.0 * factor * far * met(other, eta, DP, DOT, PRECISION)).to(DOT)
    dk += tl.dot(tl.trans(slope), after, input_precision=PRECISION)
    deta += mixed(tl.trans(far * far), other, DP, DOT, PRECISION)
    dy = rows(dy_ptr, row, token, L, S, H, D, DP).to(tl.float32)
    deta = dy * rows(share_ptr, row, token, L, S, H, D, DP).to(tl.float32) + factor * deta
    keep(dk_ptr, dk, row, token, 0, S, H, K, KP)
    keep(deta_ptr, deta, row, token, 0, S, H, D, DP)


def _told(k: Tensor, eta: Tensor, width: int) -> dict[str, Any]:
    channels, steps = k.shape[3], eta.shape[3]
    # a product has 16 channels at least
    padded = {"KP": max(16, power_of_2(channels)), "DP": 1 if steps == 1 else max(16, power_of_2(steps))}
    shape = {"K": channels, "D": steps} | padded
    return shape | {"BLOCK": BLOCK, "WIDTH": width} | products_of(k.dtype)


class SharedSteps(torch.autograd.Function):
    """The steps, and the gradients of keys and steps."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, eta: Tensor, most: float, factor: float, width: int, lead: int) -> Tensor:
        k, eta = k.contiguous(), eta.contiguous()
        batch, seen, heads, _ = k.shape
        share, y = (eta.new_empty(batch, seen - lead, *eta.shape[2:]) for _ in range(2))
        number = blocks(seen - lead, BLOCK)
        with torch.cuda.device(k.get_device()):
            forward_kernel[(number * batch * heads,)](
                k, eta, share, y, seen, lead, heads, number, factor, most, **_told(k, eta, width), num_warps=4
            )
        ctx.save_for_backward(k, eta, share)
        ctx.most, ctx.factor, ctx.width, ctx.lead = most, factor, width, lead
        return y

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
        k, eta, share = saved
        batch, seen, heads, _ = k.shape
        dk, deta, led = torch.empty_like(k), torch.empty_like(eta), int(ctx.lead > 0)
        number = blocks(seen - ctx.lead, BLOCK) + led
        with torch.cuda.device(k.get_device()):
            backward_kernel[(number * batch * heads,)](
                k, eta, share, dy.contiguous(), dk, deta, seen, ctx.lead, heads, number, ctx.factor, ctx.most, LED=led, **_told(k, eta, ctx.width),
                num_warps=4,
            )  # fmt: skip
        return dk, deta, None, None, None, None


def shared_steps(k: Tensor, eta: Tensor, most: float, unit: float, width: int, lead: int) -> Tensor:
    """eta_t min(1, m / c_t), c_t over each token and the ``width`` before it; the first ``lead`` are only seen.

    k ``[B,S,H,K]``, eta ``[B,S,H,D]`` -> ``[B,S-L,H,D]``; ``lead`` is at most a block.
    """
    y: Tensor = SharedSteps.apply(k, eta, most, 1 / unit, width, lead)  # type: ignore[no-untyped-call]
    return y


def takes(k: Tensor, eta: Tensor, width: int) -> bool:
    """Whether the kernel shares such steps.

    On a GPU keys of bf16, one step a head or a channel, the widths that deep memories have, and Hopper: float32, three products
    for one, has no room there, float16 loses small gradients, and other GPUs spill. In the interpreter, which has no products of
    16 bits, float32.
    """
    fits = readable(k, eta) and width < BLOCK and max(k.shape[3], eta.shape[3]) <= 128
    if INTERPRETED:
        return fits and k.dtype == torch.float32
    known = launch.CAPABILITY == launch.HOPPER and k.shape[3] in WIDTHS and eta.shape[3] in (1, k.shape[3])
    return fits and known and k.dtype == torch.bfloat16
