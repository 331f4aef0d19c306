"""docs/misprints.md, point by point: what the paper prints fails here, what the package does holds."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize

from inputs import draw, relative
from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, retention
from miras.retention import Divergence
from miras.retention.elastic_net import smooth_threshold, soft_threshold
from miras.types import Held


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def number(x):
    return torch.tensor(x, dtype=torch.float64)


def minimiser(objective, start):
    """argmin of a smooth convex objective of a tensor."""

    def value(z):
        z = torch.tensor(z, requires_grad=True)
        total = objective(z.reshape(start.shape))
        return total.item(), torch.autograd.grad(total, z)[0].numpy()

    best = minimize(value, start.flatten().numpy(), jac=True, method="BFGS", options={"gtol": 1e-11, "maxiter": 5000})
    return torch.tensor(best.x).reshape(start.shape)


def one_step(spec, W, k, v, **gates):
    """The weights ``[V,K]`` after one token of one head."""
    key, value = (x.reshape(1, 1, 1, -1) for x in (k, v))
    gates = Gates(**{name: number([gate]) for name, gate in gates.items()})
    return memorize(spec, key, key, value, gates, weights=W[None], form="recurrent")[1].weights[0, 0]


def matrix_spec(loss, kept, algorithm=algorithm.GradientDescent()):  # noqa: B008
    return Spec(memory=memory.Matrix(), bias=loss, retention=kept, algorithm=algorithm)


# 1 Titans subtracts S


def test_momentum_is_added():
    spec = matrix_spec(bias.L2(), retention.L2(at="previous"), algorithm.Momentum())
    W, k, v = drawn(3, 4), torch.nn.functional.normalize(drawn(4), dim=0), drawn(3)
    loss = lambda W: 0.5 * ((W @ k - v) ** 2).sum()  # noqa: E731
    S = -0.1 * torch.outer(W @ k - v, k)
    assert relative(one_step(spec, W, k, v, eta=0.1, log_alpha=0.0, mu=0.5), W + S) < 1e-12
    assert loss(W + S) < loss(W) < loss(W - S)


# 2 the l_q link lacks its power


def test_the_lq_minimiser_has_an_elementwise_power():
    q, p, eta, A = 4 / 3, 4.0, 0.3, drawn(2, 3)
    norm = (A.abs() ** p).sum() ** (1 / p)
    objective = lambda W: -(W * A).sum() + (W.abs() ** q).sum() ** (2 / q) / (2 * eta * (q - 1))  # noqa: E731
    exact = eta * (q - 1) * A.sign() * A.abs() ** (p - 1) / norm ** (p - 2)
    printed = eta * A / norm ** (p - 2)
    assert relative(minimiser(objective, drawn(2, 3)), exact) < 1e-6
    assert objective(exact) < objective(printed) - 1e-3
    ours = retention.Lq(q=p, link="exact").to_weight((eta * (q - 1) * A)[None, None])
    assert relative(ours[0, 0], exact) < 1e-12


def test_the_printed_lq_link_scales_backwards_and_is_no_gradient():
    A = drawn(1, 1, 2, 3)
    printed, exact = retention.Lq(q=4, link="paper"), retention.Lq(q=4, link="exact")
    assert relative(printed.to_weight(2 * A), printed.to_weight(A) / 2) < 1e-12
    assert relative(exact.to_weight(2 * A), 2 * exact.to_weight(A)) < 1e-12
    for link, symmetric in ((printed, False), (exact, True)):
        jacobian = torch.func.jacrev(lambda a, link=link: link.to_weight(a.reshape(1, 1, 2, 3)).flatten())(A.flatten())
        assert (relative(jacobian, jacobian.T) < 1e-12) == symmetric


# 3 Moneta's gradient and its update both multiply by eta


def test_moneta_multiplies_by_the_step_once():
    part, eta = bias.Lp(p=3, smooth=False), 0.2
    W, k, v = drawn(3, 4).requires_grad_(), drawn(4), drawn(3)
    (gradient,) = torch.autograd.grad(part.loss(W @ k, v, None), W)
    W, e = W.detach(), (W @ k - v).detach()
    printed = W - eta * (3 * eta * torch.outer(e.sign() * e.abs() ** 2, k))
    ours = one_step(matrix_spec(part, retention.Keep()), W, k, v, eta=eta)
    assert relative(ours, W - eta * gradient) < 1e-12 < 1e-3 < relative(printed, W - eta * gradient)


# 4 the Bregman divergence, f, the KL penalty


def test_the_bregman_divergence_needs_the_gradient_of_f():
    part, eta = retention.Bregman(link="sigmoid"), number(0.4)
    held, g = part.start(drawn(1, 1, 2, 3)), drawn(1, 1, 2, 3)
    f = lambda w: torch.xlogy(w, w) + torch.xlogy(1 - w, 1 - w)  # noqa: E731
    printed = lambda w: (f(w) - f(held.weight) - held.weight * (w - held.weight)).sum()  # noqa: E731
    # printed, it is no divergence: it falls below 0, and its step maps W_prev by the link instead of the inverse link's value
    lowest = torch.sigmoid(minimiser(lambda z: printed(torch.sigmoid(z)), held.accumulated))
    assert printed(lowest) < -1e-3 and part.penalty(lowest, held, eta, None, None) > 0
    found = torch.sigmoid(minimiser(lambda z: (torch.sigmoid(z) * g).sum() + printed(torch.sigmoid(z)) / eta, held.accumulated))
    ours = part.step(held, None, eta * g, None, None).weight
    assert relative(found, torch.sigmoid(held.weight - eta * g)) < 1e-6 and relative(found, ours) > 1e-2
    found = torch.sigmoid(minimiser(lambda z: part.objective(torch.sigmoid(z), held, g, eta), held.accumulated))
    assert relative(found, ours) < 1e-6


INVERSES = {"kl": lambda y: 1 + math.log(y), "reverse_kl": lambda y: -1 / y, "chi2": lambda y: 2 * (y - 1)}
INVERSES |= {"hellinger": lambda y: 1 - y**-0.5}


@pytest.mark.parametrize("name", INVERSES)
def test_f_is_an_integral_from_one_to_its_argument(name):
    """Printed, the integral runs from 0 to infinity and does not depend on the argument at all."""
    part = Divergence.known[name]
    for ratio in (0.3, 1.0, 2.5):
        assert part.f(number(ratio)).item() == pytest.approx(quad(INVERSES[name], 1, ratio)[0], abs=1e-8)
        assert part.g(number(INVERSES[name](ratio))).item() == pytest.approx(ratio)


def test_the_kl_penalty_refers_to_the_past():
    """Printed, the reference is the unknown itself: the divergence is 0 and nothing of W_prev is left in the step."""
    part, eta, alpha = retention.KL(slice="matrix", c=2.0), number(0.5), number(0.8)
    one, other, g = part.start(drawn(1, 1, 2, 3)), part.start(drawn(1, 1, 2, 3)), drawn(1, 1, 2, 3)
    memoryless = 2.0 * torch.softmax(-(eta * g).flatten(), 0).reshape(g.shape)
    for held in (one, other):
        ours = part.step(held, alpha.log(), eta * g, None, None).weight
        ahead = part.objective(ours, held, g, eta, alpha.log())
        assert ahead < part.objective(memoryless, held, g, eta, alpha.log()) - 1e-3


# 5 the chunk's starting state


def test_the_chunk_starts_at_the_last_token_of_the_one_before():
    tokens, b = range(1, 13), 4
    before = [b * ((t - 1) // b) for t in tokens]
    printed = [t - t % b for t in tokens]
    assert before == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8]
    assert all(start < t for t, start in zip(tokens, before, strict=True))
    assert [t for t, start in zip(tokens, printed, strict=True) if start == t] == [4, 8, 12]
    # a chunk of one token is the recurrence, whose gradient is taken at t - 1
    assert [(t - 1) // 1 for t in tokens] == [t - 1 for t in tokens] != [t - t % 1 for t in tokens]


# 6 the factor of two of the elastic net


def test_the_elastic_net_regulariser_takes_half_the_square():
    part, eta, G = retention.ElasticNetFTRL(a=2.0), number(0.5), 2 * drawn(1, 1, 2, 3)
    ours = part.step(part.start(torch.zeros_like(G)), None, eta * G, eta / part.a, None).weight
    for square, same in ((1 / (2 * 0.5), True), (1 / 0.5, False)):
        pairs = minimiser_of_absolute_values(lambda W, s=square: (W * G).sum() + s * (W**2).sum(), 1 / part.a, G)
        assert ((pairs - ours).abs().max() < 1e-6) == same
        assert same or (pairs - soft_threshold(-eta / 2 * G, eta / 2 / part.a)).abs().max() < 1e-6


def minimiser_of_absolute_values(smooth, weight, like):
    """argmin smooth(W) + weight ||W||_1, W = P - N with P, N >= 0."""
    n = like.numel()

    def value(z):
        z = torch.tensor(z, requires_grad=True)
        total = smooth((z[:n] - z[n:]).reshape(like.shape)) + weight * z.sum()
        return total.item(), torch.autograd.grad(total, z)[0].numpy()

    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 10000}
    best = minimize(value, [0.1] * (2 * n), jac=True, method="L-BFGS-B", bounds=[(0, None)] * (2 * n), options=options)
    return torch.tensor(best.x[:n] - best.x[n:]).reshape(like.shape)


# 7 the arctangent threshold


def test_the_arctangent_threshold_shrinks_by_less_and_never_to_zero():
    gamma = number(0.5)
    far, near = number([1e4, -1e4]), number([0.4, -0.4])
    assert relative(far.abs() - soft_threshold(far, gamma).abs(), gamma.expand(2)) < 1e-9
    assert relative(far.abs() - smooth_threshold(far, gamma).abs(), (2 * gamma / math.pi).expand(2)) < 1e-6
    assert (soft_threshold(near, gamma) == 0).all() and (smooth_threshold(near, gamma).abs() > 0.1).all()
    assert smooth_threshold(gamma, gamma) == pytest.approx(gamma.item() / 2)


# 8 the delta rule and DeltaProduct


def test_the_delta_rule_writes_with_its_step():
    W, k, v, eta, alpha = drawn(3, 4), drawn(4), drawn(3), 0.3, 0.9
    decayed = (alpha * W).requires_grad_()
    (gradient,) = torch.autograd.grad(0.5 * ((decayed @ k - v) ** 2).sum(), decayed)
    descent = decayed.detach() - eta * gradient
    keys = torch.eye(4, dtype=torch.float64) - eta * torch.outer(k, k)
    assert relative(one_step(presets.gated_deltanet(), W, k, v, eta=eta, log_alpha=math.log(alpha)), descent) < 1e-12
    assert relative(alpha * W @ keys + eta * torch.outer(v, k), descent) < 1e-12
    assert relative(alpha * W @ keys + torch.outer(v, k), descent) > 1e-2  # printed in the text: no step on the write
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        keys @ W  # printed in the table: the keys' projection acts on the values


def test_delta_product_adds_what_later_steps_leave_of_each_write():
    n, eye = 3, torch.eye(4, dtype=torch.float64)
    q, k, v, gates, keywords = draw(presets.delta_product(n), B=1, T=1, H=1, V=3, channelwise=False)
    _, state = memorize(presets.delta_product(n), q, k, v, gates, form="recurrent", **keywords)
    keep = [eye - gates.eta[0, i, 0] * torch.outer(k[0, i, 0], k[0, i, 0]) for i in range(n)]
    W = gates.log_alpha[0, 0, 0].exp() * keywords["weights"][0] @ keep[0] @ keep[1] @ keep[2]
    for j in range(n):
        write = gates.eta[0, j, 0] * torch.outer(v[0, j, 0], k[0, j, 0])
        for later in keep[j + 1 :]:
            write = write @ later
        W = W + write
    assert relative(state.weights[0, 0], W) < 1e-12
    # printed, the second term for n = 1 and eta = 0 is the identity: it writes without anything to write
    nothing = one_step(presets.delta_product(1), torch.zeros(4, 4).double(), drawn(4), drawn(4), eta=0.0, log_alpha=0.0)
    assert (nothing == 0).all()


# 9 Memora


def test_memora_is_a_kl_step_on_a_simplex_of_mass_c():
    spec = presets.memora(c=2.0)
    assert isinstance(spec.retention, retention.KL)
    q, k, v, gates, keywords = draw(spec, T=4)
    _, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    for weight in state.weights:
        # an elastic net would have set some to 0, the printed softmax would sum to 1
        assert (weight > 0).all() and (weight.sum(-2) - 2.0).abs().max() < 1e-9


def test_memoras_lag_token_is_learned_once_and_every_chunk_has_one():
    b, T = 4, 12
    printed, ours = {k * b + 1 for k in range(1, T // b)}, {k * b + 1 for k in range(T // b)}
    chunks = [set(range(k * b + 1, (k + 1) * b + 1)) for k in range(T // b)]
    assert [len(chunk & ours) for chunk in chunks] == [1, 1, 1] and [len(chunk & printed) for chunk in chunks] == [0, 1, 1]
    # a chunk of one token is its lag token: the printed sum from i = 1 learns it again, at the state that has learned it
    part, k, v, eta = retention.KL(slice="matrix"), drawn(3), drawn(2), 0.3
    held = part.start(drawn(1, 1, 2, 3))
    slope = lambda W: torch.outer(W @ k - v, k)  # noqa: E731
    lag = part.step(held, None, (eta * slope(held.weight[0, 0]))[None, None], None, None).weight[0, 0]
    again = lag - eta * slope(lag)
    exact = one_step(matrix_spec(bias.L2(), part), held.accumulated[0, 0], k, v, eta=eta, log_alpha=0.0)
    assert relative(lag, exact) < 1e-12 < 1e-2 < relative(again, exact)


# 10 names


def test_models_are_what_they_are_called():
    assert isinstance(presets.hgrn2().bias, bias.DotProduct)  # Table 1: L1
    assert isinstance(presets.retnet().memory, memory.Matrix)  # Table 1: Vector
    assert presets.retnet().gates == ()  # the text: a learned decay; it is 1 - 2^(-5-h)
    assert presets.ttt_linear().memory == memory.MLP(depth=1)  # Table 1: Matrix, without its residual and LayerNorm
    assert "mamba2" in presets.PRESETS and "mamba" not in presets.PRESETS  # Table 1: Mamba, with Mamba2's scalar decay


def test_hgrn2_is_hebbian():
    """Its printed write v (1 - alpha)' is the dot product's step; an l1 bias would write the sign of an error."""
    q, _, v, gates, keywords = draw(presets.hgrn2(), B=1, T=1, H=1, V=3)
    _, state = memorize(presets.hgrn2(), q, None, v, gates, form="recurrent", **keywords)
    W, alpha = keywords["weights"][0], gates.log_alpha[0, 0, 0].exp()
    printed = W * alpha + torch.outer(v[0, 0, 0], 1 - alpha)
    sign = torch.sign(W * alpha @ (1 - alpha) - v[0, 0, 0])
    assert relative(state.weights[0, 0], printed) < 1e-12 < relative(W * alpha - torch.outer(sign, 1 - alpha), printed)


# 11 the "smooth mixture"


def test_the_mixture_jumps_at_its_threshold():
    e = torch.nn.functional.normalize(torch.ones(1, 9, dtype=torch.float64) + 0.1 * drawn(1, 9), dim=-1)
    zero = torch.zeros_like(e)
    for form, jumps in (("coordinate", False), ("norm", False), ("mixture", True)):
        delta = e.abs().max() if form == "coordinate" else number(1.0)
        part = bias.Huber(form=form, delta=delta.item())
        inside, outside = (part.gradient(e * s, zero, None) for s in (1 - 1e-9, 1 + 1e-9))
        assert (relative(outside, inside) > 1e-6) == jumps
        if jumps:
            assert (outside.norm() / inside.norm()).item() == pytest.approx(3.0)  # sqrt(9 channels)
            assert part.loss(e * (1 + 1e-9), zero, None) > 2 * part.loss(e * (1 - 1e-9), zero, None)


def test_yaad_takes_a_threshold_a_channel_and_the_mixture_one_a_head():
    spec = presets.yaad()
    q, k, v, gates, keywords = draw(spec, B=1, T=3)
    assert gates.delta.shape == (1, 3, 2, 4)
    memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    with pytest.raises(ValueError, match=r"gates.delta must be \[2\] or \[1, 3, 2\]"):
        memorize(presets.yaad(form="mixture"), q, k, v, gates, form="recurrent", **keywords)


# 12 the two printed forms of the l_q step


@pytest.mark.parametrize("link", ["paper", "exact"])
def test_a_step_size_moves_through_the_exact_link_alone(link):
    """-eta link(sum of gradients) and link(A), A = A - eta gradient: the same for a link of degree one, eta^(2-p) apart."""
    part, p, eta, G = retention.Lq(q=4, link=link), 4, 0.3, drawn(1, 1, 2, 3)
    summed, recursive = -eta * part.to_weight(G), part.to_weight(-eta * G)
    assert relative(recursive, summed * (eta ** (2 - p) if link == "paper" else 1.0)) < 1e-12


# 13 Moneta's retention gate does not follow from its regularisers


def test_a_decaying_sum_is_ftrl_with_discounted_losses_not_with_another_regulariser():
    part, alpha, eta, beta = retention.Lq(q=3, link="exact"), number(0.6), 0.5, 2.0
    g, h = drawn(1, 1, 2, 3), drawn(1, 1, 2, 3)
    size = lambda W: 0.5 * (W.abs() ** 1.5).sum() ** (4 / 3)  # noqa: E731

    def steps(*gradients):
        held = Held(torch.zeros_like(g), torch.zeros_like(g))
        for gradient in gradients:
            held = part.step(held, alpha.log(), eta * gradient, None, None)
        return held.weight

    discounted = minimiser(lambda W: eta * (W * (alpha * g + h)).sum() + size(W), drawn(1, 1, 2, 3))
    assert relative(steps(g, h), discounted) < 1e-5
    # the sum of the two regularisers does not know which gradient came first, the printed recurrence does
    hybrid = [minimiser(lambda W, s=s: eta * (W * s).sum() + size(W) + (W**2).sum() / beta, g) for s in (g + h, h + g)]
    assert relative(*hybrid) < 1e-6 and relative(steps(g, h), steps(h, g)) > 1e-2


# 14 online gradient descent is FTRL for a constant step only


@pytest.mark.parametrize("steps, same", [((0.3, 0.3), True), ((0.3, 0.6), False)])
def test_gradient_descent_follows_the_leader_with_a_constant_step(steps, same):
    k, v, W, total = drawn(2, 4), drawn(2, 3), torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    for t, eta in enumerate(steps):
        total = total + torch.outer(W @ k[t] - v[t], k[t])
        W = one_step(presets.deltanet(), W, k[t], v[t], eta=eta)
    leader = minimiser(lambda z: (z * total).sum() + (z**2).sum() / (2 * steps[-1]), torch.zeros_like(W))
    assert (relative(W, leader) < 1e-6) == same


# 15 and 16 what multiplies the quadratic retentions


def test_a_retention_without_its_step_takes_the_step_one_half():
    spec, part = matrix_spec(bias.ValueShift(delta=0.4), retention.Keep()), bias.ValueShift(delta=0.4)
    W, k, v, eta = drawn(3, 4), drawn(4), drawn(3), 0.2
    g = torch.outer(part.gradient(W @ k, v, None), k)
    for square, step in ((1.0, 0.5), (1 / (2 * eta), eta)):
        found = minimiser(lambda z, s=square: ((z - W) * g).sum() + s * ((z - W) ** 2).sum(), W)
        assert relative(found, one_step(spec, W, k, v, eta=step)) < 1e-6


def test_yaads_penalty_ties_decay_and_step():
    """||W - W'||^2/(2 theta) + ||W||^2/beta: alpha = beta/(beta + 2 theta), eta = theta alpha."""
    W, g, theta, beta = drawn(1, 1, 2, 3), drawn(1, 1, 2, 3), number(0.3), number(1.7)
    alpha = beta / (beta + 2 * theta)
    found = minimiser(lambda z: (z * g).sum() + ((z - W) ** 2).sum() / (2 * theta) + (z**2).sum() / beta, W)
    part = retention.L2(at="previous")
    ours = part.step(Held(W, W), alpha.log(), theta * alpha * g, None, None).weight
    assert relative(found, ours) < 1e-6
    Z = drawn(1, 1, 2, 3)
    stated = part.penalty(Z, Held(W, W), theta * alpha, alpha.log(), None)
    assert stated.item() == pytest.approx((((Z - W) ** 2).sum() / (2 * theta) + (Z**2).sum() / beta).item())


