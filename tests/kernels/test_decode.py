"""The fused decoding step against the chunk form, token by token; on the CPU by Triton's interpreter."""

import dataclasses
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from devices import DEVICE, needs_gpu
from inputs import cut_gates, draw, relative, tensors
from miras import Spec, algorithm, bias, explain, memorize, memory, presets, retention
from miras.forms.common import stacked
from miras.kernels import decode

pytestmark = pytest.mark.gpu

SPECS = {
    "yaad": presets.yaad(),
    "yaad anchored": presets.yaad(anchor=True),
    "ttt_mlp": presets.ttt_mlp(),
    "titans": presets.titans_lmm(),
    "titans anchored": presets.titans_lmm(anchor=True),
    "moneta": presets.moneta(),
    "moneta anchored": presets.moneta(anchor=True),
    "moneta with momentum": dataclasses.replace(presets.moneta(anchor=True), algorithm=algorithm.Momentum()),
    "memora": presets.memora(),
    "memora anchored": presets.memora(anchor=True),
}


def drawn(spec, dtype=torch.float32, **sizes):
    q, k, v, gates, keywords = draw(spec, **sizes)
    gates = gates._replace(**{n: g.to(DEVICE, dtype) for n, g in gates._asdict().items() if g is not None})
    move = lambda x: tuple(w.to(DEVICE, dtype) for w in x)  # noqa: E731
    return (*(x.to(DEVICE, dtype) for x in (q, k, v)), gates, {name: move(x) for name, x in keywords.items()})


def token_by_token(spec, arguments, size, backend, state=None, first=0, kept=None):
    """Every token of a call on its own, from ``first`` on: outputs, and the state after each, or the last ``kept`` of them."""
    q, k, v, gates, keywords = arguments
    outputs, states = [], []
    for t in range(first, q.shape[1]):
        at = slice(t, t + 1)
        rest = {"norm": keywords["norm"]} if state is not None else keywords
        y, state = memorize(
            spec,
            *(x[:, at] for x in (q, k, v)),
            cut_gates(gates, at, at),
            chunk_size=size,
            backend=backend,
            state=state,
            **rest,
        )
        outputs.append(y)
        states.append(state)
        if kept is not None:
            del states[:-kept]
    return torch.cat(outputs, 1), states


def same_states(got, want, tolerance):
    pairs = list(zip(tensors(got), tensors(want), strict=True))
    assert [a.shape for a, _ in pairs] == [b.shape for _, b in pairs]
    # what is left of a sum that has just been emptied is measured against the weights
    scale = want.weights[0].abs().max()
    assert all(
        (a - b).abs().max() <= tolerance * torch.maximum(b.abs().max(), scale) for a, b in pairs if b.is_floating_point()
    )
    assert all(torch.equal(a, b) for a, b in pairs if not b.is_floating_point())


@pytest.fixture
def calls(monkeypatch):
    """How often the operator was called."""
    seen = []
    plain = decode.decode_step
    monkeypatch.setattr(decode, "decode_step", lambda *given: seen.append(given) or plain(*given))
    return seen


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_outputs_and_states_over_two_chunk_ends(name, channelwise, calls):
    """Against the chunk form in float64; where all rows begin a chunk, Memora's token is plain PyTorch's."""
    spec, size = SPECS[name], 3
    exact = drawn(spec, torch.float64, B=2, T=7, H=2, K=6, channelwise=channelwise)
    single = drawn(spec, B=2, T=7, H=2, K=6, channelwise=channelwise)
    with torch.no_grad():
        want, states = token_by_token(spec, exact, size, "torch")
        got, reached = token_by_token(spec, single, size, "triton")
    assert relative(got.double(), want) < 2e-5
    for a, b in zip(reached, states, strict=True):
        same_states(a, b, 2e-5)
    assert len(calls) == {"memora": 4}.get(name.split()[0], 7)


@pytest.mark.parametrize("name", ["yaad", "titans", "ttt_mlp", "moneta", "moneta with momentum"])
def test_chunks_of_one_token_are_the_recurrent_form(name, calls):
    spec = SPECS[name]
    exact = drawn(spec, torch.float64, B=1, T=4, H=2, K=6)
    with torch.no_grad():
        want, end = memorize(spec, *exact[:4], form="recurrent", **exact[4])
        got, states = token_by_token(spec, drawn(spec, B=1, T=4, H=2, K=6), 1, "triton")
    assert relative(got.double(), want) < 2e-5
    same_states(states[-1], end, 2e-5)
    assert states[-1].chunk is None and len(calls) == 4


