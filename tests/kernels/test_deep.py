"""The fused kernels against the chunk form in float64, values and every gradient; on the CPU by Triton's interpreter."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
import triton
import triton.language as tl
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from comparison import carried_in, compared, compiled, continued, from_places, gradients, on_device, parts, same, tame
from devices import DEVICE, needs_gpu
from inputs import cut_gates, draw, leaves, relative, tensors
from miras import Spec, algorithm, bias, explain, memorize, memory, presets, retention
from miras.call import Call
from miras.kernels import arguments as taken
from miras.kernels import biases, deep_op, launch, proven
from miras.memorize import choose, kernels_refuse
from miras.types import Gate, Gates, Rule, State

SPECS = {
    "yaad": presets.yaad(),
    "yaad anchored": presets.yaad(anchor=True),
    "ttt_mlp": presets.ttt_mlp(),
    "titans": presets.titans_lmm(),
    "titans anchored": presets.titans_lmm(anchor=True),
    "titans, nothing let go": replace(presets.titans_lmm(), retention=retention.Keep(), name=""),
    "moneta": presets.moneta(),
    "moneta anchored": presets.moneta(anchor=True, q=2.5),
    "memora": presets.memora(),
    "memora anchored": presets.memora(anchor=True, c=32.0),
    "l_1": replace(presets.ttt_mlp(), bias=bias.L1(), name=""),
    "fixed threshold": replace(presets.yaad(), bias=bias.Huber(delta=0.7), name=""),
    "l_p": Spec(
        memory=memory.MLP(), bias=bias.Lp(p=3), retention=retention.L2(at="previous"), algorithm=algorithm.GradientDescent()
    ),
}

# one of each kind of state
CARRIED = ["yaad anchored", "titans anchored", "moneta anchored", "memora anchored"]


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_values_and_every_gradient(name, channelwise):
    compared(SPECS[name], B=1, T=32, H=2 if channelwise else 1, K=16, channelwise=channelwise)


@pytest.mark.parametrize("channels", [24, 48])
def test_channels_that_are_no_power_of_two(channels):
    compared(presets.yaad(), B=1, T=16, H=1, K=channels)


@pytest.mark.parametrize("p", [1.5, 2.0, 4.0])
def test_other_exponents(p):
    """Powers by products, by roots, and by a logarithm."""
    compared(replace(SPECS["l_p"], bias=bias.Lp(p=p)), B=1, T=21, H=1, K=16)


ENDED = [
    *((name, {"eta": 0.0}) for name in ("yaad", "titans", "moneta", "memora", *CARRIED)),
    *((name, {"delta": delta}) for name in ("yaad", "yaad anchored") for delta in (0.0, math.inf)),
    *((name, {"mu": mu}) for name in ("titans", "titans anchored", "titans, nothing let go") for mu in (0.0, 0.999)),
]


@pytest.mark.parametrize("name, end", ENDED, ids=str)
def test_gates_at_their_ends(name, end):
    """That of decay is in the tests of strong decay."""
    compared(SPECS[name], B=1, T=32, H=1, K=16, end=end)


def test_larger_chunks():
    compared(presets.yaad(), B=1, T=64, H=1, K=16, size=32)


def test_ragged_lengths_and_a_tail():
    compared(presets.yaad(), B=1, T=37, H=1, K=16)


@pytest.mark.parametrize("name", ["yaad anchored", "titans", "memora"])
def test_gates_may_have_the_tokens_dtype(name):
    """Gates in float16 give what the same numbers give in float32, and gradients of their own dtype."""
    spec, results = SPECS[name], []
    q, k, v, gates, keywords = on_device(tame(spec, B=1, T=21, H=1, K=16), torch.float16)
    keywords = {key: pytree.tree_map(lambda x: x.detach().float().requires_grad_(), value) for key, value in keywords.items()}
    for dtype in (torch.float16, torch.float32):
        own = Gates(*(None if g is None else g.detach().to(dtype).requires_grad_() for g in gates))
        y, state = memorize(spec, q, k, v, own, chunk_size=16, backend="triton", **keywords)
        named = leaves(q, k, v, own, keywords)
        results.append({"y": y} | parts(state) | gradients({"y": y.float()}, named))
        assert all(results[-1][name].dtype == x.dtype for name, x in named.items())
    same(results[0], results[1], 2e-3)


@pytest.mark.parametrize("anchor", [False, True])
@pytest.mark.parametrize(("T", "size", "decay"), [(16, 16, 4.6), (32, 32, 4.3), (24, 32, 4.3), (48, 64, 4.3)])
def test_strong_decay_over_one_chunk(T, size, decay, anchor):
    """alpha down to 1e-4: the pair ratios neither over- nor underflow, where half a block or a whole one is missing too."""
    compared(presets.yaad(anchor=anchor), B=1, T=T, H=1, K=16, size=size, decay=decay, tolerance=1e-4)


def test_float16_has_digits_for_the_little_that_strong_decays_leave():
    spec, results = replace(presets.titans_lmm(), algorithm=algorithm.GradientDescent()), []
    q, k, v, gates, keywords = on_device(
        on_device(draw(spec, B=1, T=16, H=1, K=16, eta=0.02, decay=4.6), torch.float16), torch.float64
    )
    gates = gates._replace(log_alpha=gates.log_alpha - 4.6)
    for dtype, backend in ((torch.float64, "torch"), (torch.float16, "triton")):
        tokens = [x.to(dtype) for x in (q, k, v)]
        own, given = on_device((q, k, v, gates, keywords), torch.float32 if backend == "triton" else dtype)[3:]
        y, _ = memorize(spec, *tokens, own, chunk_size=16, backend=backend, **given)
        mark = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y)
        results.append(torch.autograd.grad((y * mark).sum(), own.log_alpha)[0])
    assert relative(results[1].double(), results[0]) < 1e-3


@pytest.mark.parametrize("anchor", [False, True])
def test_no_decay_is_too_strong(anchor):
    """alpha down to nothing at all, in some tokens and channels: every pair goes about itself, and nothing is not a number."""
    spec = presets.yaad(anchor=anchor)
    q, k, v, gates, keywords = on_device(draw(spec, B=1, T=32, H=1, K=16))
    log_alpha = gates.log_alpha.detach().clone().expand_as(q).clone()
    log_alpha[:, 3::7], log_alpha[:, 20, :, ::3] = -30.0, -torch.inf
    results = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
        arguments = on_device((q, k, v, gates._replace(log_alpha=log_alpha), keywords), dtype)
        y, state = memorize(spec, *arguments[:4], chunk_size=16, backend=backend, **arguments[4])
        leaves_ = [arguments[0], arguments[1], arguments[2], arguments[3].eta]
        results.append([y, *state.weights, *torch.autograd.grad(y.square().sum(), leaves_)])
    assert max(relative(found.double(), want) for want, found in zip(*results, strict=True)) < 1e-4


@pytest.mark.parametrize("name", CARRIED)
def test_a_state_carried_in_and_out_at_any_place(name):
    spec = SPECS[name]
    q, k, v, gates, keywords = on_device(tame(spec, B=1, T=40, H=1, K=16), torch.float32)
    whole, end = memorize(spec, q, k, v, gates, chunk_size=16, backend="triton", **keywords)
    for cut in (5, 16, 21):
        first, state = memorize(
            spec,
            *(x[:, :cut] for x in (q, k, v)),
            cut_gates(gates, slice(cut), slice(cut)),
            chunk_size=16,
            backend="triton",
            **keywords,
        )
        after = slice(cut, None)
        second, last = memorize(
            spec,
            *(x[:, after] for x in (q, k, v)),
            cut_gates(gates, after, after),
            chunk_size=16,
            backend="triton",
            state=state,
            norm=keywords["norm"],
        )
        assert relative(torch.cat([first, second], 1), whole) < 2e-6
        for found, want in zip((*last.weights, *last.momentum), (*end.weights, *end.momentum), strict=True):
            assert relative(found, want) < 2e-6


@pytest.mark.parametrize("name", CARRIED)
def test_gradients_reach_the_state_that_came_in(name):
    carried_in(SPECS[name], first=16, T=37, H=1, K=16, eta=0.01)


@pytest.mark.parametrize("name", ["yaad", *CARRIED])
def test_rows_go_on_from_any_places_of_their_chunks(name, monkeypatch):
    """What is left of each row's chunk is plain PyTorch's, and all the rest the kernels', in a batch and packed."""
    assert from_places(SPECS[name], [3, 0, 15, 21], [37] * 4, monkeypatch) == [24, 37, 36, 26]
    # too few tokens for some to reach a chunk's end, one that reaches just that, one with none
    assert from_places(SPECS[name], [3, 5, 6, 0, 9], [7, 29, 10, 16, 0], monkeypatch) == [18, 16]


