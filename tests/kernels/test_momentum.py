"""The factors of a momentum against the sums they stand for, values and gradients; on the CPU by Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from devices import DEVICE
from miras.kernels.arguments import Rows
from miras.kernels.momentum import factors, momentum_factors

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_device")]


def summed(lengths, size, log_alpha, mu):
    """Each factor by its sum, chunk by chunk, in float64."""
    found = ([], [], [], [])
    first = 0
    for length in lengths:
        for begin in range(0, length, size):
            count = min(size, length - begin)
            token = slice(first + begin, first + begin + count)
            a = torch.zeros(size, dtype=torch.float64) if log_alpha is None else padded(log_alpha[token], size, 0.0)
            m = padded(mu[token], size, 1.0)
            kappa, sigma = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
            for t in range(size):
                for j in range(min(t + 1, count)):
                    decay = a[j + 1 : t + 1].sum().exp()
                    sigma = sigma + decay * m[: j + 1].prod() * one(size, t)
                    for i in range(j + 1):
                        kappa = kappa + decay * m[i + 1 : j + 1].prod() * one(size, t)[:, None] * one(size, i)
            grown = torch.stack([m[i + 1 :].prod() for i in range(size)])
            for held, new in zip(found, (kappa, sigma, grown, m.prod()), strict=True):
                held.append(new)
        first += length
    return [torch.stack(x) for x in found]


def padded(x, size, value):
    return torch.cat([x, torch.full((size - len(x),), value, dtype=x.dtype)])


def one(size, place):
    return torch.eye(size, dtype=torch.float64)[place]


def compare(lengths, size, log_alpha, mu, decays=True):
    """Values and gradients of every head, under random gradients of all factors."""
    rows = Rows.of(lengths, size, torch.device(DEVICE))
    given = [x.requires_grad_() for x in ([log_alpha, mu] if decays else [mu])]
    made = factors(rows, size, log_alpha if decays else None, mu)
    marks = [torch.randn(x.shape, generator=torch.Generator(DEVICE).manual_seed(i)) for i, x in enumerate(made)]
    grads = torch.autograd.grad(sum((x * mark).sum() for x, mark in zip(made, marks, strict=True)), given)
    for head in range(mu.shape[1]):
        exact = [x.detach()[:, head, 0].double().requires_grad_() for x in given]
        want = summed(lengths, size, exact[0] if decays else None, exact[-1])
        for x, y in zip(made, want, strict=True):
            assert torch.allclose(x[:, head].double(), y, atol=1e-5)
        loss = sum((x * mark[:, head].double()).sum() for x, mark in zip(want, marks, strict=True))
        for x, y in zip(grads, torch.autograd.grad(loss, exact), strict=True):
            assert torch.allclose(x[:, head, 0].double(), y, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("decays", [True, False])
def test_factors_and_their_gradients(decays):
    lengths = [16, 0, 21, 3]
    mu = torch.rand(sum(lengths), 2, 1)
    mu[3] = 0
    compare(lengths, 16, -0.3 * torch.rand(sum(lengths), 2, 1), mu, decays)


@pytest.mark.parametrize("size", [4, 32])
def test_gates_at_their_ends(size):
    """Momenta of 0, one after the other, next to 0 and of 1; total erasures; in more than one group of tokens and in less."""
    log_alpha, mu = -0.3 * torch.rand(27, 1, 1), torch.rand(27, 1, 1)
    mu[[2, 6, 7, 8, 20]], mu[[5, 21]], mu[[9, 12, 26]] = 0.0, 1e-20, 1.0
    log_alpha[[0, 8, 13, 14, 23]], log_alpha[[4, 17]] = -torch.inf, 0.0
    compare([27], size, log_alpha, mu)


def test_the_operators_register_what_compilers_ask_for():
    rows = Rows.of([9], 16, torch.device(DEVICE))
    log_alpha, mu = (-torch.rand(9, 2)).requires_grad_(), torch.rand(9, 2, requires_grad=True)
    torch.library.opcheck(momentum_factors.library, (log_alpha, mu, *rows.places, 16))