@pytest.mark.parametrize("name", ["yaad", "titans anchored", "ttt_mlp", "memora", "moneta", "moneta with momentum"])
def test_rows_at_different_places_of_their_chunks(name, calls):
    spec, size = SPECS[name], 4
    results = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
        q, k, v, gates, keywords = drawn(spec, dtype, B=2, T=10, H=1, K=6)
        begun = []
        for row, read in enumerate((1, 3)):
            cut = slice(read)
            given = [x[row : row + 1, cut] for x in (q, k, v)]
            own = type(gates)(*(None if g is None else g[row : row + 1, cut] for g in gates))
            begun.append(memorize(spec, *given, own, chunk_size=size, backend="torch", **keywords)[1])
        with torch.no_grad():
            results.append(token_by_token(spec, (q, k, v, gates, keywords), size, backend, stacked(begun), first=3))
    (want, states), (got, reached) = results
    assert relative(got.double(), want) < 2e-5
    for a, b in zip(reached, states, strict=True):
        same_states(a, b, 2e-5)
    assert len(calls) == 7


LED = {
    "memora": presets.memora(),
    "memora anchored": presets.memora(anchor=True, c=3.0),
    "memora row": presets.memora(slice="row"),
    "with momentum": dataclasses.replace(presets.memora(), algorithm=algorithm.Momentum()),
}


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("name", LED)
def test_rows_all_over_their_chunks_are_fused_but_for_those_that_begin_one(name, channelwise, calls, monkeypatch):
    """As in a batch that is generated: at every token some row takes its softmax, another closes its chunk, a third goes on."""
    spec, size, places = LED[name], 3, (0, 2, 1, 0)
    led, plain = [], sys.modules["miras.memorize"].chunk
    monkeypatch.setattr(sys.modules["miras.memorize"], "chunk", lambda *given: led.append(len(given[1])) or plain(*given))
    results = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
        *tokens, gates, keywords = drawn(spec, dtype, B=4, T=7, H=2, K=6, channelwise=channelwise, eta=0.05)
        begun = []
        for row, read in enumerate(places):
            one = slice(row, row + 1)
            given = [x[one, : size + read] for x in tokens]
            own = type(gates)(*(None if g is None else g[one, : size + read] for g in gates))
            begun.append(memorize(spec, *given, own, chunk_size=size, backend="torch", **keywords)[1])
        led.clear()
        with torch.no_grad():
            results.append(token_by_token(spec, (*tokens, gates, keywords), size, backend, stacked(begun)))
    (want, states), (got, reached) = results
    assert relative(got.double(), want) < 2e-5
    for a, b in zip(reached, states, strict=True):
        same_states(a, b, 2e-5)
    assert len(calls) == 7 and led == [2, 1, 1, 2, 1, 1, 2]


def test_what_a_step_was_given_stays_as_it_was():
    """A row that begins a chunk changes the state that comes out, and nothing of the one that came in."""
    spec = LED["memora"]
    arguments = drawn(spec, B=2, T=4, H=1, K=6)
    with torch.no_grad():
        own = [tuple(x[row : row + 1] if torch.is_tensor(x) else x for x in arguments[:3]) for row in range(2)]
        begun = []
        for row, (given, read) in enumerate(zip(own, (1, 3), strict=True)):
            gates = type(arguments[3])(*(None if g is None else g[row : row + 1, :read] for g in arguments[3]))
            cut = [x[:, :read] for x in given]
            begun.append(memorize(spec, *cut, gates, chunk_size=3, backend="torch", **arguments[4])[1])
        state = stacked(begun)
        before = [x.clone() for x in tensors(state)]
        token_by_token(spec, arguments, 3, "triton", state, first=3)
    assert all(torch.equal(a, b) for a, b in zip(tensors(state), before, strict=True))