# 17 and 18 the chunk's sums


def chunked(gradient, W, alpha, eta, b):
    """A_t = alpha A - eta gradient at the last state of the chunk before, token by token: the definition."""
    start = W
    for t in range(len(alpha)):
        if t % b == 0:
            start = W
        W = alpha[t] * W - eta[t] * gradient(start, t)
    return W, start


def test_the_expansion_starts_at_the_chunk_not_at_the_first_token():
    k, v, W, b, T = drawn(6, 4), drawn(6, 3), drawn(3, 4), 3, 6
    alpha, eta = 0.5 + 0.5 * torch.rand(T, dtype=torch.float64), 0.2 * torch.rand(T, dtype=torch.float64)
    gradient = lambda W, t: torch.outer(W @ k[t] - v[t], k[t])  # noqa: E731
    end, start = chunked(gradient, W, alpha, eta, b)

    def expand(first, W):
        steps = [eta[i] * alpha[i + 1 :].prod() * gradient(start, i) for i in range(first, T)]
        return alpha[first:].prod() * W - sum(steps)

    assert relative(expand(b, start), end) < 1e-12  # from t' on
    assert relative(expand(0, W), end) > 1e-3  # printed: from 1 on, though only the first chunk's gradients are taken at W_0


def test_the_sum_of_a_chunk_takes_every_tokens_sign():
    k, v, W, b, p = drawn(5, 4), drawn(5, 3), drawn(3, 4), 5, 3
    alpha, eta = 0.5 + 0.5 * torch.rand(b, dtype=torch.float64), torch.rand(b, dtype=torch.float64)
    part = bias.Lp(p=p, smooth=False)
    gradient = lambda W, t: torch.outer(part.gradient(W @ k[t], v[t], None), k[t])  # noqa: E731
    want = alpha.prod() * W - chunked(gradient, W, alpha, eta, b)[0]
    E, B = eta, torch.stack([alpha[i + 1 :].prod() for i in range(b)])
    error = W @ k.T - v.T
    ours = p * (E * B * error.sign() * error.abs() ** (p - 1)) @ k
    printed = p * (E * B * error[:, -1:].sign() * error.abs() ** (p - 1)) @ k
    assert relative(ours, want) < 1e-12 < 1e-2 < relative(printed, want)


