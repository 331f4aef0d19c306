"""What the gates of a momentum make of a chunk: pair factors, and their gradients, one program a chunk and head.

Inside a chunk, with L the cumulative log decay, S the momentum at the chunk's start and f_i = eta_i g_i the step of token i,

    S_t = mu_t S_(t-1) - f_t,                  S_C = mu_1...mu_C S - sum_i mu_(i+1)...mu_C f_i,
    W_t = alpha_t W_(t-1) + S_t                    = b_t W + sigma_t S - sum_{i<=t} kappa(t,i) f_i,
    kappa(t,i) = sum_{i<=j<=t} exp(L_t - L_j) mu_(i+1)...mu_j,   sigma_t = sum_{j<=t} exp(L_t - L_j) mu_1...mu_j,

and sigma_t = mu_1 kappa(t,1). With m(t,i) = mu_(i+1)...mu_t all are made row by row, one warp a program and two columns i a lane:

    m(t,i) = mu_t m(t-1,i),   m(i,i) = 1,       kappa(t,i) = alpha_t kappa(t-1,i) + m(t,i).

Backwards, from the last row to the first, K and M being what row t of kappa and of m owe, later rows included,

    K_t(i) = dkappa(t,i) + alpha_(t+1) K_(t+1)(i),              M_t(i) = K_t(i) + mu_(t+1) M_(t+1)(i),
    dlog alpha_t = alpha_t sum_i K_t(i) kappa(t-1,i),           dmu_t = sum_i M_t(i) m(t-1,i),

with no difference of logarithms and no division, so a momentum of 0 and a total erasure are numbers like any other. The rows
before are needed last to first: eight of them at a time are made again, in registers, from the row of kappa before them and one scan
for the products. The other kernels take kappa, sigma and the products to the chunk's end, one number a head each. b_t they make themselves.

N chunks, C tokens of a chunk, T tokens of all sequences, H heads; GROUP tokens loaded at once
"""

# Triton has no iterable unpacking, and a branch is not a choice between two tuples
# ruff: noqa: ANN001, ANN002, ANN201, ANN202, RUF005, SIM108
# mypy: disable-error-code="no-untyped-def,misc,assignment"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arguments import Rows
from .launch import INTERPRETED, laid
from .operators import operator
from .tiles import chunk_and_head, power, stretch

# the hardware's own exponential, which is as good as float32
FAST = tl.constexpr(not INTERPRETED)
# tokens whose gates are loaded before any of them is used, to have many loads in flight; on the way back
# their rows of kappa, of the products and of dkappa are in registers
GROUP, BACK_GROUP = 16, 8


@triton.jit
def loaded(ptr, left, other, H: tl.constexpr, GROUP: tl.constexpr, WHOLE: tl.constexpr):
    """One number a slot, ``other`` where there is no token."""
    found = ()
    for s in tl.static_range(GROUP):
        if WHOLE:
            found = found + (tl.load(ptr + s * H),)
        else:
            found = found + (tl.load(ptr + s * H, mask=s < left, other=other),)
    return found


@triton.jit
def slots(ptr, left, other, H: tl.constexpr, GROUP: tl.constexpr):
    """The same; a group full of tokens has no masks, whose predicates are few and would have loads wait for each other."""
    if left >= GROUP:
        found = loaded(ptr, left, other, H, GROUP, True)
    else:
        found = loaded(ptr, left, other, H, GROUP, False)
    return found


@triton.jit
def gates(log_alpha_ptr, mu_ptr, ahead, left, H: tl.constexpr, HAS_ALPHA: tl.constexpr, GROUP: tl.constexpr):
    """alpha and mu of a group's slots and 1 for each of the ``left`` that have a token; one without keeps everything and adds 0."""
    alphas, adds = (), ()
    mus = slots(mu_ptr + ahead, left, 1.0, H, GROUP)
    if HAS_ALPHA:
        logs = slots(log_alpha_ptr + ahead, left, 0.0, H, GROUP)
    for s in tl.static_range(GROUP):
        if HAS_ALPHA:
            alphas = alphas + (power(logs[s], FAST),)
        else:
            alphas = alphas + (1.0,)
        adds = adds + (tl.where(s < left, 1.0, 0.0),)
    return alphas, mus, adds


