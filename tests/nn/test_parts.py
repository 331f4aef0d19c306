"""The parts of a layer, each against something independent: convolution, window attention, gates, initial weights, recipes."""

import dataclasses
import itertools
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from miras import presets, retention
from miras.nn import RECIPES, Block, MirasLayer, Packing, SlidingWindowAttention, Stack, recipe_of
from miras.nn.convolution import ShortConvolution, TokenShift
from miras.nn.functional import EPS, turned, turns, unit_length, unit_rms
from miras.nn.gates import LINKS, Gate, GateRecipe, Slopes
from miras.nn.initial import InitialMemory, scale_of
from miras.nn.norm import RMSNorm
from miras.nn.packing import Places


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("width", [2, 4])
def test_the_convolution_is_torchs(width):
    convolution, x = ShortConvolution(6, width).double(), draw(2, 9, 6)
    y, window = convolution(x, torch.zeros(2, width - 1, 6, dtype=torch.float64))
    want = F.conv1d(F.pad(x.mT, (width - 1, 0)), convolution.weight[:, None], groups=6).mT
    assert torch.allclose(y, want, atol=1e-14)
    assert torch.equal(window, x[:, 1 - width :])


@pytest.mark.parametrize("bounds", [[0, 2, 2, 3, 9], [0, 9], [0, 0, 5, 9]])
def test_the_convolution_stops_at_a_sequences_start_and_goes_on_from_its_window(bounds):
    convolution, x = ShortConvolution(3, 4).double(), draw(1, 9, 3)
    window = draw(len(bounds) - 1, 3, 3, seed=1)
    y, after = convolution(x, window, Places.of(torch.tensor(bounds)))
    for row, (a, b) in enumerate(itertools.pairwise(bounds)):
        want, end = convolution(x[:, a:b], window[row : row + 1])
        assert torch.allclose(y[:, a:b], want, atol=1e-14) and torch.equal(after[row : row + 1], end)


@pytest.mark.parametrize("time", [1, 2, 3, 7])
def test_the_convolution_has_the_gradients_of_its_definition(time):
    """Of the tokens, of the window before them and of the taps, shorter than the window too; and the gradients of those."""
    convolution = ShortConvolution(3, 4).double()
    x, window = draw(2, time, 3).requires_grad_(), draw(2, 3, 3, seed=1).requires_grad_()

    def filtered(x, window, weight):
        return torch.func.functional_call(convolution, {"weight": weight}, (x, window))

    y, after = filtered(x, window, convolution.weight)
    seen = torch.cat([window, x], 1)
    want = F.conv1d(seen.mT, convolution.weight[:, None], groups=3).mT
    assert torch.allclose(y, want, atol=1e-14) and torch.equal(after, seen[:, time:])
    assert torch.autograd.gradcheck(filtered, (x, window, convolution.weight))
    assert torch.autograd.gradgradcheck(lambda *given: filtered(*given)[0], (x, window, convolution.weight))


def test_the_shift_mixes_a_token_with_the_one_before():
    shift, x = TokenShift(2, 1), torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])
    torch.nn.init.constant_(shift.mixture, 0.25)
    (mixed,), window = shift(x, torch.zeros(1, 1, 2))
    assert mixed.tolist() == [[[0.75, 1.5], [2.5, 5.0]]] and window.tolist() == [[[3.0, 6.0]]]


def test_unit_length_and_scale():
    x = draw(2, 5, 3, 8)
    assert torch.allclose(unit_length(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), atol=1e-14)
    assert torch.allclose(unit_rms(x, EPS), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), atol=1e-14)
    assert unit_length(torch.zeros(1, 1, 1, 4)).tolist() == [[[[0.0] * 4]]]


@pytest.mark.parametrize("treat", [unit_length, partial(unit_rms, eps=EPS)])
def test_autocast_leaves_keys_in_their_dtype(treat, monkeypatch):
    """On a GPU autocast takes rms_norm in float32; here it does not, so what is looked at is whether it is on."""
    real, seen = F.rms_norm, []

    def watched(*given, **named):
        seen.append(torch.is_autocast_enabled("cpu"))
        return real(*given, **named)

    monkeypatch.setattr(F, "rms_norm", watched)
    with torch.autocast("cpu", torch.bfloat16):
        assert treat(draw(1, 2, 1, 4).bfloat16()).dtype == torch.bfloat16 and torch.is_autocast_enabled("cpu")
    assert seen == [False]


def rotate(x, positions, theta):
    return turned(x, *turns(positions, x.shape[-1], theta, x.dtype))


def test_rotation_by_complex_numbers():
    x, positions = draw(1, 5, 2, 6), torch.tensor([[3, 4, 5, 6, 7]])
    angle = positions[..., None] * 100.0 ** -(torch.arange(3) / 3)
    want = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angle), angle)[:, :, None]
    assert torch.allclose(rotate(x, positions, 100.0), torch.cat([want.real, want.imag], -1), atol=1e-6)