# 19 GLA and HGRN2 decay their keys


@pytest.mark.parametrize("name", ["gla", "hgrn2"])
def test_the_decay_acts_on_the_key_side(name):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, B=1, T=1, H=1, K=4, V=3)
    alpha = gates.log_alpha[0, 0, 0].exp()
    key = 1 - alpha if k is None else k[0, 0, 0]
    _, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    W = keywords["weights"][0]
    assert relative(state.weights[0, 0], W @ torch.diag(alpha) + torch.outer(v[0, 0, 0], key)) < 1e-12
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.diag(alpha) @ W  # printed


# 20 the value-less memory


def test_the_value_less_memory_steps_by_signs_but_holds_any_value():
    spec = matrix_spec(bias.L1(smooth=False), retention.Keep())
    q, k, v, gates, _ = draw(spec, B=1, T=30, H=1, channelwise=False)
    y, state = memorize(spec, q, k, v, gates, form="recurrent", weights=torch.zeros(1, 4, 4, dtype=torch.float64))
    assert set(spec.bias.gradient(drawn(50), drawn(50), None).tolist()) == {-1.0, 1.0}
    assert len(set(state.weights.flatten().tolist())) == 16 and (y.abs() - 1).abs().min() > 1e-6


# 21 which g make an f-divergence step