@pytest.mark.parametrize("name", ["yaad", *CARRIED])
def test_packed_sequences_values_states_and_every_gradient(name):
    """Lengths of no whole number of chunks; the open chunks' states continue."""
    spec, bounds = SPECS[name], torch.tensor([0, 21, 24, 40])
    compared(spec, B=1, T=40, H=1, K=16, cu_seqlens=bounds)
    arguments = on_device(tame(spec, B=1, T=40, H=1, K=16), torch.float32)
    assert continued(spec, bounds, arguments) == [10, 6, 0]


@dataclass(frozen=True, kw_only=True)
class SoftAbs(bias.Bias):
    """A coordinate-wise bias of a user's own."""

    width: float = 1.0

    def loss(self, prediction, value, delta):
        return self.width**2 * torch.cosh((prediction - value) / self.width).log().sum(-1)

    def gradient(self, prediction, value, delta):
        return self.width * torch.tanh((prediction - value) / self.width)

    def rule(self):
        return Rule("tanh(e_t)", r"\tanh(e_t)")


@triton.jit
def log_cosh(error, delta, p: tl.constexpr):
    return 2 * tl.sigmoid(2 * error) - 1


@triton.jit
def log_cosh_slope(error, delta, p: tl.constexpr):
    tanh = 2 * tl.sigmoid(2 * error) - 1
    return 1 - tanh * tanh


