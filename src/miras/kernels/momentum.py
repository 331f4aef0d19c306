"""What the gates of a momentum make of a chunk: pair factors, and their gradients, one program a chunk and head.

Inside a chunk, with L the cumulative log decay, S the momentum at the chunk's start and f_i = eta_i g_i the step of token i,

    S_t = mu_t S_(t-1) - f_t,                  S_C = mu_1...mu_C S - sum_i mu_(i+1)...mu_C f_i,
    W_t = alpha_t W_(t-1) + S_t                    = b_t W + sigma_t S - sum_{i<=t} kappa(t,i) f_i,
    kappa(t,i) = sum_{i<=j<=t} exp(L_t - L_j) mu_(i+1)...mu_j,   sigma_t = sum_{j<=t} exp(L_t - L_j) mu_1...mu_j,

so kappa = A P with A[t,j] = exp(L_t - L_j) and P[j,i] = mu_(i+1)...mu_j. Backwards, X = dA * A gives dL_t = sum_j X[t,j] - sum_s X[s,t], and
Y = dP * P gives each mu_m the sum of Y over all (j,i) with i < m <= j, over mu_m. The other kernels take kappa, sigma and the products
to the chunk's end, one number a head each. b_t they make themselves.

N chunks, C tokens of a chunk, T tokens of all sequences, H heads
"""

# ruff: noqa: ANN001, ANN002, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arguments import Rows
from .launch import INTERPRETED
from .tiles import LOWEST, chunk_and_head, place

# a momentum of 0 has the derivative of one that is next to it
LEAST = tl.constexpr(1e-12)
# three products of rounded numbers are as good as one in float32, and the matrix units do them
PRECISION = tl.constexpr("ieee" if INTERPRETED else "tf32x3")


@triton.jit
def gates_of(log_alpha_ptr, mu_ptr, token, head, there, H: tl.constexpr, HAS_ALPHA: tl.constexpr):
    """log alpha and mu of a chunk's tokens; slots without a token keep everything: mu = 1, log alpha = 0."""
    mu = tl.maximum(tl.load(mu_ptr + token * H + head, mask=there, other=1.0), LEAST)
    log_alpha = mu * 0
    if HAS_ALPHA:
        log_alpha = tl.maximum(tl.load(log_alpha_ptr + token * H + head, mask=there, other=0.0), LOWEST)
    return log_alpha, mu


@triton.jit
def matrices(log_alpha, mu, there, t):
    """A[t,j] = exp(L_t - L_j) and P[j,i] = mu_(i+1)...mu_j, both lower triangular; A is 0 where j has no token."""
    total = tl.cumsum(log_alpha, 0)
    seen = t[:, None] >= t[None, :]
    past = tl.where(seen & there[None, :], tl.exp(tl.where(seen, total[:, None] - total[None, :], 0.0)), 0.0)
    products = tl.cumprod(tl.where(t[:, None] > t[None, :], mu[:, None], 1.0), 0)
    return past, tl.where(seen, products, 0.0)


@triton.jit
def forward_kernel(
    log_alpha_ptr, mu_ptr, kappa_ptr, sigma_ptr, grown_ptr, grown_end_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr,
    H: tl.constexpr, C: tl.constexpr, HAS_ALPHA: tl.constexpr,
):  # fmt: skip
    """kappa, sigma and the products of mu from each token, and from the start, to the chunk's end."""
    number, head = chunk_and_head(H)
    t = tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    log_alpha, mu = gates_of(log_alpha_ptr, mu_ptr, token, head, there, H, HAS_ALPHA)
    past, products = matrices(log_alpha, mu, there, t)
    grown = tl.cumprod(mu, 0)
    at = number * H + head
    tl.store(kappa_ptr + at * C * C + t[:, None] * C + t[None, :], tl.dot(past, products, input_precision=PRECISION))
    tl.store(sigma_ptr + at * C + t, tl.sum(past * grown[None, :], 1))
    last = (t == C - 1)[:, None]
    tl.store(grown_ptr + at * C + t, tl.sum(tl.where(last, products, 0.0), 0))
    tl.store(grown_end_ptr + at, tl.sum(tl.where(t == C - 1, grown, 0.0), 0))


