"""The fused 1-layer MLP memory against the chunk form in float64, values and every gradient; on a CPU interpreted."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils import _pytree as pytree

from comparison import compared, continued, from_places, gradients, on_device, parts, same
from inputs import cut_gates, draw, leaves, relative, tensors
from miras import Spec, algorithm, bias, explain, memorize, memory, presets, retention
from miras.kernels import linear_op, linear_passes, proven
from miras.types import State


def linear(loss=None, anchor=False):
    kept = retention.L2(at="previous", anchor=anchor)
    return Spec(memory=memory.MLP(depth=1), bias=loss or bias.L2(), retention=kept, algorithm=algorithm.GradientDescent())


HUBER = bias.Huber(form="coordinate", smooth=False)
SPECS = {
    "ttt_linear": presets.ttt_linear(),
    "decayed": linear(),
    "anchored": linear(anchor=True),
    "huber": linear(HUBER),
    "huber anchored": linear(HUBER, anchor=True),
    "l_p": linear(bias.Lp(p=3)),
}


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_values_and_every_gradient(name, channelwise):
    compared(SPECS[name], B=2 if channelwise else 1, T=32, H=2, K=16, channelwise=channelwise)


@pytest.mark.parametrize(
    "name, end",
    [
        *((name, {"eta": 0.0}) for name in ("ttt_linear", "anchored")),
        *((name, {"delta": delta}) for name in ("huber", "huber anchored") for delta in (0.0, math.inf)),
    ],
    ids=str,
)
def test_gates_at_their_ends(name, end):
    compared(SPECS[name], B=1, T=32, H=1, K=16, end=end)


@pytest.mark.parametrize("channels", [24, 48, 96])
def test_channels_that_are_no_power_of_two(channels):
    compared(SPECS["huber anchored"], B=1, T=32, H=1, K=channels)


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_larger_chunks(name, size):
    compared(SPECS[name], B=1, T=size + 32, H=1, K=16, size=size)


@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_ragged_lengths_and_a_tail(name):
    compared(SPECS[name], B=2, T=37, H=1, K=16)
    compared(SPECS[name], B=1, T=5, H=1, K=16)


def test_strong_decay_over_one_chunk():
    """alpha about 1e-4 in every token: the pair ratios neither over- nor underflow."""
    compared(SPECS["decayed"], B=1, T=16, H=1, K=16, decay=4.6, tolerance=1e-4)


@pytest.mark.parametrize("anchor", [False, True])
def test_no_decay_is_too_strong(anchor):
    """alpha down to nothing at all, in some tokens and channels: every pair goes about itself, and nothing is not a number."""
    spec = linear(anchor=anchor)
    q, k, v, gates, keywords = on_device(draw(spec, B=1, T=32, H=1, K=16))
    log_alpha = gates.log_alpha.detach().clone()
    log_alpha[:, 3::7], log_alpha[:, 20, :, ::3] = -30.0, -torch.inf
    results = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
        arguments = on_device((q, k, v, gates._replace(log_alpha=log_alpha), keywords), dtype)
        y, state = memorize(spec, *arguments[:4], chunk_size=16, backend=backend, **arguments[4])
        wanted = [arguments[0], arguments[1], arguments[2], arguments[3].eta]
        results.append([y, state.weights, *torch.autograd.grad(y.square().sum(), wanted)])
    assert max(relative(found.double(), want) for want, found in zip(*results, strict=True)) < 1e-4


@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_a_state_carried_in_and_out_at_any_place(name):
    spec = SPECS[name]
    q, k, v, gates, keywords = on_device(draw(spec, B=1, T=40, H=1, K=16), torch.float32)
    whole, end = memorize(spec, q, k, v, gates, chunk_size=16, backend="triton", **keywords)
    for cut in (5, 16, 21):
        before, after = slice(cut), slice(cut, None)
        own = [(x[:, before], x[:, after]) for x in (q, k, v)]
        first, state = memorize(
            spec, *(x for x, _ in own), cut_gates(gates, before, before), chunk_size=16, backend="triton", **keywords
        )
        rest = cut_gates(gates, after, after)
        second, last = memorize(
            spec, *(x for _, x in own), rest, chunk_size=16, backend="triton", state=state, norm=keywords["norm"]
        )
        assert relative(torch.cat([first, second], 1), whole) < 2e-6
        assert relative(last.weights, end.weights) < 2e-6


@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_gradients_reach_the_state_that_came_in(name):
    spec = SPECS[name]
    exact = on_device(draw(spec, B=2, T=21, H=1, K=16))
    shape, mark = (2, 1, 16, 16), torch.Generator().manual_seed(3)
    given = [torch.randn(shape, generator=mark, dtype=torch.float64) for _ in range(2)]
    results = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
        q, k, v, gates, keywords = on_device(exact, dtype)
        a, anchor = (x.to(q.device, dtype).requires_grad_() for x in given)
        anchors = (anchor,) if spec.retention.anchored else ()
        state = State(a, (a,), anchors, ())
        y, end = memorize(spec, q, k, v, gates, chunk_size=16, backend=backend, state=state, norm=keywords["norm"])
        made = {"y": y} | parts(end)
        results.append(gradients(made, {"A": a} | dict(zip(["A_0"], anchors, strict=False))))
    same(results[1], results[0], 2e-5)


@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_rows_go_on_from_any_places_of_their_chunks(name, monkeypatch):
    """What is left of each row's chunk is plain PyTorch's, and all the rest the kernels', in a batch and packed."""
    assert from_places(SPECS[name], [3, 0, 15, 21], [37] * 4, monkeypatch) == [24, 37, 36, 26]
    # too few tokens for some to reach a chunk's end, one that reaches just that, one with none
    assert from_places(SPECS[name], [3, 5, 6, 0, 9], [7, 29, 10, 16, 0], monkeypatch) == [18, 16]


