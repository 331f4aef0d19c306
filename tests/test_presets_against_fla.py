"""The published presets against code nobody here wrote: the naive references of flash-linear-attention.

They work in float32 and store weights as [K,V]; most scale q by K^-1/2 themselves, so ours is given a scaled q.
"""

import warnings
from pathlib import Path

import pytest
import torch

from inputs import draw, relative
from miras import Gates, Spec, memorize, presets
from miras.algorithm import Momentum
from miras.bias import L2
from miras.memory import Matrix
from miras.retention import L2 as L2Retention

with warnings.catch_warnings():
    # importing fla on a machine without a GPU warns of that and of what torch has deprecated
    warnings.simplefilter("ignore")
    from fla.ops.attn.naive import naive_parallel_attn
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
    from fla.ops.mesa_net.naive import naive_mesa_net_exact
    from fla.ops.momentum_delta_rule.naive import recurrent_momentum_delta_rule_ref
    from fla.ops.retention.naive import naive_retention
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

B, T, H, K, V = 2, 33, 3, 8, 6
SCALE = K**-0.5


def swap(x):
    return x.transpose(1, 2)


def heads_first(reference):
    """A reference that wants [B,H,T,D] and [B,H,T]."""
    return lambda q, k, v, *gates: swap(reference(swap(q), swap(k), swap(v), *map(swap, gates))[0])


def linear_momentum():
    """Titans with a linear memory."""
    return Spec(memory=Matrix(), bias=L2(), retention=L2Retention(at="previous"), algorithm=Momentum())


def fla_retention(q, k, v, g):
    return swap(naive_retention(swap(q), swap(k), swap(v)))


def fla_rwkv7(q, k, v, g):
    """alpha is the key looked up, beta what is added along: -kappa and a * kappa."""
    alpha, beta = -g.kappa, g.eta * g.kappa
    return heads_first(dplr_recurrence)(q, k, v, alpha, beta, g.log_alpha)


def fla_momentum(q, k, v, g):
    # p is the key the error is measured with; beta and mu may not be exactly one and zero there, mu is given by its log
    ones = torch.ones_like(g.eta)
    return recurrent_momentum_delta_rule_ref(q, k, v, g.log_alpha, g.mu.log(), k, ones, g.eta)[0]


CASES = {
    "retnet": (presets.retnet(), V, fla_retention, SCALE),
    "linear_attention": (
        presets.linear_attention(),
        V,
        lambda q, k, v, g: naive_recurrent_linear_attn(q, k, v)[0] if q.shape[-1] == v.shape[-1] else None,
        SCALE,
    ),
    "lightning_attention": (
        presets.lightning_attention(),
        V,
        lambda q, k, v, g: naive_recurrent_simple_gla(q, k, v, g.log_alpha)[0],
        SCALE,
    ),
    "mamba2": (presets.mamba2(), V, lambda q, k, v, g: naive_recurrent_simple_gla(q, k, v, g.log_alpha)[0], SCALE),
    "gla": (presets.gla(), V, lambda q, k, v, g: naive_recurrent_gla(q, k, v, g.log_alpha)[0], SCALE),
    "hgrn2": (
        presets.hgrn2(),
        V,
        lambda q, k, v, g: naive_recurrent_gla(q, 1 - g.log_alpha.exp(), v, g.log_alpha)[0],
        SCALE,
    ),
    "deltanet": (presets.deltanet(), V, lambda q, k, v, g: heads_first(delta_rule_recurrence)(q, k, v, g.eta), SCALE),
    "gated_deltanet": (
        presets.gated_deltanet(),
        V,
        lambda q, k, v, g: naive_recurrent_gated_delta_rule(q, k, v, g.eta, g.log_alpha)[0],
        SCALE,
    ),
    "delta_product": (
        presets.delta_product(n=3),
        V,
        lambda q, k, v, g: naive_recurrent_gated_delta_product(q, k, v, g.log_alpha, g.eta, SCALE, num_householder=3)[0],
        SCALE,
    ),
    "rwkv7": (presets.rwkv7(), V, fla_rwkv7, SCALE),
    "mesa": (
        presets.mesa(),
        K,  # the reference's zeros are [d,d]
        lambda q, k, v, g: naive_mesa_net_exact(q, k, v, g.log_alpha, g.ridge, g.eta)[0],
        1.0,
    ),
    "transformer": (presets.transformer(), V, lambda q, k, v, g: naive_parallel_attn(q, k, v)[0], 1.0),
    "titans, linear memory": (linear_momentum(), V, fla_momentum, SCALE),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    spec, values, reference, scale = CASES[name]
    values = K if name == "linear_attention" else values  # the reference allocates its output by V of q
    channelwise = name in ("gla", "hgrn2", "rwkv7")
    q, k, v, gates, _ = draw(
        spec, B=B, T=T, H=H, K=K, V=values, channelwise=channelwise, eta=0.9, decay=0.2, dtype=torch.float32
    )
    if name == "lightning_attention":
        gates = Gates(log_alpha=gates.log_alpha[0, 0].clone())
    leaves = [x.requires_grad_() for x in (q, k, v) if x is not None]
    wide = gates._replace(log_alpha=gates.log_alpha.expand(B, T, H)) if name == "lightning_attention" else gates
    want = reference(q, k, v, wide)
    double = Gates(**{n: g.double() for n, g in gates._asdict().items() if g is not None})
    got, _ = memorize(spec, q.double() * scale, None if k is None else k.double(), v.double(), double, form="recurrent")
    assert relative(got, want.double()) < 1e-5
    probe = torch.randn_like(want)
    ours = torch.autograd.grad((got * probe.double()).sum(), leaves)
    theirs = torch.autograd.grad((want * probe).sum(), leaves)
    assert all(relative(a, b) < 1e-5 for a, b in zip(ours, theirs, strict=True))


def test_the_page_on_fla_converts_as_it_says():
    """The example of docs/migrating_from_fla.md, run as it stands, against the operation that it stands for."""
    page = (Path(__file__).parents[1] / "docs" / "migrating_from_fla.md").read_text()
    found = {}
    torch.manual_seed(0)
    exec(page.split("```python")[1].split("```")[0], found)
    q, k, v, beta, g, initial = (found[name] for name in ("q", "k", "v", "beta", "g", "S"))
    want, last = naive_recurrent_gated_delta_rule(q, k, v, beta, g, initial_state=initial, output_final_state=True)
    assert relative(found["y"], want) < 1e-5 and relative(found["last"], last) < 1e-5


def test_table_1_prints_rwkv7_with_one_key_and_one_rate():
    """diag(alpha)(I - beta k k') M + beta v k', M = W': the published form with kappa = k, a = alpha beta, write beta v."""
    q, k, v, gates, _ = draw(presets.rwkv7(), B=1, T=9, H=1, K=4, V=3)
    beta = gates.eta[..., :1]
    printed = Gates(eta=beta * gates.log_alpha.exp(), log_alpha=gates.log_alpha, kappa=k)
    _, state = memorize(presets.rwkv7(), q, k, beta * v, printed, form="recurrent")
    M = torch.zeros(4, 3, dtype=torch.float64)
    for t in range(9):
        key, value, b = k[0, t, 0], v[0, t, 0], beta[0, t, 0]
        M = torch.diag(gates.log_alpha[0, t, 0].exp()) @ (torch.eye(4) - b * torch.outer(key, key)).double() @ M
        M = M + b * torch.outer(key, value)
    assert relative(state.weights[0, 0].T, M) < 1e-10