@triton.jit
def backward_kernel(
    log_alpha_ptr, mu_ptr, dkappa_ptr, dsigma_ptr, dgrown_ptr, dgrown_end_ptr, dlog_ptr, dmu_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, C: tl.constexpr, HAS_ALPHA: tl.constexpr,
):  # fmt: skip
    """The gradients of log alpha and mu."""
    number, head = chunk_and_head(H)
    t = tl.arange(0, C)
    _, token, there = place(number, row_ptr, first_ptr, length_ptr, chunk_ptr, t, C)
    log_alpha, mu = gates_of(log_alpha_ptr, mu_ptr, token, head, there, H, HAS_ALPHA)
    past, products = matrices(log_alpha, mu, there, t)
    grown = tl.cumprod(mu, 0)
    at = number * H + head
    dkappa = tl.load(dkappa_ptr + at * C * C + t[:, None] * C + t[None, :])
    dsigma = tl.load(dsigma_ptr + at * C + t)
    dproducts = tl.dot(tl.trans(past), dkappa, input_precision=PRECISION)
    dproducts += tl.where((t == C - 1)[:, None], tl.load(dgrown_ptr + at * C + t)[None, :], 0.0)
    moved = dproducts * products
    dgrown = tl.sum(past * dsigma[:, None], 0) + tl.where(t == C - 1, tl.load(dgrown_end_ptr + at), 0.0)
    # only what spans m is added up: beside a momentum near 0 the others would leave their rounding
    spans = tl.sum(tl.where(t[:, None] > t[None, :], tl.cumsum(moved, 0, reverse=True), 0.0), 1)
    dmu = (spans + tl.cumsum(dgrown * grown, 0, reverse=True)) / mu
    tl.store(dmu_ptr + token * H + head, dmu, mask=there)
    if HAS_ALPHA:
        dpast = tl.dot(dkappa, tl.trans(products), input_precision=PRECISION) + dsigma[:, None] * grown[None, :]
        kept = dpast * past
        late = tl.sum(kept, 1) - tl.sum(kept, 0)
        tl.store(dlog_ptr + token * H + head, tl.cumsum(late, 0, reverse=True), mask=there)


@torch.library.custom_op("miras::momentum_factors", mutates_args=())
def momentum_factors(
    log_alpha: Tensor | None, mu: Tensor, first: Tensor, length: Tensor, chunk: Tensor, row: Tensor, size: int
) -> list[Tensor]:
    """kappa ``[N,H,C,C]``, sigma ``[N,H,C]``, mu_(i+1)...mu_C ``[N,H,C]`` and mu_1...mu_C ``[N,H]`` of gates ``[T,H]``."""
    made = _room(mu, row, size)
    heads = mu.shape[1]
    forward_kernel[(len(row) * heads,)](
        log_alpha, mu, *made, first, length, chunk, row, heads, size, HAS_ALPHA=log_alpha is not None, num_warps=4
    )
    return made


def _room(mu: Tensor, row: Tensor, size: int) -> list[Tensor]:
    shape = (row.shape[0], mu.shape[1])
    return [mu.new_empty(*shape, *rest) for rest in ((size, size), (size,), (size,), ())]


@momentum_factors.register_fake
def _(log_alpha, mu, first, length, chunk, row, size):
    return _room(mu, row, size)


@torch.library.custom_op("miras::momentum_factors_backward", mutates_args=())
def momentum_factors_backward(
    log_alpha: Tensor | None,
    mu: Tensor,
    first: Tensor,
    length: Tensor,
    chunk: Tensor,
    row: Tensor,
    size: int,
    outer: list[Tensor],
) -> list[Tensor]:
    """The gradients of log alpha, empty where there is none, and mu."""
    dmu, dlog = torch.empty_like(mu), torch.empty_like(mu) if log_alpha is not None else mu.new_empty(0)
    heads = mu.shape[1]
    backward_kernel[(len(row) * heads,)](
        log_alpha, mu, *outer, dlog, dmu, first, length, chunk, row, heads, size, HAS_ALPHA=log_alpha is not None, num_warps=8
    )
    return [dlog, dmu]


@momentum_factors_backward.register_fake
def _(log_alpha, mu, *rest):
    return [torch.empty_like(mu) if log_alpha is not None else mu.new_empty(0), torch.empty_like(mu)]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.size = inputs[6]


def _backward(ctx: Any, outer: list[Tensor]) -> tuple[Tensor | None, ...]:
    dlog, dmu = momentum_factors_backward(*ctx.saved_tensors, ctx.size, [x.contiguous() for x in outer])
    return (None if ctx.saved_tensors[0] is None else dlog, dmu, *[None] * 5)


momentum_factors.register_autograd(_backward, setup_context=_remember)


def factors(rows: Rows, size: int, log_alpha: Tensor | None, mu: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """kappa, sigma and both products of gates ``[T,H,1]``; every token is in a chunk of its own sequence."""
    decays = None if log_alpha is None else log_alpha[..., 0].contiguous()
    kappa, sigma, grown, grown_end = momentum_factors(decays, mu[..., 0].contiguous(), *rows, size)
    return kappa, sigma, grown, grown_end
