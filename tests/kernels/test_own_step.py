"""Retentions with a step of their own between chunks: the kernels against the chunk form, values and all gradients."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from comparison import carried_in, compared, compiled, continued, from_places, gradients, on_device, tame
from devices import needs_gpu
from inputs import cut_gates, draw, leaves, relative, tensors
from miras import Spec, algorithm, bias, explain, memorize, memory, presets, retention
from miras.kernels import own_step, pieces
from miras.memorize import kernels_refuse
from miras.retention.base import Dual, Linear, Rates, Retention
from miras.retention.elastic_net import soft_threshold
from miras.types import Rule


def keeping(kept, own=None):
    return Spec(memory=memory.MLP(), bias=own or bias.L2(), retention=kept, algorithm=algorithm.GradientDescent())


@dataclass(frozen=True, kw_only=True)
class Bent(Dual):
    """A link of a user's own."""

    def to_weight(self, accumulated):
        return accumulated + accumulated**3 / 10

    def slope(self, accumulated):
        return 1 + 3 * accumulated**2 / 10

    def rule(self, update):
        return Rule("W = A + A^3 / 10", "W = A + A^3 / 10")


@dataclass(frozen=True, kw_only=True)
class Leading(Retention):
    """One whose chunks' first tokens take its step, with a threshold, alone."""

    leads = True

    def rates(self, eta, log_alpha):
        return Rates(None, eta, eta / 4)

    def step(self, held, log_decay, update, threshold, anchor):
        return self.hold(soft_threshold(held.weight - update, threshold))

    def rule(self, update):
        return Rule("W = S(W - eta g)", "W = S(W - eta g)")


@dataclass(frozen=True, kw_only=True)
class Halved(Retention):
    """One whose chunks read other weights than they measure the surprise at."""

    def linear(self, held, anchor):
        return Linear(0.5 * held.weight)

    def step(self, held, log_decay, update, threshold, anchor): ...

    def rule(self, update): ...


@dataclass(frozen=True, kw_only=True)
class Sloping(Dual):
    """A link with a slope for every number of a weight."""

    def to_weight(self, accumulated): ...

    def slope(self, accumulated): ...

    def linear(self, held, anchor):
        return Linear(held.accumulated, slope=torch.ones_like(held.accumulated))

    def rule(self, update): ...


@dataclass(frozen=True, kw_only=True)
class Late(Retention):
    """One that measures its surprise elsewhere."""

    def probe(self, held, log_decay, anchor):
        return 0.9 * held.weight

    def step(self, held, log_decay, update, threshold, anchor): ...

    def rule(self, update): ...


@dataclass(frozen=True, kw_only=True)
class Patient(Retention):
    """One whose weights decay at a chunk's end alone."""

    def linear(self, held, anchor):
        return Linear(held.weight, decays=False)

    def step(self, held, log_decay, update, threshold, anchor): ...

    def rule(self, update): ...


SPECS = {
    "elastic net": keeping(retention.ElasticNet(a=20.0), bias.Huber()),
    "elastic net ftrl": keeping(retention.ElasticNetFTRL(a=20.0)),
    "l_q exact": presets.moneta(link="exact", q=3),
    "l_q exact anchored": presets.moneta(link="exact", q=3, anchor=True),
    "sigmoid": keeping(retention.Bregman(link="sigmoid")),
    "exp": keeping(retention.Bregman(link="exp")),
    "ball": keeping(retention.L2Ball(radius=20.0)),
    "kl row": presets.memora(slice="row"),
    "kl matrix anchored": presets.memora(slice="matrix", anchor=True),
    "own": keeping(Bent()),
    "own, leading": keeping(Leading()),
}