@pytest.mark.parametrize("name", ["yaad anchored", "titans", "moneta", "memora"])
def test_a_state_goes_back_and_forth(name):
    """A prompt by plain PyTorch, tokens by the step, then a longer text by plain PyTorch again."""
    spec, size = SPECS[name], 4
    exact = drawn(spec, torch.float64, B=2, T=17, H=1, K=6)
    q, k, v, gates, keywords = drawn(spec, B=2, T=17, H=1, K=6)
    with torch.no_grad():
        want, end = memorize(spec, *exact[:4], chunk_size=size, **exact[4])
        outputs, state, left = [], None, 0
        for right in (6, 7, 8, 9, 10, 17):
            at = slice(left, right)
            rest = keywords if state is None else {"norm": keywords["norm"], "state": state}
            alone = right - left == 1
            given = (*(x[:, at] for x in (q, k, v)), cut_gates(gates, at, at))
            y, state = memorize(spec, *given, chunk_size=size, backend="triton" if alone else "torch", **rest)
            outputs.append(y)
            left = right
    assert relative(torch.cat(outputs, 1).double(), want) < 2e-5
    assert relative(state.weights[0].double(), end.weights[0]) < 2e-5


@pytest.mark.parametrize("programs", [1, 10_000])
@pytest.mark.parametrize("name", ["yaad anchored", "moneta"])
def test_however_the_hidden_channels_are_shared_out(name, programs, monkeypatch):
    monkeypatch.setattr(decode, "PROGRAMS", programs)
    spec = SPECS[name]
    with torch.no_grad():
        want, states = token_by_token(spec, drawn(spec, torch.float64, B=1, T=3, H=1, K=24), 2, "torch")
        got, reached = token_by_token(spec, drawn(spec, B=1, T=3, H=1, K=24), 2, "triton")
    assert relative(got.double(), want) < 2e-5
    for a, b in zip(reached, states, strict=True):
        same_states(a, b, 2e-5)


def first_channel(weights, factor):
    """The weights with those of the first hidden channel scaled."""
    outer, inner = (w.clone() for w in weights)
    outer[..., 0] *= factor
    inner[..., 0, :] *= factor
    return outer, inner


BEGINNINGS = {
    "one channel zero": lambda weights: first_channel(weights, 0.0),
    "one channel next to nothing": lambda weights: first_channel(weights, 1e-41),
    "one channel too small to be read": lambda weights: first_channel(weights, 1e-32),
    "one channel small": lambda weights: first_channel(weights, 1e-26),
    "one weight zero": lambda weights: (0 * weights[0], weights[1]),
    "within the floor": lambda weights: tuple(1e-6 * w for w in weights),
    "in the floor by far": lambda weights: tuple(1e-33 * w for w in weights),
    "large": lambda weights: tuple(1e9 * w for w in weights),
}


@pytest.mark.parametrize("q", [4.0, 2.5])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_the_scale_is_found_whatever_the_weights_are(beginning, q, calls):
    """W = s A: s is told by one hidden channel, by all where that one is too small, by the floor where all are."""
    spec = presets.moneta(q=q)
    results = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
        *given, keywords = drawn(spec, dtype, B=1, T=5, H=2, K=6, eta=1e-9 if "floor" in beginning else 0.3)
        keywords["weights"] = BEGINNINGS[beginning](keywords["weights"])
        with torch.no_grad():
            results.append(token_by_token(spec, (*given, keywords), 3, backend))
    (want, states), (got, reached) = results
    assert relative(got.double(), want) < 2e-5
    for a, b in zip(reached, states, strict=True):
        same_states(a, b, 2e-5)
    assert len(calls) == 5


@pytest.mark.parametrize("q", [1.0, 2.0, 2.5, 3.0, 6.0])
def test_the_map_at_a_chunks_end_has_the_norm_of_any_q(q):
    spec = presets.moneta(q=q)
    with torch.no_grad():
        want, states = token_by_token(spec, drawn(spec, torch.float64, B=1, T=4, H=1, K=6), 2, "torch")
        got, reached = token_by_token(spec, drawn(spec, B=1, T=4, H=1, K=6), 2, "triton")
    assert relative(got.double(), want) < 2e-5
    same_states(reached[-1], states[-1], 2e-5)