def test_a_bias_of_a_users_own_is_fused_by_two_functions():
    kept = retention.L2(at="previous")
    spec = Spec(memory=memory.MLP(), bias=SoftAbs(), retention=kept, algorithm=algorithm.GradientDescent())
    arguments = on_device(draw(spec, B=1, T=16, H=1, K=16), torch.float32)
    biases.DEVICE.pop(SoftAbs().label, None)
    with pytest.raises(ValueError, match="bias SoftAbs has no device function: register one"):
        memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
    biases.register(SoftAbs(), log_cosh, log_cosh_slope)
    compared(spec, B=1, T=32, H=1, K=16)
    other = replace(spec, bias=SoftAbs(width=0.5))
    with pytest.raises(ValueError, match=r"bias SoftAbs\(width=0.5\) has no device function"):
        memorize(other, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])


@pytest.mark.parametrize(
    "spec, options, reason",
    [
        (presets.titans_lmm(), {}, "one number a head, not channel-wise mu and log_alpha"),
        (replace(presets.ttt_mlp(), algorithm=algorithm.GradientDescent(eta=0.1)), {}, "with a gate eta, not GradientDescent"),
        (replace(presets.titans_lmm(), retention=retention.L2()), {}, "L2.at='previous'., .* not L2"),
        (replace(presets.moneta(), algorithm=algorithm.Momentum()), {}, "fuse momentum with Keep and L2, not with Lq"),
        (presets.gated_deltanet(), {}, "fuse the 1- and 2-layer MLP memory, not Matrix"),
        (presets.yaad(form="mixture"), {}, "is not coordinate-wise and exact"),
        (presets.yaad(), {"chunk_size": 8}, "the kernels (take|are proven)"),
        (presets.yaad(), {"form": "recurrent"}, "form='recurrent' has no kernels"),
    ],
    ids=str,
)
def test_what_the_kernels_cannot_run_is_refused_with_the_reason(spec, options, reason):
    q, k, v, gates, keywords = draw(spec, B=1, T=8, H=1, K=16, dtype=torch.float32)
    with pytest.raises(ValueError, match=reason):
        memorize(spec, q, k, v, gates, backend="triton", **options, **keywords)


