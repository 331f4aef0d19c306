"""Every retention's step is the minimiser of its stated objective, found again numerically."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from catalogue import RETENTIONS, smooth
from inputs import relative
from miras.retention import KL, L2, Bregman, ElasticNet, ElasticNetFTRL, FDivergence, Keep, L2Ball, Lq
from miras.retention.simplex import log_simplex
from miras.types import Held

SHAPE = (1, 1, 3, 4)


def drawn():
    return torch.randn(SHAPE, dtype=torch.float64)


def found(retention, held, gradient, eta, log_alpha, anchor, to_weight, start):
    """argmin of the objective over to_weight(z), z unconstrained (or >= 0 in the pair form of an absolute value)."""

    def value(z):
        z = torch.tensor(z, requires_grad=True)
        total = retention.objective(to_weight(z), held, gradient, eta, log_alpha, anchor)
        (slope,) = torch.autograd.grad(total, z)
        return total.item(), slope.numpy()

    best = minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-11, "maxiter": 5000})
    return to_weight(torch.tensor(best.x))


def stepped(retention, held, gradient, eta, log_alpha, anchor):
    rates = retention.rates(eta, log_alpha)
    return retention.step(held, rates.log_decay, rates.step * gradient, rates.threshold, anchor).weight


def gates(channelwise):
    rows = (1, 1, 3, 1) if channelwise else (1, 1, 1, 1)
    return 0.1 + 0.5 * torch.rand(rows, dtype=torch.float64), -torch.rand(rows, dtype=torch.float64)


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize(
    "retention",
    [
        Keep(),
        L2(at="decayed"),
        L2(at="previous"),
        L2(at="decayed", anchor=True),
        L2(at="previous", anchor=True),
        Lq(q=4, link="exact"),
        Lq(q=3, link="exact", anchor=True),
        Lq(q=1.5, link="exact"),
    ],
    ids=lambda r: r.label,
)
def test_unconstrained(retention, channelwise):
    eta, log_alpha = gates(channelwise)
    log_alpha = log_alpha if retention.gates else None
    held = retention.start(drawn())
    anchor = drawn() if retention.anchored else None
    gradient = drawn()
    got = stepped(retention, held, gradient, eta, log_alpha, anchor)
    want = found(retention, held, gradient, eta, log_alpha, anchor, lambda z: z.reshape(SHAPE), drawn().flatten().numpy())
    assert relative(got, want) < 1e-6


# but for the printed link, which minimises nothing, and what is smoothed
PENALISED = [part for part in RETENTIONS if not smooth(part) and getattr(part, "link", "") != "paper"]


@pytest.mark.parametrize("retention", PENALISED, ids=lambda r: r.label)
def test_no_step_along_another_gradient_is_better(retention):
    """For any retention, without knowing where its weights may lie: other steps do not leave that place either."""
    eta, log_alpha = (gate.mean().expand(1, 1, 1, 1) for gate in gates(False))
    log_alpha = log_alpha if retention.gates else None
    held, gradient = retention.start(drawn()), drawn()
    anchor = retention.start(drawn()).accumulated if retention.anchored else None

    def reached(other):
        weight = stepped(retention, held, other, eta, log_alpha, anchor)
        return weight, float(retention.objective(weight, held, gradient, eta, log_alpha, anchor))

    best, least = reached(gradient)
    for size in (0.03, 0.3, 1.0):
        for _ in range(8):
            weight, value = reached(gradient + size * drawn())
            assert value > least or torch.equal(weight, best), size


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("link", ["identity", "sigmoid", "exp", "tanh"])
def test_bregman(link, channelwise):
    retention = Bregman(link=link)
    eta, _ = gates(channelwise)
    held, gradient = retention.start(drawn()), drawn()
    got = stepped(retention, held, gradient, eta, None, None)
    to_weight = lambda z: retention.to_weight(z.reshape(SHAPE))  # noqa: E731
    assert relative(got, found(retention, held, gradient, eta, None, None, to_weight, np.zeros(12))) < 1e-6


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("retention", [ElasticNet(a=2.0, b=3.0), ElasticNetFTRL(a=1.5)], ids=lambda r: r.label)
def test_elastic_net(retention, channelwise):
    """W = P - N with P, N >= 0 makes the absolute value smooth."""
    eta, _ = gates(channelwise)
    held = Held(drawn(), drawn()) if isinstance(retention, ElasticNetFTRL) else retention.start(drawn())
    gradient = drawn()

    def value(z):
        z = torch.tensor(z, requires_grad=True)
        plus, minus = z[:12].reshape(SHAPE), z[12:].reshape(SHAPE)
        weight = plus - minus
        total = retention.objective(weight, held, gradient, eta)
        total = total + ((plus + minus) - weight.abs()).sum() / retention.a
        (slope,) = torch.autograd.grad(total, z)
        return total.item(), slope.numpy()

    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 10000, "maxfun": 50000}
    start = np.random.default_rng(0).random(24)
    best = minimize(value, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * 24, options=options)
    want = torch.tensor(best.x[:12] - best.x[12:]).reshape(SHAPE)
    assert (stepped(retention, held, gradient, eta, None, None) - want).abs().max() < 1e-6


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("kind", ["row", "column", "matrix"])
@pytest.mark.parametrize("c", [None, 2.5])
@pytest.mark.parametrize("divergence", ["KL", "KL anchored", "kl", "reverse_kl", "hellinger"])
def test_simplex(divergence, c, kind, channelwise):
    """Over W = c softmax(z) the constraint is gone."""
    eta, log_alpha = gates(channelwise)
    if divergence.startswith("KL"):
        retention = KL(c=c, slice=kind, anchor=divergence == "KL anchored")
    else:
        retention, log_alpha = FDivergence(g=divergence, c=c, slice=kind), None
    held, gradient = retention.start(drawn()), drawn()
    anchor = retention.start(drawn()).accumulated if retention.anchored else None
    got = stepped(retention, held, gradient, eta, log_alpha, anchor)
    to_weight = lambda z: log_simplex(z.reshape(SHAPE), kind, c).exp()  # noqa: E731
    assert relative(got, found(retention, held, gradient, eta, log_alpha, anchor, to_weight, np.zeros(12))) < 1e-6


@pytest.mark.parametrize("scale", [0.3, 6.0])
def test_chi_squared(scale):
    """A quadratic programme: with a large step some weights are clamped at 0."""
    retention = FDivergence(g="chi2", slice="matrix", c=2.0)
    held, gradient, eta = retention.start(drawn()), scale * drawn(), torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64)
    got = stepped(retention, held, gradient, eta, None, None)
    w, g = held.weight.flatten().numpy(), (eta * gradient).flatten().numpy()
    best = minimize(
        lambda x: x @ g + ((x - w) ** 2 / w).sum(),
        w,
        jac=lambda x: g + 2 * (x - w) / w,
        method="SLSQP",
        bounds=[(0, None)] * 12,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 2.0, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 2000},
    )
    assert (got.flatten() - torch.tensor(best.x)).abs().max() < 1e-6
    assert ((got == 0).any().item()) == (scale > 1)


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_l2_ball(scale):
    retention, eta, log_alpha = L2Ball(radius=1.5), *gates(True)
    held, gradient = retention.start(0.3 * drawn()), scale * drawn()
    got = stepped(retention, held, gradient, eta, log_alpha, None)
    target = (log_alpha.exp() * held.weight - eta * gradient).flatten().numpy()
    best = minimize(
        lambda x: 0.5 * ((x - target) ** 2).sum(),
        np.zeros(12),
        jac=lambda x: x - target,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: 2.25 - x @ x, "jac": lambda x: -2 * x},
        options={"ftol": 1e-15, "maxiter": 2000},
    )
    assert (got.flatten() - torch.tensor(best.x)).abs().max() < 1e-6
    assert (got.norm() <= 1.5 + 1e-9) and ((got.norm() > 1.4).item() == (scale > 1))
    other = got * (1 - 1e-3) + 1e-4 * drawn()
    assert retention.objective(got, held, gradient, eta, log_alpha) < retention.objective(other, held, gradient, eta, log_alpha)


def test_penalties_end_where_the_domain_ends():
    weight = torch.full(SHAPE, 5.0, dtype=torch.float64)
    eta = torch.ones(1, dtype=torch.float64)
    for retention in (KL(c=1.0), FDivergence(c=1.0), L2Ball(radius=1.0)):
        log_alpha = eta * 0 if retention.gates else None
        assert retention.penalty(weight, retention.start(drawn()), eta, log_alpha, None) == torch.inf


def test_the_printed_lq_link_states_no_penalty():
    held = Lq(link="paper").start(drawn())
    with pytest.raises(ValueError, match="states no penalty"):
        Lq(link="paper").penalty(held.weight, held, torch.ones(1), None, None)


def test_f_divergence_multiplier_is_differentiable_twice():
    for g in ("kl", "reverse_kl", "chi2", "hellinger"):
        retention = FDivergence(g=g, slice="row")
        weight = retention.start(torch.randn(1, 1, 2, 3, dtype=torch.float64)).weight.detach().requires_grad_()
        update = (0.3 * torch.randn(1, 1, 2, 3, dtype=torch.float64)).requires_grad_()

        def step(w, u, retention=retention):
            return retention.step(Held(w, w), None, u, None, None).weight

        assert torch.autograd.gradcheck(step, (weight, update))
        assert torch.autograd.gradgradcheck(step, (weight, update))