class Ran(TorchDispatchMode):
    """The operators that ran, views left out."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if not operator.is_view:
            self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", SPECS)
def test_a_token_is_the_operator_and_nothing_else(name):
    """No pass over the weights beside the fused step, and no copy of them: inside a chunk and at its end, KL's aside."""
    spec, size = SPECS[name], 4
    arguments = drawn(spec, B=1, T=4, H=2, K=8)
    with torch.no_grad():
        _, states = token_by_token(spec, tuple(x[:, :2] if torch.is_tensor(x) else x for x in arguments), size, "triton")
        state = states[-1]
        for t in (2,) if "memora" in name else (2, 3):
            at = slice(t, t + 1)
            given = (*(x[:, at] for x in arguments[:3]), cut_gates(arguments[3], at, at))
            with Ran() as ran:
                _, state = decode.run(spec, *given, None, state, size)
            assert ran.names == ["miras::decode_step"]


def test_tokens_in_bf16_have_weights_in_float32():
    spec = SPECS["yaad"]
    q, k, v, gates, keywords = drawn(spec, B=1, T=3, H=2, K=8)
    low = tuple(x.bfloat16() for x in (q, k, v))
    with torch.no_grad():
        want, states = token_by_token(spec, (*(x.float() for x in low), gates, keywords), 64, "torch")
        got, reached = token_by_token(spec, (*low, gates, keywords), 64, "triton")
    assert got.dtype == torch.bfloat16 and relative(got.float(), want) < 2**-7  # the interpreter cuts off, a GPU rounds
    same_states(reached[-1], states[-1], 2e-5)


def test_a_call_that_needs_gradients_or_has_more_tokens_is_not_decoded(calls):
    spec = SPECS["titans"]
    q, k, v, gates, keywords = drawn(spec, B=1, T=2, H=1, K=16)
    with pytest.raises(ValueError, match="one number a head"):
        memorize(spec, q, k, v, gates, backend="triton", **keywords)
    one = cut_gates(gates, slice(1), slice(1))
    with pytest.raises(ValueError, match="one number a head"):
        memorize(spec, q[:, :1].requires_grad_(), k[:, :1], v[:, :1], one, backend="triton", **keywords)
    assert calls == []


def test_a_state_beyond_its_chunk_is_refused():
    spec = SPECS["yaad"]
    arguments = drawn(spec, B=1, T=4, H=1, K=6)
    with torch.no_grad():
        _, states = token_by_token(spec, tuple(x[:, :3] if torch.is_tensor(x) else x for x in arguments), 8, "triton")
        with pytest.raises(ValueError, match="stands 3 tokens into its chunk, so it cannot go on with chunk_size=2"):
            token_by_token(spec, arguments, 2, "triton", states[-1], first=3)


def test_what_cannot_be_decoded_is_said():
    device, dtype = torch.device(DEVICE), torch.float32
    specs = {
        "not MLP": presets.titans_lmm(depth=3),
        r"not Lq": presets.moneta(link="exact"),
        "not KL": presets.memora(chunk="dual"),
        "is not coordinate-wise": presets.yaad(form="norm"),
        "not L2": Spec(memory=memory.MLP(), bias=bias.L2(), retention=retention.L2(), algorithm=algorithm.GradientDescent()),
    }
    for reason, spec in specs.items():
        assert reason in decode.why_not(spec, device, dtype, 64)
    assert "not torch.float64" in decode.why_not(presets.yaad(), device, torch.float64, 64)
    found = {name: explain(presets.get(name), "cuda", gradients=False).reason for name in ("titans_lmm", "memora")}
    assert found["titans_lmm"].endswith("a token alone by the fused decoding step")
    assert found["memora"].endswith("a token alone by the fused decoding step, a row's first of a chunk by plain PyTorch")
    assert "decoding step fuses" in explain(presets.titans_lmm(depth=3), "cuda", gradients=False).reason
    assert "decoding step" not in explain(presets.titans_lmm(), "cuda").reason


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_token_has_no_derivative_forwards():
    """Plain PyTorch has, and is what no device's own choice leaves."""
    spec, (q, *rest, keywords) = SPECS["yaad"], drawn(SPECS["yaad"], B=1, T=1, H=1, K=8)
    step = lambda q, backend: memorize(spec, q, *rest, backend=backend, **keywords)[0].sum()  # noqa: E731
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        assert forward_ad.unpack_dual(step(dual, "torch")).tangent.abs() > 1
        with pytest.raises(ValueError, match=r"backend 'triton' cannot run yaad.* neither derivatives forwards"):
            step(dual, "triton")
        step(q, "triton")


