"""The layer: streaming, padding and packing equal one plain call; gradients reach everything; every preset."""

import dataclasses
import itertools

import pytest
import torch
from torch.utils import _pytree as pytree

from catalogue import BIASES, MEMORIES, RETENTIONS, meaningful
from miras import Spec, algorithm, bias, explain, memory, nn, presets, retention
from miras.memory import Factor
from miras.memory.matrix import Dense
from miras.nn import MirasLayer, recipe_of
from miras.nn.functional import turns
from miras.types import Gate, Rule

CHUNK, TIME, DIM = 4, 15, 16
each_preset = pytest.mark.parametrize("name", presets.PRESETS)


def build(spec, dtype=torch.float64, **options):
    torch.manual_seed(1)
    layer = MirasLayer(DIM, 2, spec, **{"chunk_size": CHUNK, **options}).to(dtype)
    # gates that differ from token to token, and steps that matter
    for gate in layer.gates.values():
        for parameter in gate.parameters():
            torch.nn.init.normal_(parameter, std=0.5) if parameter.dim() > 1 else None
    return layer


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(got, want, tolerance=1e-10):
    assert got.shape == want.shape
    assert (got - want).abs().max() <= tolerance * want.abs().max().clamp_min(1)


def same_state(got, want):
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True):
        if isinstance(a, torch.Tensor) and a.numel():
            close(a.double(), b.double())


@each_preset
def test_a_sequence_cut_anywhere_equals_the_whole(name):
    layer, x = build(name), draw(2, TIME, DIM)
    with torch.no_grad():
        whole, end = layer(x)
        for cut in (1, CHUNK - 1, CHUNK, CHUNK + 1):
            first, state = layer(x[:, :cut])
            second, state = layer(x[:, cut:], state)
            close(torch.cat([first, second], 1), whole)
            same_state(state.memory.weights, end.memory.weights)
            assert state.seen.tolist() == [TIME, TIME]


@each_preset
def test_token_by_token_equals_the_whole(name):
    layer, x = build(name), draw(2, TIME, DIM)
    with torch.no_grad():
        state, read = None, []
        for token in x.split(1, 1):
            y, state = layer(token, state)
            read.append(y)
        close(torch.cat(read, 1), layer(x)[0])


@each_preset
def test_padding_on_either_side_changes_nothing(name):
    layer, x = build(name), draw(3, TIME, DIM)
    mask = torch.ones(3, TIME, dtype=torch.bool)
    mask[0, :5], mask[1, 11:], mask[2, 6:9] = False, False, False
    with torch.no_grad():
        y, state = layer(x, mask=mask)
        more, _ = layer(x[:, :3], state)
        for row in range(3):
            own = x[row : row + 1, mask[row]]
            want, end = layer(own)
            close(y[row : row + 1, mask[row]], want)
            assert (y[row, ~mask[row]] == 0).all()
            # rows stand at different places of their chunks now, and go on from there
            close(more[row : row + 1], layer(x[row : row + 1, :3], end)[0])
    assert state.seen.tolist() == [10, 11, 12]


@each_preset
def test_a_row_may_be_nothing_but_padding(name):
    layer, x = build(name), draw(2, 12, DIM)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :6], mask[1, 6:] = False, False
    with torch.no_grad():
        first, state = layer(x[:, :6], mask=mask[:, :6])
        second, state = layer(x[:, 6:], state, mask=mask[:, 6:])
        close(second[:1], layer(x[:1, 6:])[0])
        close(first[1:], layer(x[1:, :6])[0])
    assert state.seen.tolist() == [6, 6]


@each_preset
def test_a_call_may_have_no_token_at_all(name):
    """Nothing but padding, or a stretch of no length: nothing is read, and the state goes on, rows at different places too."""
    layer, x = build(name), draw(2, 9, DIM)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :3] = False
    with torch.no_grad():
        whole, _ = layer(x, mask=mask)
        nothing, state = layer(x[:, :2], mask=torch.zeros(2, 2, dtype=torch.bool))
        assert nothing.shape == (2, 2, DIM) and not nothing.any()
        first, state = layer(x[:, :5], state, mask=mask[:, :5])
        _, state = layer(x[:, :0], state)
        nothing, state = layer(x[:, :2], state, mask=torch.zeros(2, 2, dtype=torch.bool))
        assert not nothing.any()
        rest, state = layer(x[:, 5:], state)
    close(torch.cat([first, rest], 1), whole)
    assert state.seen.tolist() == [6, 9]