def masked_attention(layer, x):
    """What a window means, written with a full mask."""
    q, k, v = (proj(x).unflatten(-1, (layer.heads, -1)) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    time = torch.arange(x.shape[1])
    q, k = rotate(q, time[None], layer.rope), rotate(k, time[None], layer.rope)
    near = (time[:, None] >= time) & (time[:, None] - time < layer.window)
    y = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), attn_mask=near)
    return layer.o_proj(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("window", [1, 3, 4, 20])
def test_window_attention_is_masked_attention(window):
    layer, x = SlidingWindowAttention(8, 2, window=window).double(), draw(2, 11, 8)
    want = masked_attention(layer, x)
    y, state = layer(x)
    assert torch.allclose(y, want, atol=1e-12)
    assert state.keys.shape == (2, window, 2, 4) and state.seen.tolist() == [11, 11]
    for cut in range(1, 11):
        first, state = layer(x[:, :cut])
        second, state = layer(x[:, cut:], state)
        assert torch.allclose(torch.cat([first, second], 1), want, atol=1e-12)
        assert state.keys.shape == (2, window, 2, 4)


def test_window_attention_packed_and_padded():
    layer, x = SlidingWindowAttention(8, 2, window=3).double(), draw(2, 9, 8)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4], mask[1, 7:] = False, False
    y, state = layer(x, mask=mask)
    more, _ = layer(x[:, :2], state)
    for row in range(2):
        own = torch.cat([x[row, mask[row]], x[row, :2]])[None]
        want = masked_attention(layer, own)[0]
        assert torch.allclose(torch.cat([y[row, mask[row]], more[row]]), want, atol=1e-12)
    packed, _ = layer(x[:1], cu_seqlens=torch.tensor([0, 2, 9]))
    assert torch.allclose(packed, torch.cat([layer(x[:1, :2])[0], layer(x[:1, 2:])[0]], 1), atol=1e-12)


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"mask must be \[2, 9\], got \[2, 8\]"):
        SlidingWindowAttention(8, 2, window=3)(torch.zeros(2, 9, 8), mask=torch.ones(2, 8))
    three, four = (SlidingWindowAttention(8, 2, window=window) for window in (3, 4))
    with pytest.raises(ValueError, match=r"state must hold keys \[2, 3, 2, 4\], got \[2, 4, 2, 4\]"):
        three(torch.zeros(2, 9, 8), four(torch.zeros(2, 9, 8))[1])
    with pytest.raises(ValueError, match="state must be what a call of this layer returned, got tuple"):
        three(torch.zeros(2, 9, 8), (1, 2))
    with pytest.raises(ValueError, match="cu_seqlens packs sequences in a batch of 1, got a batch of 2"):
        three(torch.zeros(2, 9, 8), cu_seqlens=torch.tensor([0, 9]))
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to T=9"):
        three(torch.zeros(1, 9, 8), cu_seqlens=torch.tensor([0, 5]))


def test_packing_there_and_back():
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    starts = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]]).bool()
    packing = Packing.of(mask, starts)
    assert packing.cu_seqlens.tolist() == [0, 2, 2, 4, 6] and packing.last.tolist() == [0, 1, 3]
    x = draw(3, 4, 5)
    assert torch.equal(packing.unpack(packing.pack(x)), x * mask[..., None])


@pytest.mark.parametrize("link", [link for link in LINKS if link != "ridge"])
@pytest.mark.parametrize("rank", [None, 3])
def test_a_gate_starts_where_it_should(link, rank):
    recipe = GateRecipe(name="eta", link=link, channelwise=True, rank=rank, start=0.125, limit=2.0)
    value = Gate(recipe, 6, 2, 4, unit=3.0).double()(torch.zeros(1, 5, 6, dtype=torch.float64)).value
    assert value.shape == (1, 5, 2, 4)
    sign = -1 if "decay" in link else 1
    assert torch.allclose(value, torch.full_like(value, sign * 3 * 0.125), atol=1e-6)


@pytest.mark.parametrize("rank", [None, 3])
def test_a_slow_gate_is_the_same_gate_and_learns_more_slowly(rank):
    """With matrices as much larger it gives the same values; Adam, which moves every number by the rate, moves them less."""
    recipe = GateRecipe(name="eta", link="sigmoid", channelwise=True, rank=rank, start=0.1)
    torch.manual_seed(0)
    fast = Gate(recipe, 8, 2, 4).double()
    torch.manual_seed(0)
    slow = Gate(dataclasses.replace(recipe, pace=0.1), 8, 2, 4).double()
    x = draw(2, 9, 8)
    assert torch.allclose(fast(x).value, slow(x).value, rtol=1e-6)
    assert torch.allclose(slow(x).value, slow(x, F.linear(x, slow.first)).value, rtol=1e-14)
    moved = []
    for gate in (fast, slow):
        before = gate(x).value.detach()
        gate.bias.requires_grad_(False)
        optimiser = torch.optim.Adam(gate.parameters(), lr=1e-3)
        gate(x).value.sum().backward()
        optimiser.step()
        moved.append((gate(x).value - before).abs().mean().item())
    assert moved[1] == pytest.approx(0.1 * moved[0], rel=0.05)