@triton.jit
def step(kappa, grown, alpha, mu, own, adds):
    """A row of kappa and of the products from the rows before; ``own`` is the token's column."""
    grown = tl.where(own, 1.0, mu * grown)
    return alpha * kappa + adds * grown, grown


@triton.jit
def forward_kernel(
    log_alpha_ptr, mu_ptr, kappa_ptr, sigma_ptr, grown_ptr, grown_end_ptr, first_ptr, length_ptr, chunk_ptr, row_ptr,
    H: tl.constexpr, C: tl.constexpr, HAS_ALPHA: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """kappa, sigma and the products of mu from each token, and from the start, to the chunk's end."""
    number, head = chunk_and_head(H)
    first, count = stretch(number, row_ptr, first_ptr, length_ptr, chunk_ptr, C)
    i, at, own = tl.arange(0, C), number * H + head, first * H + head
    kappa, grown = tl.zeros([C], dtype=tl.float32), tl.zeros([C], dtype=tl.float32)
    sigma, grown_end = 0.0, 1.0
    # without a loop every column and row is a constant, and the rows' layout that of their stores
    for begin in tl.static_range(0, C, GROUP):
        alphas, mus, adds = gates(log_alpha_ptr, mu_ptr, own + begin * H, count - begin, H, HAS_ALPHA, GROUP)
        for s in tl.static_range(GROUP):
            kappa, grown = step(kappa, grown, alphas[s], mus[s], i == begin + s, adds[s])
            sigma, grown_end = step(sigma, grown_end, alphas[s], mus[s], False, adds[s])
            tl.store(kappa_ptr + (at * C + begin + s) * C + i, kappa)
            tl.store(sigma_ptr + at * C + begin + s, sigma)
    tl.store(grown_ptr + at * C + i, grown)
    tl.store(grown_end_ptr + at, grown_end)


@triton.jit
def products(after, i, t):
    """mu_(i+1)...mu_t for every i <= t, zeros after it, where ``after`` holds mu_(i+1)."""
    return tl.where(i <= t, tl.cumprod(tl.where(i < t, after, 1.0), 0, reverse=True), 0.0)


@triton.jit
def backward_kernel(
    log_alpha_ptr, mu_ptr, kappa_ptr, dkappa_ptr, dsigma_ptr, dgrown_ptr, dgrown_end_ptr, dlog_ptr, dmu_ptr,
    first_ptr, length_ptr, chunk_ptr, row_ptr, H: tl.constexpr, C: tl.constexpr, HAS_ALPHA: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The gradients of log alpha and mu, from a chunk's last token to its first."""
    number, head = chunk_and_head(H)
    first, count = stretch(number, row_ptr, first_ptr, length_ptr, chunk_ptr, C)
    i, at, own = tl.arange(0, C), number * H + head, first * H + head
    after = tl.load(mu_ptr + own + (i + 1) * H, mask=i + 1 < count, other=1.0)
    # sigma is mu_1 times the first column, and the product from the start mu_1 times the first product
    mu_1, dgrown_end = tl.where(i == 0, tl.load(mu_ptr + own), 0.0), tl.load(dgrown_end_ptr + at)
    dmu_1 = dgrown_end * products(after, i, C - 1)
    dkappa, dgrown = tl.zeros([C], dtype=tl.float32), tl.load(dgrown_ptr + at * C + i) + mu_1 * dgrown_end
    dlog, dmu = tl.zeros([C], dtype=tl.float32), tl.zeros([C], dtype=tl.float32)
    for back in range(GROUP, C + 1, GROUP):
        begin = C - back
        ahead, row, here, left = own + begin * H, at * C + begin, i - begin, count - begin
        outer, dsigmas = (), ()
        # whole columns of the group: what is right of the diagonal meets rows of zeros
        for s in tl.static_range(GROUP):
            outer = outer + (tl.load(dkappa_ptr + (row + s) * C + i, mask=i < begin + GROUP, other=0.0),)
            dsigmas = dsigmas + (tl.load(dsigma_ptr + row + s),)
        kappas = (tl.load(kappa_ptr + (row - 1) * C + i, mask=i < begin, other=0.0),)
        alphas, mus, adds = gates(log_alpha_ptr, mu_ptr, ahead, left, H, HAS_ALPHA, GROUP)
        growns = (products(after, i, begin - 1),)
        for s in tl.static_range(GROUP):
            kappa, grown = step(kappas[s], growns[s], alphas[s], mus[s], here == s, adds[s])
            kappas, growns = kappas + (kappa,), growns + (grown,)
            dmu_1 += dsigmas[s] * kappa
        for s in tl.static_range(GROUP - 1, -1, -1):
            dkappa += outer[s] + mu_1 * dsigmas[s]
            dgrown += adds[s] * dkappa
            dmu = tl.where(here == s, tl.sum(dgrown * growns[s], 0), dmu)
            if HAS_ALPHA:
                dlog = tl.where(here == s, alphas[s] * tl.sum(dkappa * kappas[s], 0), dlog)
            dkappa, dgrown = alphas[s] * dkappa, mus[s] * dgrown
    tl.store(dmu_ptr + own + i * H, tl.where(i == 0, dmu_1, dmu), mask=i < count)
    if HAS_ALPHA:
        tl.store(dlog_ptr + own + i * H, dlog, mask=i < count)


@operator("miras::momentum_factors")
def momentum_factors(
    log_alpha: Tensor | None, mu: Tensor, first: Tensor, length: Tensor, chunk: Tensor, row: Tensor, size: int
) -> list[Tensor]:
    """kappa ``[N,H,C,C]``, sigma ``[N,H,C]``, mu_(i+1)...mu_C ``[N,H,C]`` and mu_1...mu_C ``[N,H]`` of gates ``[T,H]``."""
    made = _room(mu, row, size)
    heads = mu.shape[1]
    forward_kernel[(len(row) * heads,)](
        log_alpha, mu, *made, first, length, chunk, row, heads, size, log_alpha is not None, min(GROUP, size), num_warps=1
    )
    return made


def _room(mu: Tensor, row: Tensor, size: int) -> list[Tensor]:
    shape = (row.shape[0], mu.shape[1])
    return [mu.new_empty(*shape, *rest) for rest in ((size, size), (size,), (size,), ())]


@momentum_factors.register_fake
def _(log_alpha, mu, first, length, chunk, row, size):
    return _room(mu, row, size)


@operator("miras::momentum_factors_backward")
def momentum_factors_backward(
    log_alpha: Tensor | None,
    mu: Tensor,
    first: Tensor,
    length: Tensor,
    chunk: Tensor,
    row: Tensor,
    size: int,
    kappa: Tensor,
    outer: list[Tensor],
) -> list[Tensor]:
    """The gradients of log alpha, empty where there is none, and mu."""
    dmu, dlog = torch.empty_like(mu), torch.empty_like(mu) if log_alpha is not None else mu.new_empty(0)
    heads = mu.shape[1]
    backward_kernel[(len(row) * heads,)](
        log_alpha, mu, kappa, *laid(outer), dlog, dmu, first, length, chunk, row, heads, size, log_alpha is not None,
        min(BACK_GROUP, size), num_warps=1,
    )  # fmt: skip
    return [dlog, dmu]


@momentum_factors_backward.register_fake
def _(log_alpha, mu, *rest):
    return [torch.empty_like(mu) if log_alpha is not None else mu.new_empty(0), torch.empty_like(mu)]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], output[0])
    ctx.size = inputs[6]


def _backward(ctx: Any, outer: list[Tensor]) -> tuple[Tensor | None, ...]:
    *given, kappa = ctx.saved_tensors
    dlog, dmu = momentum_factors_backward(*given, ctx.size, kappa, outer)
    return (None if given[0] is None else dlog, dmu, *[None] * 5)


momentum_factors.register_autograd(_backward, setup_context=_remember)


def factors(rows: Rows, size: int, log_alpha: Tensor | None, mu: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """kappa, sigma and both products of gates ``[T,H,1]``; every token is in a chunk of its own sequence."""
    decays = None if log_alpha is None else log_alpha[..., 0].contiguous()
    kappa, sigma, grown, grown_end = momentum_factors(decays, mu[..., 0].contiguous(), *rows.places, size)
    return kappa, sigma, grown, grown_end
