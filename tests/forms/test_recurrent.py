"""The recurrent form: against independent NumPy loops, cut anywhere, for every combination, trained through."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from catalogue import ALGORITHMS, BIASES, MEMORIES, RETENTIONS, combinations, meaningful, one_of_each
from inputs import cut_gates, draw, leaves, relative, tensors
from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, recall, retention


def numpy_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def numpy_mlp_gradient(W1, W2, k, gain, shift, error_at):
    """Gradients of W1 and W2 of x + LN(W1 gelu(W2 x)) by hand, for one token of one head."""
    h = W2 @ k
    z = numpy_gelu(h)
    o = W1 @ z
    std = np.sqrt(((o - o.mean()) ** 2).mean() + 1e-6)
    unit = (o - o.mean()) / std
    e = gain * error_at(k + gain * unit + shift)
    u = (e - e.mean() - unit * (e * unit).mean()) / std
    t = np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))
    slope = 0.5 * (1 + t) + 0.5 * h * (1 - t**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * h**2)
    return np.outer(u, z), np.outer(slope * (W1.T @ u), k)


def numpy_read(W1, W2, q, gain, shift):
    o = W1 @ numpy_gelu(W2 @ q)
    return q + gain * (o - o.mean()) / np.sqrt(((o - o.mean()) ** 2).mean() + 1e-6) + shift


def loop(name, q, k, v, g, weights, gain, shift):
    """One head of one row, token by token, written without the package."""
    A1, A2 = weights
    softmax = lambda x: A1.shape[0] * np.exp(x) / np.exp(x).sum(0)  # noqa: E731  columns of length V, c their length
    softmax2 = lambda x: x.shape[0] * np.exp(x) / np.exp(x).sum(0)  # noqa: E731
    lq = lambda A: A / (np.abs(A) ** 4).sum() ** (2 / 4)  # noqa: E731
    W1, W2 = {"moneta": (lq(A1), lq(A2)), "memora": (softmax(A1), softmax2(A2))}.get(name, (A1, A2))
    S1, S2 = np.zeros_like(W1), np.zeros_like(W2)
    outputs = []
    for t in range(len(q)):
        eta = g["eta"][t]
        alpha = np.exp(g["log_alpha"][t]) if "log_alpha" in g else np.ones_like(eta)
        error = {
            "moneta": lambda y, t=t: 3 * np.tanh(10 * (y - v[t])) * ((y - v[t]) ** 2 + 1e-6),
            "yaad": lambda y, t=t: np.clip(y - v[t], -g["delta"][t], g["delta"][t]),
        }.get(name, lambda y, t=t: y - v[t])
        g1, g2 = numpy_mlp_gradient(W1, W2, k[t], gain, shift, error)
        step1, step2, keep1, keep2 = eta[:, None] * g1, g2 * eta[None], alpha[:, None], alpha[None]
        if name == "titans_lmm":
            mu = g["mu"][t]
            S1, S2 = mu[:, None] * S1 - step1, S2 * mu[None] - step2
            W1, W2 = keep1 * W1 + S1, W2 * keep2 + S2
        elif name == "moneta":
            A1, A2 = keep1 * A1 - step1, A2 * keep2 - step2
            W1, W2 = lq(A1), lq(A2)
        elif name == "memora":
            W1, W2 = softmax(keep1 * np.log(W1) - step1), softmax2(keep2 * np.log(W2) - step2)
        else:
            W1, W2 = keep1 * W1 - step1, W2 * keep2 - step2
        outputs.append(numpy_read(W1, W2, q[t], gain, shift))
    return np.stack(outputs), W1, W2


@pytest.mark.parametrize("name", ["ttt_mlp", "titans_lmm", "moneta", "yaad", "memora"])
def test_deep_presets_against_numpy(name):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, T=20, eta=0.3)
    y, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    for b in range(2):
        for h in range(2):
            one = {n: g[b, :, h].numpy() for n, g in gates._asdict().items() if g is not None}
            weights = [w[h].numpy() for w in keywords["weights"]]
            want = loop(name, *(x[b, :, h].numpy() for x in (q, k, v)), one, weights, *(x[h].numpy() for x in keywords["norm"]))
            assert relative(y[b, :, h], torch.tensor(want[0])) < 1e-10
            assert relative(state.weights[0][b, h], torch.tensor(want[1])) < 1e-10
            assert relative(state.weights[1][b, h], torch.tensor(want[2])) < 1e-10


def test_dfw_by_hand():
    q, k, v, gates, keywords = draw(presets.dfw(), B=1, T=5, H=1, K=3, V=2)
    y, _ = memorize(presets.dfw(), q, k, v, gates, form="recurrent", **keywords)
    W = keywords["weights"][0]
    for t in range(5):
        W = torch.outer(gates.log_beta[0, t, 0].exp(), gates.log_alpha[0, t, 0].exp()) * W + torch.outer(v[0, t, 0], k[0, t, 0])
        assert relative(y[0, t, 0], W @ q[0, t, 0]) < 1e-12


def test_longhorn_by_hand():
    q, k, v, gates, keywords = draw(presets.longhorn(), B=1, T=5, H=1, K=3, V=2, channelwise=False)
    _, state = memorize(presets.longhorn(), q, k, v, gates, form="recurrent", **keywords)
    W = keywords["weights"][0]
    for t in range(5):
        key, eta = k[0, t, 0], gates.eta[0, t, 0]
        W = W - eta / (1 + eta * key @ key) * torch.outer(W @ key - v[0, t, 0], key)
    assert relative(state.weights[0, 0], W) < 1e-12


@pytest.mark.parametrize("name", ["ttt_linear", "hafiza"])
def test_one_layer_by_hand(name):
    """Hafiza lets go towards the weights that it began with."""
    q, k, v, gates, keywords = draw(presets.get(name), B=1, T=5, H=1, K=3)
    _, state = memorize(presets.get(name), q, k, v, gates, form="recurrent", **keywords)
    W = first = keywords["weights"][0]
    kept = torch.ones(5, 3) if gates.log_alpha is None else gates.log_alpha[0, :, 0].exp()
    for t in range(5):
        W = W.detach().requires_grad_()
        o = W @ k[0, t, 0]
        y = k[0, t, 0] + keywords["norm"][0][0] * (o - o.mean()) / (o.var(correction=0) + 1e-6).sqrt() + keywords["norm"][1][0]
        (gradient,) = torch.autograd.grad(0.5 * ((y - v[0, t, 0]) ** 2).sum(), W)
        W = kept[t][:, None] * W + (1 - kept[t])[:, None] * first - gates.eta[0, t, 0][:, None] * gradient
    assert relative(state.weights[0, 0], W) < 1e-12


@pytest.mark.parametrize("name", presets.PRESETS)
@pytest.mark.parametrize("cut", [1, 5, 11])
def test_segments_equal_the_whole(name, cut):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, V=5)
    whole, end = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    n = v.shape[1] // q.shape[1]

    def part(side):
        tokens, pairs = (slice(0, cut), slice(0, cut * n)) if side == 0 else (slice(cut, None), slice(cut * n, None))
        own = {
            m: g if m == "ridge" else g[:, pairs if m == "eta" else tokens] for m, g in gates._asdict().items() if g is not None
        }
        return q[:, tokens], None if k is None else k[:, pairs], v[:, pairs], Gates(**own)

    first, middle = memorize(spec, *part(0), form="recurrent", **keywords)
    second, last = memorize(spec, *part(1), form="recurrent", norm=keywords.get("norm"), state=middle)
    assert relative(torch.cat([first, second], 1), whole) < 1e-12
    for got, want in zip(tensors(last), tensors(end), strict=True):
        assert relative(got.double(), want.double()) < 1e-12


@pytest.mark.parametrize("name", presets.PRESETS)
def test_packed_sequences_equal_one_by_one(name):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, B=1, V=5)
    n = v.shape[1] // q.shape[1]
    bounds = [0, 3, 4, 12]
    y, state = memorize(spec, q, k, v, gates, form="recurrent", cu_seqlens=torch.tensor(bounds), **keywords)
    for row, (a, b) in enumerate(itertools.pairwise(bounds)):
        pairs = slice(a * n, b * n)
        keys = None if k is None else k[:, pairs]
        own = cut_gates(gates, slice(a, b), pairs)
        alone, end = memorize(spec, q[:, a:b], keys, v[:, pairs], own, form="recurrent", **keywords)
        assert relative(y[:, a:b], alone) < 1e-12
        if name == "transformer":
            assert relative(state.keys[row : row + 1, -(b - a) :], end.keys) < 1e-12 and state.lengths[row] == b - a
        else:
            for got, want in zip(pytree.tree_leaves(state.weights), pytree.tree_leaves(end.weights), strict=True):
                assert relative(got[row : row + 1], want) < 1e-12
    # and the packed state continues, one row a sequence
    q2, k2, v2, gates2, _ = draw(spec, B=1, V=5, T=3, seed=1)
    again, _ = memorize(
        spec,
        q2,
        k2,
        v2,
        gates2,
        form="recurrent",
        cu_seqlens=torch.tensor([0, 1, 2, 3]),
        state=state,
        norm=keywords.get("norm"),
    )
    assert torch.isfinite(again).all()


SOME_MEMORIES = [part for part in one_of_each(MEMORIES) if not isinstance(part, memory.MLP)] + [memory.MLP(expansion=2)]
SOME_BIASES = [*one_of_each(BIASES), *(bias.Huber(form=form) for form in ("norm", "mixture"))]


@pytest.mark.parametrize("kept", RETENTIONS, ids=lambda r: r.label)
@pytest.mark.parametrize("store", SOME_MEMORIES, ids=lambda m: m.label)
def test_every_meaningful_combination_runs(store, kept):
    """With every bias and algorithm that goes with them, finite throughout; 64 tokens of L2, which goes with all algorithms."""
    for spec in meaningful([store], SOME_BIASES, [kept], ALGORITHMS):
        T = 64 if spec.bias == bias.L2() else 4
        q, k, v, gates, keywords = draw(spec, B=1, T=T, H=1, eta=0.02, decay=0.01, dtype=torch.float32)
        with torch.no_grad():
            y, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
        assert torch.isfinite(y).all(), spec
        assert all(torch.isfinite(x).all() for x in tensors(state)), spec


def test_most_combinations_are_meaningful():
    assert len(list(meaningful(SOME_MEMORIES, SOME_BIASES))) > 1000


def test_every_meaningless_combination_is_refused_with_both_parts_and_the_reason():
    refused = 0
    for parts, reasons in combinations():
        if reasons:
            refused += 1
            one, other, reason = reasons[0]
            with pytest.raises(ValueError) as error:
                Spec(memory=parts[0], bias=parts[1], retention=parts[2], algorithm=parts[3])
            assert one.label in str(error.value) and other.label in str(error.value) and reason in str(error.value)
            assert "\n" not in str(error.value)
    assert refused > 1000
    for parts in (
        dict(algorithm=algorithm.ImplicitGD(), bias=bias.Huber()),
        dict(algorithm=algorithm.Newton(), memory=memory.MLP()),
        dict(algorithm=algorithm.NonParametric(), retention=retention.L2()),
    ):
        base = dict(memory=memory.Matrix(), bias=bias.L2(), retention=retention.Keep(), algorithm=algorithm.GradientDescent())
        with pytest.raises(ValueError, match="does not go with"):
            Spec(**(base | parts))


@pytest.mark.parametrize("loss", [bias.L2(), bias.Lp(), bias.Huber(), bias.ValueShift()], ids=lambda b: b.label)
@pytest.mark.parametrize("store", [memory.Vector(), memory.Matrix(), memory.MLP(expansion=1)], ids=lambda m: m.label)
def test_the_outer_loop_trains_through_everything(loss, store):
    """gradcheck and gradgradcheck of a whole call, in every input, gate, initial weight, gain and shift."""
    spec = Spec(memory=store, bias=loss, retention=retention.L2(at="previous"), algorithm=algorithm.Momentum())
    q, k, v, gates, keywords = draw(spec, B=1, T=3, H=1, K=2, grad=True)
    named = leaves(q, k, v, gates, keywords)

    def call(*tensors):
        given = dict(zip(named, tensors, strict=True))
        weights = tuple(given[name] for name in given if name.startswith("W"))
        own = Gates(**{name: given.get(name) for name in Gates._fields})
        norm = (given["gain"], given["shift"]) if "gain" in given else None
        y, state = memorize(spec, given["q"], given["k"], given["v"], own, form="recurrent", weights=weights, norm=norm)
        return (y, *pytree.tree_leaves(state.weights))

    assert torch.autograd.gradcheck(call, tuple(named.values()), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tuple(named.values()), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_are_differentiable(name):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, B=1, T=4, H=2, K=2, grad=True)
    named = leaves(q, k, v, gates, keywords)
    y, _ = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    grads = torch.autograd.grad(y.square().sum(), list(named.values()), allow_unused=True)
    missing = [n for n, g in zip(named, grads, strict=True) if g is None or not torch.isfinite(g).all() or g.abs().max() == 0]
    assert missing == []


@pytest.mark.parametrize("name", presets.PRESETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_in_keeps_the_state_in_float32(name, dtype):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, dtype=dtype, channelwise=name in ("gla", "hgrn2", "rwkv7", "dfw", "yaad"))
    y, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    exact = [x.double() if x is not None else None for x in (q, k, v)]
    gates = Gates(**{n: g.double() for n, g in gates._asdict().items() if g is not None})
    keywords = pytree.tree_map(lambda x: x.double(), keywords)
    want, _ = memorize(spec, *exact, gates, form="recurrent", **keywords)
    assert y.dtype == dtype
    assert all(x.dtype == torch.float32 for x in pytree.tree_leaves(state.weights) if name != "transformer")
    assert relative(y.double(), want) < (2e-2 if dtype == torch.bfloat16 else 2e-3)


def test_scalar_gates_of_every_shape_agree():
    spec = presets.gated_deltanet()
    q, k, v, _, _ = draw(spec, B=2, T=6, H=3, K=4, V=4)
    eta, log_alpha = torch.rand(3, dtype=torch.float64), -torch.rand(3, dtype=torch.float64)
    want, _ = memorize(spec, q, k, v, Gates(eta=eta, log_alpha=log_alpha), form="recurrent")
    for shape in ((2, 6, 3), (2, 6, 3, 4)):
        wide = Gates(*(g.reshape(3, *[1] * (len(shape) - 3)).expand(shape) for g in (eta, log_alpha)))
        assert relative(memorize(spec, q, k, v, wide, form="recurrent")[0], want) < 1e-12


def test_the_middle_weights_take_the_mean_of_the_channels():
    spec = presets.titans_lmm(depth=3)
    q, k, v, gates, keywords = draw(spec, B=1, T=1, H=1)
    _, channelwise = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    mean = Gates(**{n: g.mean(-1) for n, g in gates._asdict().items() if g is not None})
    _, scalar = memorize(spec, q, k, v, mean, form="recurrent", **keywords)
    assert relative(channelwise.weights[1], scalar.weights[1]) < 1e-12
    assert relative(channelwise.weights[0], scalar.weights[0]) > 1e-4


@pytest.mark.parametrize("name", presets.PRESETS)
def test_recall_reads_without_writing(name):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec)
    y, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    norm = keywords.get("norm")
    assert relative(recall(spec, state, q[:, -1:], norm), y[:, -1:]) < 1e-12


def test_an_empty_sequence_gives_the_state_back():
    spec = presets.yaad()
    q, k, v, gates, keywords = draw(spec, T=0)
    y, state = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    assert y.shape == (2, 0, 2, 4)
    assert torch.equal(state.weights[0][0], keywords["weights"][0])