@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_packed_sequences_values_states_and_every_gradient(name):
    """Lengths of no whole number of chunks, one of none; the open chunks' states continue."""
    spec, bounds = SPECS[name], torch.tensor([0, 21, 21, 24, 40])
    compared(spec, B=1, T=40, H=1, K=16, cu_seqlens=bounds)
    continued(spec, bounds, on_device(draw(spec, B=1, T=40, H=1, K=16), torch.float32))


@pytest.mark.parametrize(
    "spec, options, reason",
    [
        (presets.titans_lmm(depth=1), {}, "1-layer MLP fuse gradient descent with a gate eta, not Momentum"),
        (replace(presets.ttt_linear(), algorithm=algorithm.GradientDescent(eta=0.1)), {}, "with a gate eta, not GradientDesc"),
        (replace(presets.moneta(), memory=memory.MLP(depth=1)), {}, "fuse Keep and L2.at='previous'., not Lq"),
        (replace(linear(), retention=retention.L2()), {}, "fuse Keep and L2.at='previous'., not L2"),
        (linear(bias.Huber(form="norm", smooth=False)), {}, "is not coordinate-wise and exact"),
        (presets.ttt_linear(), {"chunk_size": 8}, "the kernels take chunks of 16, 32, 64 tokens, not 8"),
    ],
    ids=str,
)
def test_what_the_kernels_cannot_run_is_refused_with_the_reason(spec, options, reason):
    q, k, v, gates, keywords = draw(spec, B=1, T=8, H=1, K=16, dtype=torch.float32)
    with pytest.raises(ValueError, match=reason):
        memorize(spec, q, k, v, gates, backend="triton", **options, **keywords)


def test_a_gpu_gets_what_was_compared_there(monkeypatch):
    """The kernels, where they were compared; elsewhere plain PyTorch, with the reason."""
    monkeypatch.setattr(proven, "INTERPRETED", False)
    assert explain(presets.ttt_linear(), "cuda").backend == "triton"
    refused = linear_op.why_not(presets.ttt_linear(), torch.device("cuda"), torch.float32, 64, 64)
    assert refused is not None and "proven for chunks of 16 tokens and 48, 64 channels a head, not for 64 and 64" in refused


@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_without_gradients_nothing_is_kept_for_them(name, monkeypatch):
    """The same outputs and states, and no room for the norm's inputs, which only the backward pass reads."""
    made, operator = [], linear_op.linear_forward
    monkeypatch.setattr(linear_op, "linear_forward", lambda *values: made.append(operator(*values)) or made[-1])
    arguments = on_device(draw(SPECS[name], B=1, T=37, H=1, K=16), torch.float32)
    found = []
    for wanted in (True, False):
        with torch.set_grad_enabled(wanted):
            found.append(memorize(SPECS[name], *arguments[:4], chunk_size=16, backend="triton", **arguments[4]))
    (y, state), (again, end) = found
    assert torch.equal(y, again) and all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(end), strict=True))
    with_them, without = (linear_passes.Saved(*x[linear_op.RESULTS :]) for x in made)
    assert with_them.o.shape == arguments[0].flatten(0, 1).shape and without.o.numel() == 0


def test_deterministic():
    spec, results = SPECS["huber anchored"], []
    arguments = on_device(draw(spec, B=1, T=20, H=1, K=16), torch.float32)
    for _ in range(2):
        y, state = memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
        made = {"y": y} | parts(state)
        results.append(made | gradients(made, leaves(*arguments)))
    assert all(torch.equal(x, results[1][name]) for name, x in results[0].items())


@pytest.mark.parametrize("name", ["ttt_linear", "huber anchored"])
def test_the_operators_pass_torchs_own_checks(name, monkeypatch):
    """Schema and fake kernels, as torch.compile will see them; of the backward operator too."""
    spec, given = SPECS[name], {}
    operators = {n: getattr(linear_op, n) for n in ("linear_forward", "linear_backward")}
    for n, own in operators.items():
        monkeypatch.setattr(linear_op, n, lambda *values, n=n, own=own: given.update({n: values}) or own(*values))
    arguments = on_device(draw(spec, B=1, T=5, H=1, K=16), torch.float32)
    y, _ = memorize(spec, *arguments[:4], chunk_size=16, backend="triton", **arguments[4])
    y.sum().backward()
    for n, operator in operators.items():
        values = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given[n])
        torch.library.opcheck(operator.library, values, test_utils=("test_schema", "test_faketensor"))
