"""Spec: frozen, comparable, serialisable, describing itself; parts of a user's own need no change here."""

import dataclasses
import json
import math
from dataclasses import dataclass

import pytest
import torch

from catalogue import meaningful
from inputs import draw, relative
from miras import Spec, algorithm, bias, memorize, memory, presets, retention
from miras.types import Gate, Held, Rule


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_survive_json_and_describe_themselves(name):
    spec = presets.get(name)
    again = Spec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec and again.name == name and hash(again) == hash(spec)
    description = again.describe()
    assert name in description.text and "W_t" in description.text + "W_t"
    assert description.latex.count(r"\begin") == description.latex.count(r"\end")
    assert description.text in str(description) and description.latex in str(description)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"


def test_every_meaningful_spec_survives_json():
    for spec in meaningful():
        assert Spec.from_json(spec.to_json()) == spec


def test_an_infinite_threshold_survives_json_that_has_no_infinity():
    spec = Spec(
        memory=memory.Matrix(),
        bias=bias.Huber(delta=math.inf),
        retention=retention.Keep(),
        algorithm=algorithm.GradientDescent(),
    )
    text = spec.to_json()
    assert json.loads(text, parse_constant=pytest.fail)["bias"]["delta"] == "inf"
    assert Spec.from_json(text) == spec and "inf" in spec.bias.label
    # as it was written before
    assert Spec.from_json(text.replace('"inf"', "Infinity")) == spec
    with pytest.raises(ValueError, match="GradientDescent's eta must be a number or None, got 'inf'"):
        Spec.from_json(text.replace('"eta": null', '"eta": "inf"'))


def test_what_is_no_json_is_not_written():
    """A field whose kind nobody looks at, in a part of a user's own."""
    spec = dataclasses.replace(presets.deltanet(), bias=Weighted(by=(1.0, math.nan)))
    with pytest.raises(ValueError, match="not JSON compliant"):
        spec.to_json()


def test_specs_with_other_choices_differ_and_names_do_not_count():
    assert presets.moneta(p=3) != presets.moneta(p=2)
    assert dataclasses.replace(presets.yaad(), name="mine") == presets.yaad()
    assert presets.ttt_mlp().chunk_size == presets.ttt_linear().chunk_size == 16 and presets.yaad().chunk_size == 64


def test_the_write_rules_are_assembled_from_the_parts():
    write = {name: presets.get(name).describe().write.text for name in presets.PRESETS}
    assert write["linear_attention"] == "W_t = W_(t-1) + v_t k_t'"
    assert write["gla"] == "W_t = W_(t-1) diag(alpha_t) + v_t k_t'"
    assert write["gated_deltanet"] == "W_t = alpha_t W_(t-1) - eta_t e_t k_t'"
    assert write["titans_lmm"].endswith("W_t = alpha_t W_(t-1) + S_t")
    anchored = presets.yaad(anchor=True).describe().write.text
    assert "(1 - alpha_t) W_0" in anchored and "(1 - alpha_t) W_0" not in write["yaad"]


@dataclass(frozen=True, kw_only=True)
class Weighted(bias.Bias):
    by: tuple[float, ...] = ()

    def loss(self, prediction, value, delta): ...

    def gradient(self, prediction, value, delta): ...

    def rule(self):
        return Rule("e", "e")


@dataclass(frozen=True, kw_only=True)
class LogCosh(bias.Bias):
    """sum_j log cosh(e_j): a bias of a user's own, in a few lines."""

    def loss(self, prediction, value, delta):
        return torch.cosh(prediction - value).log().sum(-1)

    def gradient(self, prediction, value, delta):
        return torch.tanh(prediction - value)

    def rule(self):
        return Rule("tanh(e_t)", r"\tanh(e_t)")


@dataclass(frozen=True, kw_only=True)
class Clip(retention.Retention):
    """Weights kept within [-limit, limit]: a retention of a user's own, in a few lines."""

    limit: float = 0.5

    def step(self, held, log_decay, update, threshold, anchor):
        weight = (held.weight - update).clamp(-self.limit, self.limit)
        return Held(weight, weight)

    def rule(self, update):
        return Rule(f"W_t = clip(W_(t-1) - {update.text})", rf"W_t = \mathrm{{clip}}(W_{{t-1}} - {update.latex})")


