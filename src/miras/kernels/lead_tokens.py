"""Every chunk's first token by itself, and its gradients back among the others, where that token has a step of its own.

N chunks, C tokens of a chunk, T tokens of all sequences, H heads, D channels (DP: a power of two)
"""

# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arguments import Lead, Rows, Tokens
from .launch import strides
from .tiles import chunk_and_head, stretch


@triton.jit
def gather(
    k_ptr, v_ptr, eta_ptr, log_alpha_ptr, delta_ptr, own_k_ptr, own_v_ptr, own_eta_ptr, own_log_ptr, own_delta_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, eta_token, eta_head, eta_d, alpha_token, alpha_head, alpha_d, delta_token, delta_head, delta_d,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, DP: tl.constexpr, HAS_DELTA: tl.constexpr,
):  # fmt: skip
    """One program a chunk and head: the token and its gates, in float32 and channel by channel."""
    number, head = chunk_and_head(H)
    token, _ = stretch(number, row_ptr, first_ptr, length_ptr, chunk_ptr, C)
    d = tl.arange(0, DP)
    inside, own, here = d < D, (number * H + head) * D + d, (token * H + head) * D + d
    tl.store(own_k_ptr + own, tl.load(k_ptr + here, mask=inside), mask=inside)
    tl.store(own_v_ptr + own, tl.load(v_ptr + here, mask=inside), mask=inside)
    tl.store(own_eta_ptr + own, tl.load(eta_ptr + token * eta_token + head * eta_head + d * eta_d, mask=inside), mask=inside)
    log_alpha = tl.load(log_alpha_ptr + token * alpha_token + head * alpha_head + d * alpha_d, mask=inside)
    tl.store(own_log_ptr + own, log_alpha, mask=inside)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + token * delta_token + head * delta_head + d * delta_d, mask=inside)
        tl.store(own_delta_ptr + own, delta, mask=inside)


@triton.jit
def scatter(
    dk_ptr, dv_ptr, deta_ptr, dlog_ptr, ddelta_ptr, own_k_ptr, own_v_ptr, own_eta_ptr, own_log_ptr, own_delta_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, DP: tl.constexpr, HAS_DELTA: tl.constexpr,
):  # fmt: skip
    """One program a chunk and head: what arrives at the own steps; among the others the token had neither a step nor a decay."""
    number, head = chunk_and_head(H)
    token, _ = stretch(number, row_ptr, first_ptr, length_ptr, chunk_ptr, C)
    d = tl.arange(0, DP)
    inside, own, here = d < D, (number * H + head) * D + d, (token * H + head) * D + d
    dk, dv = tl.load(dk_ptr + here, mask=inside).to(tl.float32), tl.load(dv_ptr + here, mask=inside).to(tl.float32)
    tl.store(dk_ptr + here, dk + tl.load(own_k_ptr + own, mask=inside), mask=inside)
    tl.store(dv_ptr + here, dv + tl.load(own_v_ptr + own, mask=inside), mask=inside)
    tl.store(deta_ptr + here, tl.load(own_eta_ptr + own, mask=inside), mask=inside)
    tl.store(dlog_ptr + here, tl.load(own_log_ptr + own, mask=inside), mask=inside)
    if HAS_DELTA:
        ddelta = tl.load(ddelta_ptr + here, mask=inside).to(tl.float32)
        tl.store(ddelta_ptr + here, ddelta + tl.load(own_delta_ptr + own, mask=inside), mask=inside)


def lead_of(tokens: Tokens, log_anchors: list[Tensor], rows: Rows, size: int) -> Lead:
    """Every chunk's first token by itself; the anchors are empty where there are none."""
    _, k, v, eta, log_alpha, delta = tokens
    shape = (len(rows.row), *k.shape[1:])
    own = [torch.empty(0 if x is None else shape, device=k.device) for x in (k, v, eta, log_alpha, delta)]
    gather[(shape[0] * shape[1],)](
        k, v, eta, log_alpha, delta, *own, *rows.places, *strides(eta), *strides(log_alpha), *strides(delta),
        *shape[1:], C=size, DP=triton.next_power_of_2(shape[2]), HAS_DELTA=delta is not None, num_warps=1,
    )  # fmt: skip
    return Lead(*own, *log_anchors)


def joined(gradients: tuple[Tensor | None, ...], own: Lead, rows: Rows, size: int) -> None:
    """Those of k, v, eta, log alpha and delta ``[T,H,D]`` take in what arrives at the own steps."""
    number, heads, channels = own.k.shape
    scatter[(number * heads,)](
        *gradients, *own[:5], *rows.places, heads, channels,
        C=size, DP=triton.next_power_of_2(channels), HAS_DELTA=gradients[-1] is not None, num_warps=1,
    )  # fmt: skip