def test_slopes_run_from_short_to_long():
    assert Slopes(4)(torch.zeros(1)).value.tolist() == [-(2.0**-2), -(2.0**-4), -(2.0**-6), -(2.0**-8)]


@pytest.mark.parametrize("name", ["yaad", "moneta", "memora", "titans_lmm", "ttt_mlp", "ttt_linear"])
def test_deep_memories_start_tame(name):
    """Unit-scale weights as they are read; relative steps; little decay; a threshold that most errors do not reach."""
    spec = presets.get(name)
    initial = InitialMemory(spec, 2, 64, 64)
    weights = initial.start()
    weights = (weights,) if isinstance(weights, torch.Tensor) else weights
    for weight, parameter in zip(weights, initial.weights, strict=True):
        assert 0.98 < parameter.std() < 1.02
        held = spec.retention.start(weight[None])
        # on a simplex the logits have the spread, and the weights a mean of 1
        size = held.weight.mean() if name == "memora" else held.weight.std()
        assert 0.95 < size < 1.05 and (name != "memora" or 1.4 < held.accumulated.std() < 1.6)
    layer = MirasLayer(128, 2, name)
    with torch.no_grad():
        gates = layer.prepare(torch.zeros(1, 1, 128)).gates
    momentum = 0.5 if name == "titans_lmm" else 0.0
    step = 0.03 if name == "moneta" else 0.1
    assert gates.eta.mean().item() == pytest.approx(step * initial.unit * (1 - momentum), rel=1e-4)
    if gates.log_alpha is not None:
        decay = 1e-3 if layer.spec.retention.anchored else 1e-4
        assert gates.log_alpha.mean().item() == pytest.approx(-decay, rel=2e-3)
    if gates.delta is not None:
        assert gates.delta.mean().item() == pytest.approx(4.0, rel=1e-4)


def test_monetas_scales_are_those_the_algebra_gives():
    """W = A / ||A||_4^2 has unit scale for std A = 1/sqrt(3 n); the exact link for sqrt(3 n / 15)."""
    entries = 64 * 256
    assert scale_of(retention.Lq(), (64, 256)).factor == pytest.approx((3 * entries) ** -0.5, rel=0.03)
    assert scale_of(retention.Lq(link="exact"), (64, 256)).factor == pytest.approx((3 * entries / 15) ** 0.5, rel=0.03)


def test_the_table_has_every_preset_and_the_gates_it_asks_for():
    assert set(RECIPES) == set(presets.PRESETS)
    for name, recipe in RECIPES.items():
        spec = presets.get(name)
        assert recipe_of(spec) == recipe
        assert {gate.name for gate in recipe.gates} == {gate.name for gate in spec.gates} - {"kappa"}


def test_blocks_and_stacks_stream_too():
    stack, x = Stack(16, 2, "yaad", depth=3, window=4, chunk_size=4).double(), draw(2, 11, 16)
    assert [type(block.mixer) for block in stack.blocks] == [MirasLayer, SlidingWindowAttention, MirasLayer]
    with torch.no_grad():
        whole, _ = stack(x)
        first, states = stack(x[:, :5])
        second, states = stack(x[:, 5:], states)
        assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-10)
        mask = torch.ones(2, 11)
        mask[0, :3] = 0
        assert torch.allclose(stack(x, mask=mask)[0][:1, 3:], stack(x[:1, 3:])[0], atol=1e-10)
    block = Block(MirasLayer(16, 2, "deltanet"), 24).double()
    y, _ = block(x)
    assert torch.allclose(y[:, :4], block(x[:, :4])[0], atol=1e-12)


# the norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_norm_is_the_formula(dtype):
    norm = RMSNorm(8, 1e-3)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    x = torch.randn(3, 5, 8).to(dtype)
    want = norm.weight.double() * x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-3)
    y = norm(x)
    assert y.dtype == dtype
    # in 16 bits the gain is rounded, and the result
    torch.testing.assert_close(y, want.float().to(dtype), rtol={torch.bfloat16: 2**-7}.get(dtype, 1e-6), atol=1e-6)


@pytest.mark.parametrize("gain", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_one_call_without_a_warning_whatever_the_types(gain, dtype):
    """Torch warns, and does not fuse, where gain and input differ in type; here, under autocast, they never do.

    What comes out is what autocast multiplies in, so that the projections behind a norm share one copy.
    """
    norm, x = RMSNorm(8, 1e-6).to(gain), torch.randn(2, 3, 8, dtype=dtype, requires_grad=True)
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is F.rms_norm:
                seen.append((args[0].dtype, kwargs["weight"].dtype))
            return function(*args, **(kwargs or {}))

    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16), Watch():
        warnings.simplefilter("error")
        y = norm(x)
        y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16 and seen == [(dtype, dtype)]
    assert x.grad.dtype == dtype and norm.weight.grad.dtype == gain