def test_a_g_below_zero_leaves_the_simplex():
    """f' of chi squared starts at -2, so its inverse 1 + x/2 must be continued by 0 below."""
    part = retention.FDivergence(g="chi2", slice="matrix", c=1.0)
    held, update = part.start(torch.zeros(1, 1, 1, 3, dtype=torch.float64)), number([[[[4.0, 0.0, 0.0]]]])
    ours = part.step(held, None, update, None, None).weight
    zeta = -update.mean()  # unclamped, sum W_prev (1 + (-zeta - update)/2) = 1 at this multiplier
    printed = held.weight * (1 + (-zeta - update) / 2)
    assert printed.sum().item() == pytest.approx(1.0) and (printed < 0).any()
    assert ours.sum().item() == pytest.approx(1.0) and (ours >= 0).all() and (ours == 0).any()


def test_a_decreasing_g_climbs():
    """g(x) = 1 - x/4 is strictly monotone and the step of the concave f = -2 (r - 1)^2: it moves towards the larger loss."""
    held, g = number([1 / 3, 1 / 3, 1 / 3]), number([0.3, -0.1, -0.2])
    decreasing = held * (1 - (0 - g) / 4)
    ours = retention.FDivergence(g="chi2", slice="matrix", c=1.0).step(
        Held(*[held[None, None, None]] * 2), None, g[None, None, None], None, None
    )
    assert decreasing.sum().item() == pytest.approx(1.0)
    assert (decreasing * g).sum() > (held * g).sum() > (ours.weight * g).sum()