# one of each way to move: a threshold that adds up, one that does not, a link, a link of the anchor, a first token by itself
EACH = ["elastic net", "elastic net ftrl", "l_q exact anchored", "sigmoid", "kl row"]
# float32 in plain PyTorch is as far from float64: 3e-5 for the l_q link and for KL
ROUNDED = 1e-4


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_values_and_every_gradient(name, channelwise):
    several = 2 if channelwise else 1
    compared(SPECS[name], ROUNDED, B=several, T=37, H=several, K=16, channelwise=channelwise)


@pytest.mark.parametrize(
    "name, end",
    [*((name, {"eta": 0.0}) for name in EACH), ("elastic net", {"delta": 0.0}), ("elastic net", {"delta": math.inf})],
    ids=str,
)
def test_gates_at_their_ends(name, end):
    """Steps before are small: no weight comes near zero, where its logarithm has no digits in float32."""
    compared(SPECS[name], ROUNDED, B=1, T=32, H=1, K=16, end=end, eta=0.01)


@pytest.mark.parametrize("T", [1, 16, 17, 48])
def test_lengths_that_end_anywhere(T):
    for name in EACH:
        compared(SPECS[name], ROUNDED, B=1, T=T, H=1, K=16)


@pytest.mark.parametrize("name", EACH)
def test_rows_go_on_from_any_places_of_their_chunks(name, monkeypatch):
    """What is left of each row's chunk is plain PyTorch's, and all the rest the kernels', in a batch and packed."""
    assert from_places(SPECS[name], [3, 0, 15, 21], [37] * 4, monkeypatch, ROUNDED) == [24, 37, 36, 26]
    # too few tokens for some to reach a chunk's end, one that reaches just that, one with none
    assert from_places(SPECS[name], [3, 5, 6, 0, 9], [7, 29, 10, 16, 0], monkeypatch, ROUNDED) == [18, 16]


@pytest.mark.parametrize("name", EACH)
def test_packed_sequences_values_states_and_every_gradient(name):
    """Lengths of no whole number of chunks; the open chunks' states continue."""
    spec, bounds = SPECS[name], torch.tensor([0, 21, 24, 40, 56])
    compared(spec, ROUNDED, B=1, T=56, H=1, K=16, cu_seqlens=bounds)
    arguments = on_device(tame(spec, B=1, T=56, H=1, K=16), torch.float32)
    assert continued(spec, bounds, arguments) == [10, 6, 0, 0]


@pytest.mark.parametrize("name", EACH)
def test_a_state_carried_in_and_out_at_any_place(name):
    spec = SPECS[name]
    q, k, v, gates, keywords = on_device(tame(spec, B=1, T=40, H=1, K=16), torch.float32)
    given = {"chunk_size": 16, "backend": "triton"}
    whole, end = memorize(spec, q, k, v, gates, **given, **keywords)
    for cut in (5, 16, 21):
        before, after = slice(cut), slice(cut, None)
        first, state = memorize(spec, *(x[:, before] for x in (q, k, v)), cut_gates(gates, before, before), **given, **keywords)
        own = cut_gates(gates, after, after)
        second, last = memorize(spec, *(x[:, after] for x in (q, k, v)), own, **given, state=state, norm=keywords["norm"])
        assert relative(torch.cat([first, second], 1), whole) < 1e-5
        assert all(relative(a, b) < 1e-5 for a, b in zip(last.weights, end.weights, strict=True))


@pytest.mark.parametrize("name", EACH)
def test_gradients_reach_the_state_that_came_in(name):
    carried_in(SPECS[name], first=16, T=37, H=1, K=16, eta=0.01)


@pytest.mark.parametrize("name", ["elastic net", "kl row"])
def test_it_compiles_without_graph_breaks(name):
    compiled(SPECS[name], T=21, H=1, K=16)


@pytest.mark.parametrize("name", EACH)
def test_two_runs_give_the_same_bits_with_gradients_or_without(name):
    arguments = on_device(tame(SPECS[name], B=1, T=37, H=1, K=16), torch.float32)
    found = []
    for wanted in (True, True, False):
        with torch.set_grad_enabled(wanted):
            y, state = memorize(SPECS[name], *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
        arrived = gradients({"y": y}, leaves(*arguments)).values() if wanted else ()
        found.append([y, *tensors(state), *arrived])
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[2], strict=False))