@each_preset
def test_a_state_is_saved_and_loaded_by_torch_alone(name, tmp_path):
    layer, x = build(name), draw(2, 7, DIM)
    with torch.no_grad():
        whole, (_, state) = layer(x)[0], layer(x[:, :4])
        torch.save(state, tmp_path / "state.pt")
        close(layer(x[:, 4:], torch.load(tmp_path / "state.pt"))[0], whole[:, 4:])


@each_preset
def test_packed_sequences_equal_one_by_one_and_nothing_leaks(name):
    layer, x = build(name), draw(1, TIME, DIM).requires_grad_()
    bounds = [0, 3, 4, 10, TIME]
    y, state = layer(x, cu_seqlens=torch.tensor(bounds))
    alone = [layer(x[:, a:b])[0] for a, b in itertools.pairwise(bounds)]
    close(y, torch.cat(alone, 1))
    assert state.seen.tolist() == [3, 1, 6, 5]
    for a, b in itertools.pairwise(bounds):
        (leak,) = torch.autograd.grad(y[:, a:b].square().sum(), x, retain_graph=True)
        outside = torch.ones(TIME, dtype=torch.bool)
        outside[a:b] = False
        assert (leak[:, outside] == 0).all() and (leak[:, a:b] != 0).any()


@each_preset
def test_a_prefix_does_not_change_with_what_follows(name):
    layer, x = build(name), draw(1, TIME, DIM)
    other = x.clone()
    other[:, 6:] = draw(1, TIME - 6, DIM, seed=9)
    with torch.no_grad():
        close(layer(x)[0][:, :6], layer(other)[0][:, :6])


@each_preset
def test_gradients_reach_every_parameter(name):
    layer = build(name)
    # values large enough that some errors exceed Huber's threshold
    with torch.no_grad():
        layer.v_proj.weight.mul_(20)
    y, _ = layer(draw(2, TIME, DIM))
    (y * draw(2, TIME, DIM, seed=5)).sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", ["yaad", "gated_deltanet", "memora"])
def test_gradients_equal_finite_differences(name):
    layer, x = build(name), draw(1, 5, DIM)
    parameters = dict(layer.named_parameters())

    def loss():
        return (layer(x)[0] * draw(1, 5, DIM, seed=5)).sum()

    loss().backward()
    for parameter_name, parameter in parameters.items():
        step = 1e-6 * draw(*parameter.shape, seed=7)
        with torch.no_grad():
            parameter.add_(step)
            up = loss()
            parameter.sub_(2 * step)
            down = loss()
            parameter.add_(step)
        want = (up - down) / 2
        got = (parameter.grad * step).sum()
        assert abs(got - want) <= 1e-4 * abs(want) + 1e-12, parameter_name


SIDES = [retention.L2(side=side) for side in ("key", "outer")] + [retention.L2(side="key", tied=True), retention.Keep()]
MOVES = [algorithm.GradientDescent(decoupled=True), algorithm.Momentum(), algorithm.MultiStep(n=2)]
COMPOSED = [
    *meaningful(MEMORIES[:3], BIASES[:8:3], RETENTIONS[::3], [algorithm.GradientDescent()]),
    *meaningful([memory.Matrix()], BIASES[:8], SIDES, [algorithm.GradientDescent(), *MOVES]),
]


@pytest.mark.parametrize("spec", COMPOSED, ids=str)
def test_any_spec_makes_a_layer(spec):
    layer, x = build(spec), draw(1, 10, DIM)
    y, state = layer(x[:, :7])
    rest, _ = layer(x[:, 7:], state)
    assert y.isfinite().all() and rest.isfinite().all()
    close(torch.cat([y, rest], 1), layer(x)[0])