@pytest.mark.parametrize("name", ["titans anchored", "moneta"])
def test_the_operator_passes_torchs_own_checks_and_is_deterministic(name):
    spec = SPECS[name]
    with torch.no_grad():
        arguments = drawn(spec, B=1, T=3, H=1, K=8)
        seen = []
        plain = decode.decode_step
        try:
            decode.decode_step = lambda *given: seen.append(given) or plain(*given)
            first, _ = token_by_token(spec, arguments, 2, "triton")
            second, _ = token_by_token(spec, arguments, 2, "triton")
        finally:
            decode.decode_step = plain
        assert torch.equal(first, second)
        for given in seen[:3]:
            torch.library.opcheck(plain.library, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("places", [(0, 0), (2, 1)])
@pytest.mark.parametrize("name", ["yaad anchored", "titans", "moneta", "moneta with momentum"])
def test_a_compiled_step_is_one_for_all_places(name, places, monkeypatch):
    """Without graph breaks: a graph for a state without a place and one for all others, over ends of some chunks and of all."""
    spec, size, module = SPECS[name], 3, sys.modules["miras.memorize"]
    arguments = drawn(spec, B=2, T=8, H=1, K=8)
    begun = []
    for row, read in enumerate(places):
        given = [x[row : row + 1, : size + read] for x in arguments[:3]]
        gates = type(arguments[3])(*(None if g is None else g[row : row + 1, : size + read] for g in arguments[3]))
        begun.append(memorize(spec, *given, gates, chunk_size=size, backend="torch", **arguments[4])[1])
    torch.compiler.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    with torch.no_grad():
        want, states = token_by_token(spec, arguments, size, "triton", stacked(begun))
        monkeypatch.setitem(globals(), "memorize", torch.compile(module.memorize, fullgraph=True, backend=graphs))
        got, reached = token_by_token(spec, arguments, size, "triton", stacked(begun))
    assert relative(got, want) < 1e-6 and graphs.frame_count <= 2
    for a, b in zip(reached, states, strict=True):
        # all rows at a chunk's start: a compiled step does not know, and says where each stands
        assert all(relative(x, y) < 1e-6 for x, y in zip(a.weights, b.weights, strict=True))
        assert a.chunk.position.tolist() == ([0, 0] if b.chunk is None else b.chunk.position.tolist())


def test_a_compiled_step_refuses_a_state_beyond_its_chunk():
    spec = SPECS["yaad"]
    arguments = drawn(spec, B=1, T=4, H=1, K=8)
    torch.compiler.reset()
    with torch.no_grad():
        _, states = token_by_token(spec, tuple(x[:, :3] if torch.is_tensor(x) else x for x in arguments), 8, "triton")
        given = (*(x[:, 3:] for x in arguments[:3]), cut_gates(arguments[3], slice(3, 4), slice(3, 4)))
        with pytest.raises(RuntimeError, match="too far into its chunk to go on with chunk_size=2"):
            torch.compile(memorize, fullgraph=True, backend="aot_eager")(
                spec, *given, chunk_size=2, backend="triton", state=states[-1]
            )


@needs_gpu
@pytest.mark.parametrize("channels", [48, 64, 96, 128])
@pytest.mark.parametrize("name", SPECS)
def test_real_sizes_on_a_gpu(name, channels):
    """70 tokens, past a chunk's end, at batch 1 (hidden channels shared out) and 16 (a program a head)."""
    spec = SPECS[name]
    for rows in (1, 16):
        sizes = {"B": rows, "T": 70, "H": 16, "K": channels, "eta": 0.02, "decay": 0.002}
        with torch.no_grad():
            want, states = token_by_token(spec, drawn(spec, torch.float64, **sizes), 64, "torch", kept=1)
            got, reached = token_by_token(spec, drawn(spec, **sizes), 64, "auto", kept=1)
        assert relative(got.double(), want) < 1e-4
        same_states(reached[-1], states[-1], 1e-4)