def test_inference_mode_leaves_nothing_that_a_training_cannot_keep():
    spec = SPECS["elastic net"]
    arguments = on_device(tame(spec, B=1, T=23, H=1, K=16), torch.float32)
    pieces.ORDERS.clear()
    with torch.inference_mode():
        read, _ = memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
    y, _ = memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
    assert torch.equal(y, read) and all(x.isfinite().all() for x in gradients({"y": y}, leaves(*arguments)).values())


def test_float16_tokens_have_a_state_in_float32():
    """As far from float64 as benchmarks/kernel_numerics.py lets products of float16 be."""
    spec = SPECS["l_q exact"]
    exact = on_device(on_device(draw(spec, B=1, T=37, H=1, K=16), torch.float16), torch.float64)
    found = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float16, "triton")):
        tokens = [x.to(dtype) for x in exact[:3]]
        gates, keywords = on_device(exact, torch.float32 if backend == "triton" else dtype)[3:]
        y, state = memorize(spec, *tokens, gates, chunk_size=16, backend=backend, **keywords)
        assert y.dtype == dtype and state.weights[0].dtype == keywords["weights"][0].dtype
        found.append([y, *state.weights])
    assert all((fused - want).norm() < 4e-3 * want.norm() for want, fused in zip(*found, strict=True))


@pytest.mark.parametrize(
    "spec, reason",
    [
        (presets.memora(chunk="dual"), r"the kernels do not centre what KL.* writes over its slices"),
        (keeping(retention.FDivergence(g="hellinger")), r"the kernels do not centre what FDivergence"),
        (keeping(retention.L2(at="decayed")), "the kernels fuse Keep, .*, not L2"),
        (keeping(Patient()), r"let all that is read inside a chunk decay, and Patient does not"),
        (keeping(Halved()), "the kernels read what they measure the surprise at, and Halved other weights"),
        (keeping(Sloping()), r"take one slope a weight, and Sloping has \(2, 3\)"),
        (keeping(Late()), r"take the surprise at the weights that a chunk starts with, and Late at another"),
        (replace(SPECS["sigmoid"], algorithm=algorithm.Momentum()), "the kernels fuse Keep, .*, not Bregman"),
        (keeping(retention.L2Ball(), bias.ValueShift()), "bias ValueShift has no device function"),
    ],
    ids=str,
)
def test_what_they_cannot_run_is_refused_with_the_reason(spec, reason):
    q, k, v, gates, keywords = draw(spec, B=1, T=16, H=1, K=16, dtype=torch.float32)
    with pytest.raises(ValueError, match=reason):
        memorize(spec, q, k, v, gates, chunk_size=16, backend="triton", **keywords)


def test_a_gpu_gets_them_by_name_until_they_were_compared_there(monkeypatch):
    gpu, spec = torch.device("cuda"), SPECS["elastic net"]
    monkeypatch.setattr(own_step, "INTERPRETED", False)
    found = explain(spec, gpu)
    assert (
        found.backend == "torch"
        and "own step between chunks" in found.reason
        and "backend='triton' asks for it" in found.reason
    )
    assert kernels_refuse(spec, gpu, torch.bfloat16, 64, 64, named=True) is None
    monkeypatch.setattr(own_step, "COMPARED", True)
    assert explain(spec, gpu).backend == "triton" and explain(presets.yaad(), gpu).backend == "triton"


@needs_gpu
@pytest.mark.parametrize("name", SPECS)
def test_at_real_sizes_on_a_gpu(name):
    """Where little decays: over 14 chunks other decays make the exact link chaotic, in plain PyTorch too."""
    compared(SPECS[name], 2e-4, size=16, B=2, T=211, H=2, K=64, eta=0.005, decay=2e-3)