class OnGpu(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    device = torch.device("cuda")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["triton", "fla"])
def test_derivatives_forwards_and_transforms_are_plain_pytorchs(backend):
    """By its own choice a GPU takes it; kernels that are named are refused, before they leave anything behind."""
    spec, x = SPECS["yaad"], torch.randn(1, 16, 1, 16)
    q, k, v, gates, keywords = draw(spec, B=1, T=16, H=1, K=16, dtype=torch.float32)
    w1, w2 = (w[None] for w in keywords["weights"])
    call = Call(spec, q.as_subclass(OnGpu), k, v, gates, None, State((w1, w2), (w1, w2), (), ()))
    assert choose(call, 16, "auto", packed=False) == "triton"

    def taken(k):
        own = call._replace(k=k)
        assert choose(own, 16, "auto", packed=False) == choose(own, 16, "torch", packed=False) == "torch"
        with pytest.raises(ValueError, match=rf"backend '{backend}' cannot run yaad.*: it has neither .* has both$"):
            choose(own, 16, backend, packed=False)
        return k.sum()

    torch.func.jvp(taken, (x,), (x,))
    torch.func.grad(taken)(x)
    torch.func.vmap(taken)(x[None])
    with torch.autograd.forward_ad.dual_level():
        taken(torch.autograd.forward_ad.make_dual(x, x))
        assert choose(call, 16, "auto", packed=False) == "triton"


@needs_gpu
@pytest.mark.parametrize("channels", [48, 64])
def test_bf16_on_a_gpu_is_as_good_as_plain_torch_in_bf16(channels):
    """Values and gradients against float64, no worse than three times what bf16 inputs cost the plain chunk form."""
    spec = Spec(
        memory=memory.MLP(), bias=bias.L2(), retention=retention.L2(at="previous"), algorithm=algorithm.GradientDescent()
    )
    exact = on_device(draw(spec, B=2, T=256, H=2, K=channels, eta=0.02, decay=0.002))
    found = {}
    for name, dtype, backend in (
        ("exact", None, "torch"),
        ("torch", torch.bfloat16, "torch"),
        ("triton", torch.bfloat16, "triton"),
    ):
        q, k, v, gates, keywords = exact
        low = [x.detach().to(dtype or x.dtype).requires_grad_() for x in (q, k, v)]
        rest = on_device((*low, gates, keywords), torch.float32)[3:] if dtype else (gates, keywords)
        y, _ = memorize(spec, *low, rest[0], chunk_size=64, backend=backend, **rest[1])
        mark = torch.randn(y.shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE, dtype=torch.float64)
        named = leaves(*low, *rest)
        found[name] = [y, *torch.autograd.grad((y.double() * mark).sum(), list(named.values()))]
    for want, plain, fused in zip(found["exact"], found["torch"], found["triton"], strict=True):
        allowed = 3 * max((plain.double() - want).norm(), 2e-3 * want.norm())
        assert (fused.double() - want).norm() < allowed


def test_the_librarys_own_biases_are_not_replaced():
    with pytest.raises(ValueError, match="the library fuses L2 itself"):
        biases.register(bias.L2(), log_cosh, log_cosh_slope)


def test_a_bias_that_reads_delta_needs_its_derivative_there():
    @dataclass(frozen=True, kw_only=True)
    class Soft(bias.Bias):
        gates = (Gate("delta", "value"),)

        def loss(self, prediction, value, delta): ...

        def gradient(self, prediction, value, delta): ...

        def rule(self): ...

    with pytest.raises(ValueError, match="Soft reads delta: give delta_slope"):
        biases.register(Soft(), log_cosh, log_cosh_slope)