def test_parts_of_a_users_own_need_no_change_in_the_package():
    parts = dict(memory=memory.MLP(expansion=2), algorithm=algorithm.Momentum())
    spec = Spec(bias=LogCosh(), retention=Clip(limit=0.7), **parts)
    assert Spec.from_json(spec.to_json()) == spec
    assert "c_t = tanh(e_t)" in spec.describe().text and "clip(W_(t-1)" in spec.describe().text
    q, k, v, gates, keywords = draw(spec)
    _, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    assert state.weights[0].abs().max() == 0.7
    e = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    value = torch.zeros(3, 4, dtype=torch.float64)
    (want,) = torch.autograd.grad(LogCosh().loss(e, value, None).sum(), e)
    assert relative(LogCosh().gradient(e, value, None), want) < 1e-12


class Cube(retention.Link, name="cube"):
    def link(self, a):
        return a + a**3

    def slope(self, a):
        return 1 + 3 * a**2

    def potential(self, w):
        raise NotImplementedError


class Softplus(retention.Divergence, name="softplus"):
    """g = log(1 + e^x) / log 2, so that g(0) = 1."""

    neutral = 0.0

    def g(self, x):
        return torch.nn.functional.softplus(x) / torch.log(torch.tensor(2.0))

    def slope(self, x):
        return torch.sigmoid(x) / torch.log(torch.tensor(2.0))

    def f(self, ratio):
        raise NotImplementedError


@pytest.mark.parametrize("kept", [retention.Bregman(link="cube"), retention.FDivergence(g="softplus", c=2.0)])
def test_links_and_divergences_of_a_users_own(kept):
    spec = Spec(memory=memory.Matrix(), bias=bias.L2(), retention=kept, algorithm=algorithm.GradientDescent())
    assert Spec.from_json(spec.to_json()) == spec
    q, k, v, gates, keywords = draw(spec)
    _, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    if isinstance(kept, retention.FDivergence):
        assert torch.allclose(state.weights.sum(-2), torch.tensor(2.0, dtype=torch.float64))
    else:
        assert relative(state.weights, state.accumulated[0] + state.accumulated[0] ** 3) < 1e-12


def test_parts_are_final_and_ask_for_gates_that_there_are():
    """The fast forms know parts by their class: a subclass would be run as its parent."""

    @dataclass(frozen=True, kw_only=True)
    class Twice(bias.L2):
        def gradient(self, prediction, value, delta):
            return 2 * (prediction - value)

    @dataclass(frozen=True, kw_only=True)
    class Tempered(bias.Bias):
        ranks: tuple[int, ...] = (1, 2)

        @property
        def gates(self):
            return (Gate("temperature", "value"),) if self.ranks == (3,) else ()

        def loss(self, prediction, value, delta): ...

        def gradient(self, prediction, value, delta):
            return prediction - value

        def rule(self):
            return Rule("e_t", "e_t")

    @dataclass(frozen=True, kw_only=True)
    class Aimless(algorithm.Descent):
        def rule(self, gradient, rate, place): ...

    parts = dict(memory=memory.Matrix(), retention=retention.Keep(), algorithm=algorithm.GradientDescent())
    with pytest.raises(ValueError, match="Twice is derived from L2, but parts are final: derive from Bias"):
        Spec(bias=Twice(), **parts)
    with pytest.raises(ValueError, match="Tempered reads a gate 'temperature': gates are eta, log_alpha"):
        Spec(bias=Tempered(ranks=(3,)), **parts)
    with pytest.raises(ValueError, match="Aimless has no step: its gates must name eta"):
        Spec(bias=bias.L2(), **(parts | dict(algorithm=Aimless())))
    spec = Spec(bias=Tempered(ranks=(4, 5)), **parts)
    again = Spec.from_json(spec.to_json())
    assert again == spec and hash(again) == hash(spec)
