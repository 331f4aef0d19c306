"""The numbers: the layer read in stretches is the layer, and its surprise is what autograd finds token by token."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F

from miras import Spec, algorithm, bias, memorize, memory, presets, retention
from miras.forms.chunk import family
from miras.inspector import walk
from miras.nn import MirasLayer
from miras.types import Gate, Gates, Held, Rule

CHUNK = 4
TIME = 2 * CHUNK + 3
OWN = {
    "soft threshold": Spec(
        memory=memory.MLP(), bias=bias.L2(), retention=retention.ElasticNet(a=0.5), algorithm=algorithm.GradientDescent()
    ),
    "soft threshold, dual": Spec(
        memory=memory.Matrix(), bias=bias.L1(), retention=retention.ElasticNetFTRL(a=5.0), algorithm=algorithm.GradientDescent()
    ),
    "deep, decayed, anchored": Spec(
        memory=memory.MLP(depth=3),
        bias=bias.Huber(form="norm", delta=0.7),
        retention=retention.L2(anchor=True),
        algorithm=algorithm.GradientDescent(),
    ),
    "mixture": presets.yaad(form="mixture"),
    "vector": Spec(
        memory=memory.Vector(), bias=bias.ValueShift(), retention=retention.L2(), algorithm=algorithm.GradientDescent()
    ),
    "deep, several pairs": Spec(
        memory=memory.MLP(depth=1), bias=bias.L2(), retention=retention.Keep(), algorithm=algorithm.MultiStep(n=2)
    ),
    "matrix, momentum": Spec(memory=memory.Matrix(), bias=bias.L2(), retention=retention.L2(), algorithm=algorithm.Momentum()),
    "dual simplex": presets.memora(chunk="dual"),
}
SPECS = {name: presets.get(name) for name in presets.PRESETS} | OWN
each_spec = pytest.mark.parametrize("name", SPECS)


def build(spec, chunk=CHUNK):
    """A layer whose gates differ from token to token, and an input."""
    torch.manual_seed(1)
    layer = MirasLayer(16, 2, spec, chunk_size=chunk).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("gates"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return layer, torch.randn(1, TIME, layer.dim, dtype=torch.float64)


def wide(gate):
    """A gate [1,T,H] or [1,T,H,D] with its channels; None stays None."""
    return gate if gate is None or gate.dim() == 4 else gate[..., None]


class Single:
    """A layer's tokens as single pairs, one after the other: what several pairs a token mean."""

    def __init__(self, layer, x):
        prepared, self.layer, n = layer.prepare(x), layer, layer.pairs
        gates = {name: gate for name, gate in prepared.gates._asdict().items() if gate is not None}
        if n > 1:
            if "log_alpha" in gates:
                log_alpha = gates["log_alpha"]
                gates["log_alpha"] = torch.stack([log_alpha, *[torch.zeros_like(log_alpha)] * (n - 1)], 2).flatten(1, 2)
            self.spec = dataclasses.replace(layer.spec, algorithm=algorithm.GradientDescent())
        else:
            self.spec = layer.spec
        self.gates, self.k, self.v = gates, prepared.k, prepared.v
        self.exact = family(layer.spec) != "scan"

    @property
    def keys(self):
        return 1 - self.gates["log_alpha"].exp() if self.k is None else self.k

    def state(self, n):
        """The state after n pairs."""
        return memorize(
            self.spec,
            self.keys[:, :n],
            None if self.k is None else self.k[:, :n],
            self.v[:, :n],
            Gates(**{name: gate if gate.dim() < 3 else gate[:, :n] for name, gate in self.gates.items()}),
            weights=self.layer.memory.start(),
            norm=self.layer.memory.norm(),
            **({"form": "recurrent"} if self.exact else {"chunk_size": CHUNK}),
        )[1]

    def place(self, t):
        """The weights [H,...] at which pair t takes its gradient."""
        first = t if self.exact else t - t % CHUNK
        led = self.spec.retention.leads and t > first
        state = self.state(first + 1 if led else first)
        weights = [w[0] for w in (state.weights if isinstance(state.weights, tuple) else (state.weights,))]
        if not isinstance(self.spec.retention, retention.L2) or self.spec.retention.at == "previous":
            return weights
        if isinstance(self.spec.algorithm, algorithm.Newton):
            return weights
        towards = [w[0] for w in state.anchor] or [torch.zeros_like(w) for w in weights]
        kept = self.kept(first, t, weights)
        return [a + b * (w - a) for w, a, b in zip(weights, towards, kept, strict=True)]

    def kept(self, first, t, weights):
        """exp(sum of log alpha) from ``first`` to ``t``, shaped for each weight."""
        rule, heads = self.spec.retention, weights[0].shape[0]
        if rule.schedule is not None:
            return [(1 - 2.0 ** (-5 - torch.arange(heads).double()))[:, None, None] ** (t + 1 - first)]
        log_alpha = self.gates["log_alpha"]
        if log_alpha.dim() == 1:
            return [(log_alpha * (t + 1 - first)).exp()[:, None, None]]
        total = wide(log_alpha)[0, first : t + 1].sum(0)
        if isinstance(self.spec.memory, memory.Vector):
            return [total.exp()]
        if rule.side != "value":
            both = total[:, None, :]
            both = both + wide(self.gates["log_beta"])[0, first : t + 1].sum(0)[:, :, None] if rule.side == "outer" else both
            return [both.exp()]
        shapes = {"out": total[:, :, None], "in": total[:, None, :], "mean": total.mean(-1)[:, None, None]}
        return [shapes[side].exp() for side in self.spec.memory.sides]

    def found(self, t):
        """||grad_W loss||^2 by autograd through the memory, and the error, of pair t: [H] and [H,V]."""
        weights = [w.detach().requires_grad_() for w in self.place(t)]
        k, v = self.keys[0, t], self.v[0, t]
        with torch.enable_grad():
            prediction = predict(self.spec, weights, k, self.layer.memory.norm())
            # smooth biases define their gradient directly, so it is given at the prediction
            delta = wide(self.gates.get("delta"))
            delta = None if delta is None else delta[0, t // self.layer.pairs]
            error = self.spec.bias.gradient(prediction.detach(), v, delta)
            grads = torch.autograd.grad((prediction * error).sum(), weights)
        return sum(g.flatten(1).square().sum(1) for g in grads), prediction.detach() - v


def predict(spec, weights, k, norm):
    """M(W; k) in plain torch, k [H,K]."""
    if isinstance(spec.memory, memory.Vector):
        return weights[0] * k
    if isinstance(spec.memory, memory.Matrix):
        return torch.einsum("hoi,hi->ho", weights[0], k)
    x = torch.einsum("hoi,hi->ho", weights[-1], k)
    for weight in reversed(weights[:-1]):
        x = torch.einsum("hoi,hi->ho", weight, F.gelu(x, approximate="tanh"))
    return k + norm[0] * F.layer_norm(x, x.shape[-1:], eps=1e-6) + norm[1]


@each_spec
def test_a_layer_read_in_stretches_is_the_layer(name):
    layer, x = build(SPECS[name])
    with torch.no_grad():
        y, _ = layer.remember(layer.prepare(x))
        trace = walk(layer, x)
    assert (trace.y - y).abs().max() <= 1e-12 * y.abs().max()
    assert trace.ends[0] == 0 and trace.ends[-1] == TIME


@each_spec
def test_surprise_is_what_autograd_finds(name):
    layer, x = build(SPECS[name])
    trace, single, pairs = walk(layer, x), Single(layer, x), layer.pairs
    if name == "transformer":
        assert trace.surprise is None and trace.error is None and trace.norms is None
        return
    if layer.spec.decoupled:
        # everything the token changed that its decay did not
        change = [
            single.state(t + 1).weights - single.state(t).weights * single.gates["log_alpha"][:, t, :, None, :].exp()
            for t in range(TIME)
        ]
        want = torch.stack([c[0].flatten(1).norm(dim=1) for c in change], -1)
        assert trace.error is None
    else:
        found = [single.found(t) for t in range(TIME * pairs)]
        want = torch.stack([square for square, _ in found], -1).unflatten(-1, (TIME, pairs)).sum(-1).sqrt()
        wrong = torch.stack([e.square().sum(-1) for _, e in found], -1).unflatten(-1, (TIME, pairs)).sum(-1).sqrt()
        if isinstance(layer.spec.bias, bias.DotProduct):
            assert trace.error is None
        else:
            assert torch.allclose(trace.error, wrong, rtol=1e-9, atol=1e-12)
    assert torch.allclose(trace.surprise, want, rtol=1e-9, atol=1e-12) and (want > 0).all()


def test_a_chunk_of_one_token_has_the_recurrence_s_surprise():
    layer, x = build(presets.yaad(), chunk=1)
    prepared = layer.prepare(x)
    trace = walk(layer, x)
    for t in range(TIME):
        cut = Gates(**{n: g[:, :t] for n, g in prepared.gates._asdict().items() if g is not None})
        given = prepared.q[:, :t], prepared.k[:, :t], prepared.v[:, :t], cut
        _, state = memorize(layer.spec, *given, weights=layer.memory.start(), norm=layer.memory.norm(), form="recurrent")
        weights = [w[0] for w in state.weights]
        e = predict(layer.spec, weights, prepared.k[0, t], layer.memory.norm()) - prepared.v[0, t]
        assert torch.allclose(trace.error[:, t], e.norm(dim=-1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thirds(algorithm.Descent):
    """An algorithm of a user's own, which only the recurrent form can run."""

    n: int = 1

    @property
    def pairs(self):
        return self.n

    @property
    def gates(self):
        return (Gate("eta", "value"),)

    def move(self, momentum, step, mu):
        return None, step / 3

    def rule(self, gradient, rate, place):
        return None, Rule("g/3", "g/3")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ahead(retention.Retention):
    """A retention of a user's own, whose surprise is measured at a place of its own: twice the weights."""

    @property
    def gates(self):
        return (Gate("log_alpha", "value"),)

    def probe(self, held, log_decay, anchor):
        return 2 * log_decay.exp() * held.weight

    def step(self, held, log_decay, update, threshold, anchor):
        weight = log_decay.exp() * held.weight - update
        return Held(weight, weight)

    def rule(self, update):
        return Rule("W", "W")


@pytest.mark.parametrize(
    "spec",
    [
        dataclasses.replace(presets.yaad(), algorithm=Thirds(), name=""),
        dataclasses.replace(presets.yaad(), retention=Ahead(), name=""),
    ],
)
def test_parts_that_only_the_recurrent_form_runs_are_followed_token_by_token(spec):
    layer, x = build(spec, chunk=None)
    prepared, trace = layer.prepare(x), walk(layer, x)
    with torch.no_grad():
        y, _ = layer.remember(prepared)
    assert torch.allclose(trace.y, y, rtol=1e-12) and trace.ends == [0, TIME]
    for t in range(TIME):
        cut = Gates(**{n: g[:, :t] for n, g in prepared.gates._asdict().items() if g is not None})
        given = prepared.q[:, :t], prepared.k[:, :t], prepared.v[:, :t], cut
        _, state = memorize(spec, *given, weights=layer.memory.start(), norm=layer.memory.norm(), form="recurrent")
        weights = [w[0] for w in state.weights]
        if isinstance(spec.retention, Ahead):
            kept = prepared.gates.log_alpha[0, t].exp()
            weights = [2 * kept[:, :, None] * weights[0], 2 * kept[:, None, :] * weights[1]]
        weights = [w.detach().requires_grad_() for w in weights]
        prediction = predict(spec, weights, prepared.k[0, t], layer.memory.norm())
        e = prediction.detach() - prepared.v[0, t]
        g = spec.bias.gradient(prediction.detach(), prepared.v[0, t].detach(), prepared.gates.delta[0, t].detach())
        grads = torch.autograd.grad((prediction * g).sum(), weights)
        assert torch.allclose(trace.error[:, t], e.norm(dim=-1))
        assert torch.allclose(trace.surprise[:, t], sum(g.flatten(1).square().sum(1) for g in grads).sqrt())


def test_several_pairs_of_ones_own_are_refused():
    spec = dataclasses.replace(presets.yaad(), algorithm=Thirds(n=2), name="")
    with pytest.raises(ValueError, match=r"Thirds\(n=2\) takes 2 pairs a token in a way of its own, which cannot be followed"):
        walk(*build(spec, chunk=None))


def test_clipped_coordinates_are_counted():
    for spec in (presets.yaad(), presets.yaad(form="mixture"), OWN["deep, decayed, anchored"]):
        layer, x = build(spec)
        if "delta" in layer.gates:
            torch.nn.init.constant_(layer.gates["delta"].bias, 0.2)  # softplus: thresholds near 0.8
        trace, single = walk(layer, x), Single(layer, x)
        shares = []
        for t in range(TIME):
            _, e = single.found(t)
            delta = 0.7 if spec.bias.delta is not None else wide(single.gates["delta"])[0, t]
            size = e.abs() if spec.bias.form == "coordinate" else e.norm(dim=-1, keepdim=True)
            shares.append((size > delta).double().mean(-1))
        want = torch.stack(shares, -1)
        assert torch.equal(trace.clipped, want) and 0 < want.mean() <= 1
    assert walk(*build(presets.titans_lmm())).clipped is None


def test_gates_are_those_of_the_layer():
    layer, x = build(presets.yaad())
    gates, trace = layer.prepare(x).gates, walk(layer, x)
    assert set(trace.bands) == {"step", "decay", "threshold"}
    for name, gate in (("step", gates.eta), ("decay", -gates.log_alpha), ("threshold", gates.delta)):
        band = trace.bands[name]
        assert torch.allclose(band.mean, gate[0].mean(-1).mT) and torch.allclose(band.low, gate[0].amin(-1).mT)
        assert torch.allclose(band.high, gate[0].amax(-1).mT)
    assert set(walk(*build(presets.titans_lmm())).bands) == {"step", "decay", "momentum"}
    assert set(walk(*build(presets.dfw())).bands) == {"step", "decay", "value_decay"}
    elastic = walk(*build(OWN["soft threshold"])).bands
    assert set(elastic) == {"step", "decay", "soft_threshold"}
    assert torch.allclose(elastic["decay"].high, torch.log1p(elastic["step"].high / 10))


def test_weights_are_followed_from_chunk_to_chunk():
    layer, x = build(presets.yaad())
    trace, single = walk(layer, x), Single(layer, x)
    assert trace.ends == [0, CHUNK, 2 * CHUNK, TIME]
    states = [single.state(end).weights for end in trace.ends]
    for w in range(2):
        each = [state[w][0] for state in states]
        norms = torch.stack([weight.flatten(1).norm(dim=1) for weight in each], -1)
        steps = [(b - a).flatten(1).norm(dim=1) for a, b in itertools.pairwise(each)]
        assert torch.allclose(trace.norms[w], norms)
        assert torch.allclose(trace.moved[w], torch.stack(steps, -1) / norms[:, :-1])
    assert trace.zeros is None


def test_a_soft_threshold_is_seen_by_its_zeros():
    layer, x = build(OWN["soft threshold, dual"])
    trace, single = walk(layer, x), Single(layer, x)
    want = (single.state(CHUNK).weights[0] == 0).double().flatten(1).mean(1)
    assert torch.equal(trace.zeros[0, :, 0], want) and 0 < want.mean() < 1
    assert trace.zeros[..., -1].isnan().all()


def test_what_cannot_be_walked_is_refused():
    layer, x = build(OWN["deep, several pairs"], chunk=3)
    with pytest.raises(ValueError, match="a chunk of 3 pairs ends inside a token of 2"):
        walk(layer, x)
    with pytest.raises(ValueError, match=r"x must be \[1,T,C\]"):
        walk(layer, x[:, :0])