@pytest.mark.parametrize("width", [48, 64, 96, 128])
@pytest.mark.parametrize("name", ["yaad", "moneta", "memora", "gated_deltanet", "transformer"])
def test_head_dimensions_of_all_sizes(name, width):
    layer, x = build(name, head_dim=width), draw(1, 5, DIM)
    with torch.no_grad():
        whole, state = layer(x)
        y, begun = layer(x[:, :2])
        rest, _ = layer(x[:, 2:], begun)
    assert pytree.tree_leaves(state.memory.weights)[0].shape[-1] in (width, 4 * width)
    close(torch.cat([y, rest], 1), whole)


def test_values_of_another_width():
    layer, x = build("gated_deltanet", head_dim=4, value_dim=12), draw(1, 9, DIM)
    y, state = layer(x[:, :4])
    rest, state = layer(x[:, 4:], state)
    assert state.memory.weights.shape == (1, 2, 12, 4)
    close(torch.cat([y, rest], 1), layer(x)[0])


@pytest.mark.parametrize("name", ["yaad", "titans_lmm", "gated_deltanet", "mamba2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_keeps_the_memory_in_float32(name, dtype):
    layer, x = build(name, torch.float32), draw(2, TIME, DIM, dtype=torch.float32)
    with torch.no_grad():
        want, _ = layer(x)
        with torch.autocast("cpu", dtype):
            auto, state = layer(x)
        assert auto.dtype == dtype and pytree.tree_leaves(state.memory.weights)[0].dtype == torch.float32
        low, state = layer.to(dtype)(x.to(dtype))
    assert low.dtype == dtype and pytree.tree_leaves(state.memory.weights)[0].dtype == torch.float32
    scale = want.abs().max()
    assert (auto.float() - want).abs().max() < 0.1 * scale and (low.float() - want).abs().max() < 0.1 * scale


@pytest.mark.parametrize("name", ["moneta", "memora", "titans_lmm", "gated_deltanet", "transformer"])
def test_it_compiles_without_graph_breaks(name):
    torch.compiler.reset()
    layer, x = build(name, torch.float32), draw(1, CHUNK + 1, DIM, dtype=torch.float32)
    y, _ = torch.compile(layer, fullgraph=True, backend="eager")(x)
    close(y, layer(x)[0], 1e-5)


def test_its_compiled_gradients_are_the_same():
    torch.compiler.reset()
    layer, x = build("yaad", torch.float32), draw(1, CHUNK + 1, DIM, dtype=torch.float32)
    want = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    y, _ = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    for got, gradient in zip(torch.autograd.grad(y.square().sum(), list(layer.parameters())), want, strict=True):
        close(got, gradient, 1e-4)


def test_rotary_positions_go_on_from_the_state():
    recipe = dataclasses.replace(recipe_of(presets.yaad()), rope=1e4)
    layer, x = build("yaad", recipe=recipe), draw(1, TIME, DIM)
    plain = build("yaad")
    with torch.no_grad():
        whole, _ = layer(x)
        first, state = layer(x[:, :6])
        close(torch.cat([first, layer(x[:, 6:], state)[0]], 1), whole)
        assert (whole - plain(x)[0]).abs().max() > 1e-3


def test_rotary_angles_are_exact_however_far_a_stream_has_come():
    positions = torch.tensor([[3, 10**6, 5 * 10**7]])
    angle = positions[..., None].double() * 1e4 ** -(torch.arange(4, dtype=torch.float64) / 4)
    for dtype, digits in ((torch.float64, 1e-12), (torch.bfloat16, 1e-7)):
        cosine, sine = turns(positions, 8, 1e4, dtype)
        assert cosine.dtype == torch.promote_types(dtype, torch.float32)
        assert (cosine - angle.cos()).abs().max() < digits and (sine - angle.sin()).abs().max() < digits


def test_values_are_scaled_where_asked_for():
    recipe = dataclasses.replace(recipe_of(presets.yaad()), value_norm=True)
    layer, x = build("yaad", recipe=recipe), draw(1, 9, DIM)
    with torch.no_grad():
        once, _ = layer(x)
        layer.v_proj.weight.mul_(100)
        # the direction of v is all that counts, up to SiLU, which is linear for what is large
        assert (layer(x)[0] - once).abs().max() < 2


CASES = {
    "unknown preset": (lambda: MirasLayer(16, 2, "yaadd"), "unknown preset 'yaadd', did you mean yaad"),
    "heads": (lambda: MirasLayer(16, 3), "dim=16 is not a multiple of heads=3: give head_dim"),
    "odd rotary": (lambda: MirasLayer(6, 2, "transformer"), "rotary positions turn pairs of channels, got head_dim=3"),
    "square": (lambda: MirasLayer(16, 2, "yaad", value_dim=4), "MLP memory needs value_dim == head_dim, got 4 and 8"),
    "channels": (lambda: MirasLayer(16, 2)(torch.randn(1, 4, 8)), r"x must be \[B,T,16\], got \[1, 4, 8\]"),
    "both": (
        lambda: MirasLayer(16, 2)(torch.randn(1, 4, 16), mask=torch.ones(1, 4), cu_seqlens=torch.tensor([0, 4])),
        "mask and cu_seqlens were both given",
    ),
    "mask": (lambda: MirasLayer(16, 2)(torch.randn(1, 4, 16), mask=torch.ones(1, 5)), r"mask must be \[1, 4\], got \[1, 5\]"),
    "added mask": (
        lambda: MirasLayer(16, 2)(torch.randn(1, 4, 16), mask=torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf]])),
        "mask must be 1 where there is a token and 0 elsewhere, got -inf: one to be added to scores is not taken",
    ),
    "numbers of documents": (
        lambda: MirasLayer(16, 2)(torch.randn(1, 4, 16), mask=torch.tensor([[1, 1, 2, 2]])),
        "got 2: documents that are packed are told by cu_seqlens",
    ),
    "bounds": (
        lambda: MirasLayer(16, 2)(torch.randn(1, 4, 16), cu_seqlens=torch.tensor([0, 3])),
        "cu_seqlens must rise from 0 to T=4",
    ),
    "bounds of a batch": (
        lambda: MirasLayer(16, 2)(torch.randn(2, 4, 16), cu_seqlens=torch.tensor([0, 4])),
        "cu_seqlens packs sequences in a batch of 1, got a batch of 2",
    ),
    "bounds in a list": (
        lambda: MirasLayer(16, 2)(torch.randn(1, 4, 16), cu_seqlens=[0, 4]),
        "cu_seqlens must be a tensor, got list",
    ),
    "no spec": (lambda: MirasLayer(16, 2, None), "spec must be a Spec"),
    "no state": (
        lambda: MirasLayer(16, 2)(torch.randn(1, 4, 16), "x"),
        "state must be what a call of this layer returned, got str",
    ),
    "shared steps without keys": (
        lambda: MirasLayer(16, 2, "hgrn2", recipe=recipe_of(presets.yaad())),
        "steps are shared along keys, and hgrn2.* has none",
    ),
    "start": (
        lambda: nn.GateRecipe(name="eta", link="sigmoid", start=1.0),
        "eta starts at 1.0, which must lie below its limit",
    ),
    "no start": (lambda: nn.GateRecipe(name="eta", link="sigmoid", start=0.0), "eta's start must be > 0, got 0.0"),
    "gates": (
        lambda: MirasLayer(16, 2, "yaad", recipe=nn.Recipe()),
        r"needs the gates \['eta', 'log_alpha', 'delta'\], which the recipe does not make",
    ),
    "too many gates": (
        lambda: MirasLayer(16, 2, "retnet", recipe=recipe_of(presets.yaad())),
        "the recipe has a gate eta, but retnet",
    ),
    "time step": (
        lambda: MirasLayer(16, 2, "retnet", recipe=dataclasses.replace(recipe_of(presets.retnet()), time_step=True)),
        "the recipe's time_step is what log_alpha is made of, and retnet.* has no such gate",
    ),
    "convolution": (lambda: nn.Recipe(convolution=1), "Recipe's convolution has 2 taps or more, or is None, got 1"),
    "another memory's state": (
        lambda: MirasLayer(16, 2, "yaad")(torch.randn(1, 4, 16), MirasLayer(16, 2, "gla")(torch.randn(1, 4, 16))[1]),
        "window",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refuses(name):
    make, message = CASES[name]
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_spec_of_ones_own_with_a_published_recipe():
    spec = Spec(
        memory=memory.Matrix(),
        bias=bias.L2(),
        retention=retention.L2(),
        algorithm=algorithm.GradientDescent(),
        name="gated_deltanet",
    )
    assert recipe_of(spec) == nn.RECIPES["gated_deltanet"]
    plain = dataclasses.replace(spec, name="")
    assert [gate.name for gate in recipe_of(plain).gates] == ["eta", "log_alpha"]


@pytest.mark.parametrize("made", [memory.MLP(), memory.MLP(depth=1), memory.Matrix()])
def test_beside_a_momentum_a_decay_is_one_number_a_head(made):
    """As many pair factors as channels otherwise, in plain PyTorch alone."""
    spec = Spec(memory=made, bias=bias.Huber(), retention=retention.L2(at="previous"), algorithm=algorithm.Momentum())
    assert not recipe_of(spec).gate("log_alpha").channelwise and not recipe_of(spec).gate("mu").channelwise
    descends = dataclasses.replace(spec, algorithm=algorithm.GradientDescent())
    assert recipe_of(descends).gate("log_alpha").channelwise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halved(algorithm.Descent):
    """An algorithm of a user's own, which only the recurrent form can run."""

    @property
    def gates(self):
        return (Gate("eta", "value"),)

    def move(self, momentum, step, mu):
        return None, step / 2

    def rule(self, gradient, rate, place):
        return None, Rule("g/2", "g/2")


def test_an_algorithm_of_ones_own_runs_token_by_token():
    spec = dataclasses.replace(presets.yaad(), algorithm=Halved(), name="")
    found = explain(spec)
    assert found.form == "recurrent" and found.exact and "Halved moves in a way of its own" in found.reason
    layer = build(spec)
    assert layer.form == "recurrent" and build("yaad").form == "chunk"
    x = draw(2, 7, DIM)
    y, _ = layer(x)
    first, state = layer(x[:, :3])
    second, _ = layer(x[:, 3:], state)
    assert torch.allclose(torch.cat([first, second], 1), y)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bent(memory.Memory):
    """A deep memory of a user's own, without a LayerNorm: W1 tanh(W2 x)."""

    square, linear, zero_start = True, False, False

    def shapes(self, keys, values):
        return (values, keys), (keys, keys)

    def maps(self, weights):
        return tuple(Dense(weight) for weight in weights)

    def trace(self, maps, x, norm):
        assert norm is None
        hidden = maps[1](x).tanh()
        return maps[0](hidden), (x, hidden)

    def backprop(self, maps, trace, error):
        x, hidden = trace
        return Factor(error, hidden), Factor(maps[0].transpose(error) * (1 - hidden**2), x)

    def gradient(self, factor):
        return factor.error.mT @ factor.input

    @property
    def sides(self):
        return "out", "in"

    def curvature(self, k): ...

    def rule(self):
        return Rule("W1 tanh(W2 x)", "W1 tanh(W2 x)")

    def gradient_rule(self, error):
        return Rule("g", "g")


def test_a_deep_memory_of_ones_own_has_the_deep_recipe():
    spec = dataclasses.replace(presets.yaad(), memory=Bent(), name="")
    plain = recipe_of(dataclasses.replace(presets.yaad(), name=""))
    assert recipe_of(spec) == plain and plain.step_sum == 1.0 and plain.gate("log_alpha").start == 1e-4
    layer = build(spec)
    assert layer.memory.gain is None
    layer(draw(2, 9, DIM))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", ["yaad", "memora", "gated_deltanet"])
def test_gradients_of_each_sequence_by_torch_func(name):
    layer, x = build(name), draw(3, 9, DIM)
    own = dict(layer.named_parameters())
    grad = torch.func.grad(lambda p, one: torch.func.functional_call(layer, p, (one[None],))[0].square().sum())
    found = torch.func.vmap(grad, (None, 0))(own, x)
    for number in range(3):
        layer.zero_grad()
        layer(x[number : number + 1])[0].square().sum().backward()
        for key, parameter in own.items():
            assert torch.allclose(found[key][number], parameter.grad, atol=1e-9), key


@pytest.mark.parametrize("name", ["head_dim", "value_dim", "chunk_size"])
@pytest.mark.parametrize("value", [0, -1, "a"])
def test_widths_and_chunks_are_positive_integers(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of 1 or more, or None, got"):
        MirasLayer(DIM, 2, "yaad", **{name: value})