def test_explain_says_which_backend_a_gpu_gets():
    assert explain(presets.yaad(), "cuda").backend == "triton"
    assert "fuse the 1- and 2-layer MLP" in explain(presets.titans_lmm(depth=3), "cuda").reason
    assert explain(presets.yaad(), "cpu").backend == "torch"


def test_explain_is_precise_where_it_is_told_more():
    usual, exact = explain(presets.yaad(), "cuda"), explain(presets.yaad(), "cuda", dtype=torch.bfloat16, channels=64)
    assert "48, 64, 96 or 128 channels" in usual.where and exact.where == "fused kernels"
    assert "chunks of 16, 32, 64 tokens, not 48" in explain(presets.yaad(), "cuda", chunk_size=48).where
    single = explain(presets.yaad(), "cpu", chunk_size=1)
    assert single.exact and single.where == "plain PyTorch on cpu" and not explain(presets.yaad()).exact


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Which calls a GPU's kernels take is asked where there is none."""
    for module in (proven, deep_op):
        monkeypatch.setattr(module, "INTERPRETED", False)


@pytest.mark.parametrize(
    "spec, options, channels",
    [
        (presets.yaad(), {}, "48, 64, 96 or 128"),
        (presets.yaad(), {"dtype": torch.float32, "chunk_size": 16}, "48 or 64"),
        (presets.titans_lmm(anchor=True), {}, "48 or 64"),
        (presets.titans_lmm(), {}, "48, 64, 96 or 128"),
        (presets.ttt_linear(), {"dtype": torch.float32}, "48 or 64"),
    ],
    ids=str,
)
def test_explain_says_the_channels_that_the_kernels_take(spec, options, channels, as_on_a_gpu):
    assert f"fused kernels for {channels} channels a head" in explain(spec, "cuda", **options).where
    known = [n for n in range(1, 257) if explain(spec, "cuda", channels=n, **options).backend == "triton"]
    assert known == [int(n) for n in channels.replace(" or", ",").split(", ")]


def test_explain_gives_a_refusal_alone_where_nothing_runs(as_on_a_gpu):
    """Not the channels that the kernels would take otherwise."""
    found = explain(presets.yaad(), "cuda", dtype=torch.float64)
    assert found.backend == "torch" and "16-bit or float32 tokens" in found.where and "48" not in found.where


def test_explain_names_the_gates_that_a_momentum_has():
    kept = replace(presets.titans_lmm(), retention=retention.Keep(), name="")
    assert "(plain PyTorch for a channel-wise mu or log_alpha)" in explain(presets.titans_lmm(), "cuda").where
    assert "(plain PyTorch for a channel-wise mu)" in explain(kept, "cuda").where


def test_a_gpu_that_nobody_compared_them_on_gets_them_by_name_alone(monkeypatch):
    gpu, spec = torch.device("cuda"), presets.yaad()
    monkeypatch.setattr(launch, "CAPABILITY", (8, 0))
    assert "not on compute capability 8.0" in explain(spec, gpu).reason and explain(spec, gpu).backend == "torch"
    assert kernels_refuse(spec, gpu, torch.bfloat16, 64, 64, named=True) is None
    monkeypatch.setattr(launch, "CAPABILITY", (9, 0))
    monkeypatch.setattr(launch, "RESIDENT", True)
    assert explain(spec, gpu).backend == "triton" and "compared" not in explain(spec, gpu).where
    monkeypatch.setattr(launch, "RESIDENT", False)
    assert explain(spec, gpu).backend == "triton" and "under Triton 3.6, not under" in explain(spec, gpu).where


# what the forward pass leaves for the backward one alone
BACKWARDS = ("o", "late_u1", "slow_u1", "before1", "before2", "lead_o")


