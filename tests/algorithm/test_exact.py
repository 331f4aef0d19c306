"""ImplicitGD and Newton are the minimisers they claim to be; the two viewpoints of the paper agree."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from inputs import draw, relative
from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, retention
from miras.types import Held


def minimiser(objective, size):
    def value(z):
        z = torch.tensor(z, requires_grad=True)
        total = objective(z)
        (slope,) = torch.autograd.grad(total, z)
        return total.item(), slope.numpy()

    return torch.tensor(minimize(value, np.zeros(size), jac=True, method="BFGS", options={"gtol": 1e-12}).x)


@pytest.mark.parametrize("kept", [retention.Keep(), retention.L2(), retention.L2(anchor=True)], ids=lambda r: r.label)
@pytest.mark.parametrize("store", [memory.Matrix(), memory.Vector()], ids=lambda m: m.label)
def test_implicit_step_is_a_minimiser(store, kept):
    spec = Spec(memory=store, bias=bias.L2(), retention=kept, algorithm=algorithm.ImplicitGD())
    q, k, v, gates, keywords = draw(spec, B=1, T=1, H=1, K=3, eta=2.0, decay=0.5)
    _, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    start = keywords["weights"][0]
    eta = gates.eta[0, 0, 0]
    alpha = 1.0 if gates.log_alpha is None else gates.log_alpha[0, 0, 0].exp()
    if isinstance(store, memory.Matrix):
        eta, alpha = eta[:, None], alpha if isinstance(alpha, float) else alpha[:, None]
    retained = alpha * start + (1 - alpha) * start * kept.anchored

    def objective(z):
        W = z.reshape(start.shape)
        error = (W @ k[0, 0, 0] if W.dim() == 2 else W * k[0, 0, 0]) - v[0, 0, 0]
        rates = eta.squeeze(-1) if W.dim() == 2 else eta
        return 0.5 * (rates * error**2).sum() + 0.5 * ((W - retained) ** 2).sum()

    assert relative(state.weights.flatten(), minimiser(objective, start.numel())) < 1e-6


def test_newton_minimises_the_decayed_loss_of_all_pairs():
    spec = presets.mesa()
    q, k, v, gates, keywords = draw(spec, B=1, T=6, H=1, K=3, V=2, channelwise=False, decay=0.5, eta=2.0)
    y, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    log_alpha, eta = gates.log_alpha[0, :, 0, ...].flatten(), gates.eta[0, :, 0, ...].flatten()
    ages = torch.stack([log_alpha[i + 1 :].sum().exp() for i in range(6)])

    def objective(z):
        W = z.reshape(2, 3)
        errors = k[0, :, 0] @ W.T - v[0, :, 0]
        ridge = ((W - keywords["weights"][0]) ** 2 * gates.ridge[0]).sum()
        return 0.5 * (ages * eta * (errors**2).sum(-1)).sum() + 0.5 * ridge

    want = minimiser(objective, 6).reshape(2, 3)
    assert relative(state.weights[0, 0], want) < 1e-6
    assert relative(y[0, -1, 0], want @ q[0, -1, 0]) < 1e-6


def test_online_gradient_descent_is_ftrl_with_linearised_losses():
    """W_t = argmin sum_i <W - W_(i-1), grad_i> + ||W||^2 / (2 eta), from W_0 = 0."""
    spec = presets.deltanet()
    q, k, v, _, _ = draw(spec, B=1, T=8, H=1, K=3, V=2)
    eta = 0.4
    W, sum_of_gradients = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    for t in range(8):
        sum_of_gradients += torch.outer(W @ k[0, t, 0] - v[0, t, 0], k[0, t, 0])
        W = -eta * sum_of_gradients  # the minimiser: the objective's gradient vanishes there
        total = sum_of_gradients.clone().flatten()
        leader = minimiser(lambda z, total=total: (z * total).sum() + (z**2).sum() / (2 * eta), 6)
        assert relative(leader, W.flatten()) < 1e-8
        gates = Gates(eta=torch.full((1,), eta, dtype=torch.float64))
        _, state = memorize(spec, q[:, : t + 1], k[:, : t + 1], v[:, : t + 1], gates, form="recurrent")
        assert relative(state.weights[0, 0], W) < 1e-8


@pytest.mark.parametrize("link", ["identity", "sigmoid", "exp", "tanh"])
def test_ftrl_is_learning_retaining_with_the_bregman_divergence(link):
    """The paper's Proposition: FTRL with regulariser R is the step with Ret = D_h, h the past losses plus R/eta.

    With linear losses h is R/eta up to a linear term, so D_h = D_R / eta: the Bregman retention, step by step.
    """
    part = retention.Bregman(link=link)
    eta = torch.tensor(0.3, dtype=torch.float64)
    held = part.start(torch.zeros(1, 1, 2, 3, dtype=torch.float64))
    total = torch.zeros(1, 1, 2, 3, dtype=torch.float64)
    for _ in range(6):
        gradient = torch.randn(1, 1, 2, 3, dtype=torch.float64)
        held = part.step(held, None, eta * gradient, None, None)
        total += gradient
        # FTRL: argmin <W, sum of gradients> + R(W)/eta, with grad R(W_0) = 0; its gradient vanishes at link(-eta sum)
        leader = part.to_weight(-eta * total)
        assert relative(held.weight, leader) < 1e-8
        W = leader.clone().requires_grad_()
        start = part.start(torch.zeros_like(leader))
        ftrl = (W * total).sum() + part.penalty(W, start, eta, None, None)
        (slope,) = torch.autograd.grad(ftrl, W)
        assert slope.abs().max() < 1e-8


def test_the_proposition_with_losses_that_are_not_linear():
    """h_t = sum of past l2 losses + R/eta: the learning-retaining step with D_h finds the same W as FTRL, to 1e-8."""
    k, v = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)

    def h(W, t):
        return 0.5 * ((k[:t] @ W.T - v[:t]) ** 2).sum() + 0.25 * ((W**2).sum() + (W**4).sum())

    def newton(objective):
        """Second-order minimisation to machine precision, of either viewpoint's objective."""
        z = torch.zeros(6, dtype=torch.float64)
        for _ in range(60):
            flat = lambda x: objective(x.reshape(2, 3))  # noqa: E731
            z = z - torch.linalg.solve(torch.autograd.functional.hessian(flat, z), torch.func.grad(flat)(z))
        return z.reshape(2, 3)

    previous = newton(lambda W: h(W, 0))
    for t in range(1, 6):
        leader = newton(lambda W, t=t: h(W, t))
        slope = torch.func.grad(lambda W, t=t: h(W, t - 1))(previous)

        def retaining(W, t=t, slope=slope, previous=previous):
            loss = 0.5 * ((k[t - 1] @ W.T - v[t - 1]) ** 2).sum()
            return loss + h(W, t - 1) - h(previous, t - 1) - (slope * (W - previous)).sum()

        assert relative(newton(retaining), leader) < 1e-8
        previous = leader


def test_momentum_and_multi_step_by_hand():
    gradients = torch.randn(3, 1, 1, 2, 2, dtype=torch.float64)
    momentum, weight = torch.zeros(1, 1, 2, 2, dtype=torch.float64), torch.ones(1, 1, 2, 2, dtype=torch.float64)
    part, kept = algorithm.Momentum(), retention.L2(at="previous")
    held, S, W = Held(weight, weight), momentum, weight
    mu, log_alpha = torch.tensor(0.7), torch.tensor(-0.1)
    for gradient in gradients:
        momentum, update = part.move(momentum, 0.2 * gradient, mu)
        held = kept.step(held, log_alpha, update, None, None)
        S = 0.7 * S - 0.2 * gradient
        W = torch.tensor(-0.1).exp() * W + S
    assert relative(held.weight, W) < 1e-7 and relative(momentum, S) < 1e-7
