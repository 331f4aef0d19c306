"""Keys alike share their steps: the rule written out, what it promises, and any way of cutting a sequence."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F

from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, retention
from miras.forms.common import as_tuple
from miras.hf import MirasConfig
from miras.nn import MirasLayer, Recipe, recipe_of
from miras.nn.shared_steps import Recent, Sum, shared

CHUNK = 8


def layer_of(name, chunk_size=CHUNK, shared=True):
    """A layer whose steps are so long that most of them are shared."""
    spec = presets.get(name)
    recipe = recipe_of(spec)
    gates = tuple(dataclasses.replace(gate, start=1.9, limit=2.0) if gate.name == "eta" else gate for gate in recipe.gates)
    recipe = dataclasses.replace(recipe, gates=gates, step_sum=2.0 if shared else None)
    return MirasLayer(16, 2, spec, recipe=recipe, chunk_size=chunk_size).double()


def unit_keys(*shape):
    return F.normalize(torch.randn(*shape, dtype=torch.float64) + 0.5, dim=-1)


@pytest.mark.parametrize("width", [0, 1, 7])
@pytest.mark.parametrize("time", [1, 5, 30])
@pytest.mark.parametrize("most", [0.5, 2.0])
def test_the_rule_written_out(most, time, width):
    k, eta, unit = unit_keys(2, time, 3, 4), torch.rand(2, time, 3, 5, dtype=torch.float64), 0.3
    got = shared(Recent(k, eta), Sum(most, unit, width), 0)
    for t in range(time):
        steps = torch.zeros(2, 3, 5, dtype=torch.float64)
        for i in range(max(0, t - width), t + 1):
            steps += eta[:, i] / unit * (k[:, i] * k[:, t]).sum(-1, keepdim=True) ** 2
        torch.testing.assert_close(got[:, t], eta[:, t] * (most / steps).clamp(max=1))


@pytest.mark.parametrize("step", [0.3, 1.0])
def test_keys_alike_take_two_steps_together(step):
    """After the first chunk; in it, what comes first has not seen the others, and they take a harmonic sum."""
    k = torch.full((1, 4 * CHUNK, 1, 4), 0.5, dtype=torch.float64)
    beta = shared(Recent(k, torch.full_like(k[..., :1], step)), Sum(2.0, 1.0, CHUNK - 1), 0).reshape(4, CHUNK).sum(1)
    torch.testing.assert_close(beta[1:], torch.full_like(beta[1:], 2.0))
    assert 2 < beta[0] <= 2 * sum(1 / n for n in range(1, CHUNK + 1))


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("mu", [0.01, 0.5, 0.9, 0.99])
def test_keys_alike_settle_with_a_momentum_and_do_not_with_twice_as_much(mu, size):
    """One key, one value and a linear memory, steps that add up to m in a chunk: 1.9 settles whatever the momentum, 4 never."""
    spec = Spec(memory=memory.Matrix(), bias=bias.L2(), retention=retention.Keep(), algorithm=algorithm.Momentum())
    key, ones = torch.eye(4, dtype=torch.float64)[0], torch.ones(1, 200 * size, 1, dtype=torch.float64)
    tokens = ones[..., None] * key
    for most, settles in ((1.9, True), (4.0, False)):
        gates = Gates(eta=ones * most / size * (1 - mu), mu=ones * mu)
        _, state = memorize(spec, tokens, tokens, tokens, gates, chunk_size=size, form="chunk")
        left = (state.weights[0, 0] @ key - key).norm()
        assert left < 0.1 if settles else left > 10


@pytest.mark.parametrize("keys", ["different", "alike"])
def test_steps_that_do_not_overshoot_stay_as_they_are(keys):
    k = torch.eye(CHUNK) if keys == "different" else torch.eye(CHUNK)[:1].expand(CHUNK, -1)
    eta = torch.rand(1, CHUNK, 1, 3, dtype=torch.float64) * (1 if keys == "different" else 2 / CHUNK)
    assert torch.equal(shared(Recent(k.double()[None, :, None], eta), Sum(2.0, 1.0, CHUNK - 1), 0), eta)


def test_chunks_of_one_token_have_nothing_to_share():
    x = torch.randn(2, 10, 16, dtype=torch.float64)
    own, plain = (layer_of("yaad", chunk_size=1, shared=shared) for shared in (True, False))
    plain.load_state_dict(own.state_dict())
    assert torch.equal(own(x)[0], plain(x)[0])


def test_sharing_changes_what_is_learned():
    x = torch.randn(2, 30, 16, dtype=torch.float64)
    own, plain = (layer_of("yaad", shared=shared) for shared in (True, False))
    plain.load_state_dict(own.state_dict())
    assert (own(x)[0] - plain(x)[0]).abs().max() > 1e-6
    before, after = plain.prepare(x), own.prepare(x)
    assert (after.gates.eta <= before.gates.eta).all() and (after.gates.eta < before.gates.eta).double().mean() > 0.5
    assert after.recent.keys.shape == (2, CHUNK - 1, 2, 8)


@pytest.mark.parametrize("name", ["yaad", "titans_lmm", "ttt_mlp", "memora", "delta_product"])
def test_any_cut_of_a_sequence_gives_the_same(name):
    layer, x = layer_of(name), torch.randn(2, 45, 16, dtype=torch.float64)
    whole, end = layer(x)
    state, pieces = None, []
    for piece in x.split([13, 1, 3, 28], 1):
        y, state = layer(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    for a, b in zip(state.recent, end.recent, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["yaad", "ttt_mlp", "delta_product"])
def test_packed_sequences_see_only_themselves(name):
    layer, x = layer_of(name), torch.randn(1, 60, 16, dtype=torch.float64)
    first, more = torch.tensor([0, 2, 2, 31, 40]), torch.tensor([0, 3, 7, 8, 20])
    y, state = layer(x[:, :40], cu_seqlens=first)
    z, _ = layer(x[:, 40:], state, cu_seqlens=more)
    for i in range(4):
        alone, begun = layer(x[:, first[i] : first[i + 1]])
        torch.testing.assert_close(y[:, first[i] : first[i + 1]], alone)
        rest, _ = layer(x[:, 40 + more[i] : 40 + more[i + 1]], begun)
        torch.testing.assert_close(z[:, more[i] : more[i + 1]], rest)


def test_a_state_without_its_pairs_is_refused():
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    layer = layer_of("yaad")
    for other in (layer_of("yaad", shared=False), layer_of("yaad", chunk_size=CHUNK + 1)):
        with pytest.raises(ValueError, match=f"state must hold the last {CHUNK - 1} pairs"):
            layer(x, other(x)[1])


def test_gradients():
    k, eta = unit_keys(1, 9, 2, 3).requires_grad_(), (4 * torch.rand(1, 9, 2, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda k, eta: shared(Recent(k, eta), Sum(2.0, 0.7, 4), 0), (k, eta))
    assert torch.autograd.gradcheck(lambda k, eta: shared(Recent(k, eta), Sum(2.0, 0.7, 4), 4), (k, eta))


def test_a_deep_memory_shares_by_itself_unless_published_otherwise():
    deep = presets.get("yaad")
    named = [recipe_of(presets.get(name)).step_sum for name in ("yaad", "moneta", "ttt_mlp", "deltanet")]
    assert named == [1.0, 1 / 3, None, None]
    of = lambda **parts: recipe_of(dataclasses.replace(deep, name="", **parts)).step_sum  # noqa: E731
    assert [of(), of(bias=bias.Lp(p=4.0)), of(bias=bias.DotProduct())] == [1.0, 0.25, None]
    # a matrix too, but where its chunks are exact, as those of the delta rule are
    assert [of(memory=memory.Matrix()), of(memory=memory.Matrix(), bias=bias.L2())] == [1.0, None]


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0, 4.0])
def test_a_steeper_bias_takes_shorter_steps(p):
    """A named model with another exponent and a combination without a name start, and share, by the same rule."""
    named = presets.moneta(p=p)
    for spec in (named, dataclasses.replace(named, name="")):
        recipe = recipe_of(spec)
        assert (recipe.gate("eta").start, recipe.step_sum) == (pytest.approx(0.09 / p), pytest.approx(1 / p))


@pytest.mark.parametrize("name", ["moneta", "yaad"])
def test_a_gate_makes_no_step_that_would_be_cut(name):
    """Up to the largest step every change of a gate changes the step of a lone token, by its own gradient."""
    layer = MirasLayer(16, 2, name, chunk_size=1).double()
    x = torch.randn(1, 1, 16, dtype=torch.float64)
    for value in (-3.0, 0.0, 3.0):
        torch.nn.init.constant_(layer.gates["eta"].bias, value)
        alone, (sent,) = layer.gates["eta"](x).value, layer.prepare(x).gates.eta[None]
        assert torch.equal(alone, sent) and alone.max() <= layer.sum.most * layer.memory.unit
        (slope,) = torch.autograd.grad(sent.sum(), layer.gates["eta"].bias)
        assert (slope > 0).all()


def test_a_longest_step_is_the_sum_unless_another_is_named():
    for options, longest in (({}, 1 / 3), ({"step_sum": 0.5}, 0.5), ({"step_sum": 0.0}, 1.0), ({"step_limit": 2.0}, 2.0)):
        assert MirasConfig.preset("moneta-tiny", **options).recipe.gate("eta").limit == pytest.approx(longest)
    with pytest.raises(ValueError, match=r"eta starts at 0\.1, which must lie below its limit 0\.05"):
        _ = MirasConfig.preset("yaad-tiny", step_sum=0.05).recipe


def test_a_recipe_without_steps_or_unit_keys_is_refused():
    yaad = recipe_of(presets.get("yaad"))
    with pytest.raises(ValueError, match="step_sum is that of a gate eta"):
        Recipe(step_sum=2.0)
    with pytest.raises(ValueError, match="unit length"):
        dataclasses.replace(yaad, treatment="plain", step_sum=2.0)
    with pytest.raises(ValueError, match="a number > 0"):
        dataclasses.replace(yaad, step_sum=0.0)


@pytest.mark.parametrize("what", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["yaad", "gated_deltanet"])
def test_what_is_no_number_stays_in_its_document(name, what):
    layer, x = MirasLayer(16, 2, name).double(), torch.randn(1, 20, 16, dtype=torch.float64)
    x[0, 9] = what
    bounds = [0, 5, 13, 20]
    y, state = layer(x, cu_seqlens=torch.tensor(bounds))
    for i, (left, right) in enumerate(itertools.pairwise(bounds)):
        alone, end = layer(x[:, left:right])
        torch.testing.assert_close(y[:, left:right], alone, equal_nan=True)
        assert bool(y[:, left:right].isfinite().all()) == (i != 1)
        weights, own = (as_tuple(s.memory.weights) for s in (state, end))
        assert all(torch.allclose(a[i], b[0], equal_nan=True) for a, b in zip(weights, own, strict=True))


@pytest.mark.parametrize("name", ["yaad", "titans_lmm", "gated_deltanet"])
def test_what_is_no_number_stays_in_its_row(name):
    """Rows with padding run packed."""
    layer, x = MirasLayer(16, 2, name).double(), torch.randn(3, 20, 16, dtype=torch.float64)
    x[0, 9] = torch.nan
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[2, :5] = False
    y, _ = layer(x, mask=mask)
    assert [bool(row.isfinite().all()) for row in y] == [False, True, True]