@pytest.mark.parametrize("name", ["yaad", *CARRIED])
def test_without_gradients_nothing_is_kept_for_them(name, monkeypatch):
    """The same outputs and states, and no room for what only the backward pass reads."""
    made, operator = [], deep_op.deep_forward
    monkeypatch.setattr(deep_op, "deep_forward", lambda *values: made.append(operator(*values)) or made[-1])
    arguments = on_device(tame(SPECS[name], B=1, T=37, H=1, K=16), torch.float32)
    found = []
    for wanted in (True, False):
        with torch.set_grad_enabled(wanted):
            found.append(memorize(SPECS[name], *arguments[:4], chunk_size=16, backend="triton", **arguments[4]))
    (y, state), (again, end) = found
    assert torch.equal(y, again) and all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(end), strict=True))
    with_them, without = (taken.Saved(*x[7:]) for x in made)
    kept = {part for part in BACKWARDS if getattr(with_them, part).numel()}
    assert {"o", "late_u1"} <= kept and all(getattr(without, part).numel() == 0 for part in BACKWARDS)
    assert all(getattr(with_them, part).shape == getattr(without, part).shape for part in set(taken.Saved._fields) - kept)


@needs_gpu
@pytest.mark.parametrize("name", SPECS)
def test_without_gradients_at_real_sizes_on_a_gpu(name):
    arguments = on_device(tame(SPECS[name], B=2, T=331, H=4, K=64), torch.bfloat16)
    found = []
    for wanted in (True, False):
        with torch.set_grad_enabled(wanted):
            y, state = memorize(SPECS[name], *arguments[:4], chunk_size=64, backend="triton", **arguments[4])
        found.append([y.float(), *(x.float() for x in state.weights)])
    assert all(relative(a, b) < 1e-6 for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", CARRIED)
def test_deterministic(name):
    spec, results = SPECS[name], []
    arguments = on_device(tame(spec, B=1, T=20, H=1, K=16), torch.float32)
    for _ in range(2):
        y, state = memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
        made = {"y": y} | parts(state)
        results.append(made | gradients(made, leaves(*arguments)))
    assert all(torch.equal(x, results[1][name]) for name, x in results[0].items())


@pytest.mark.parametrize("name", ["yaad", *CARRIED])
def test_the_operators_pass_torchs_own_checks(name, monkeypatch):
    """Schema and fake kernels, as torch.compile will see them."""
    spec, given = SPECS[name], []
    operator = deep_op.deep_forward
    monkeypatch.setattr(deep_op, "deep_forward", lambda *values: given.append(values) or operator(*values))
    arguments = on_device(tame(spec, B=1, T=5, H=1, K=16), torch.float32)
    memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
    values = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given[0])
    torch.library.opcheck(operator.library, values, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", ["yaad", *CARRIED])
def test_it_compiles_without_graph_breaks(name):
    """Values, states and gradients of a compiled call are those of the call itself."""
    compiled(SPECS[name], T=21, H=1, K=16)


def test_inference_mode_leaves_nothing_that_a_training_cannot_keep():
    """Where sequences lie is made once for all calls of their lengths, the first of which may be one of inference."""
    spec, arguments = SPECS["yaad"], on_device(tame(SPECS["yaad"], B=1, T=23, H=1, K=16), torch.float32)

    def call():
        return memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])[0]

    taken.KNOWN.clear()
    with torch.inference_mode():
        read = call()
    y = call()
    assert torch.equal(y, read) and all(x.isfinite().all() for x in gradients({"y": y}, leaves(*arguments)).values())


@pytest.mark.parametrize("name", ["yaad", "memora anchored"])
def test_what_is_not_kept_is_made_again(name):
    """Under activation checkpointing the kernels run twice, and the gradients are the same bits."""
    spec, arguments = SPECS[name], on_device(tame(SPECS[name], B=1, T=21, H=1, K=16), torch.float32)

    def call(q, k, v, gates, keywords):
        return memorize(spec, q, k, v, gates, chunk_size=16, backend="triton", **keywords)[0]

    again = checkpoint(call, *arguments, use_reentrant=False)
    results = [gradients({"y": y}, leaves(*arguments)) for y in (call(*arguments), again)]
    assert all(torch.equal(x, results[1][name]) for name, x in results[0].items())
