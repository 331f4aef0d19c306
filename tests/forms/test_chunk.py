"""The chunk form: equal to the recurrent one where it is exact, to a slow loop of the same rule where it is not."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_chunk import slow_chunk
from torch.utils import _pytree as pytree

from catalogue import BIASES, MEMORIES, RETENTIONS, meaningful, one_of_each
from inputs import cut_gates, draw, leaves, relative
from miras import Gates, Spec, algorithm, bias, explain, memorize, memory, presets, retention
from miras.memory import Factor
from miras.memory.matrix import Dense

EXACT = [name for name in presets.PRESETS if explain(presets.get(name)).exact]
DEEP = [name for name in presets.PRESETS if name not in EXACT]
TOLERANCE = 1e-9


def both(spec, arguments, first, second):
    """Outputs, final weights and all gradients of two ways to run one call, compared."""
    q, k, v, gates, keywords = arguments
    named = leaves(*arguments)
    results = []
    for options in (first, second):
        y, state = (
            options(q, k, v, gates, keywords) if callable(options) else memorize(spec, q, k, v, gates, **keywords, **options)
        )
        weights = [w for w in pytree.tree_leaves(state.weights) if w.is_floating_point()]
        mark = torch.Generator().manual_seed(1)
        total = sum((x * torch.randn(x.shape, generator=mark, dtype=x.dtype)).sum() for x in (y, *weights))
        grads = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        results.append((y, weights, dict(zip(named, grads, strict=True))))
    (y1, w1, g1), (y2, w2, g2) = results
    assert relative(y1, y2) < TOLERANCE
    assert all(relative(a, b) < TOLERANCE for a, b in zip(w1, w2, strict=True))
    for name in g1:
        if g2[name] is None or g2[name].abs().max() == 0:
            assert g1[name] is None or g1[name].abs().max() < 1e-12, name
        else:
            assert relative(g1[name], g2[name]) < TOLERANCE, name


def test_the_exact_presets_are_those_the_algebra_allows():
    assert set(DEEP) == {"ttt_linear", "ttt_mlp", "titans_lmm", "moneta", "yaad", "memora", "hafiza"}


@pytest.mark.parametrize("size", [1, 3, 16, 64, 21])
@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_exact_families_equal_the_recurrent_form(name, channelwise, size):
    spec = presets.delta_product(n=3) if name == "delta_product" else presets.get(name)
    arguments = draw(spec, B=1, T=21, H=2, K=4, V=3, grad=True, channelwise=channelwise, eta=0.9, decay=0.3)
    both(spec, arguments, {"form": "chunk", "chunk_size": size}, {"form": "recurrent"})


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("at", ["decayed", "previous"])
@pytest.mark.parametrize("side", ["value", "key", "outer"])
@pytest.mark.parametrize(
    "how",
    [algorithm.GradientDescent(), algorithm.ImplicitGD(), algorithm.MultiStep(n=2), algorithm.GradientDescent(decoupled=True)],
    ids=lambda a: a.label,
)
def test_composed_delta_rules_are_exact_too(how, side, at, anchored):
    if isinstance(how, algorithm.ImplicitGD) and at == "previous":
        return
    kept = retention.L2(at=at, side=side, anchor=anchored)
    spec = Spec(memory=memory.Matrix(), bias=bias.L2(), retention=kept, algorithm=how)
    for channelwise in (False, True):
        arguments = draw(spec, B=2, T=9, H=1, K=3, V=2, grad=True, channelwise=channelwise, eta=0.9, decay=0.3)
        both(spec, arguments, {"chunk_size": 4}, {"form": "recurrent"})


@pytest.mark.parametrize(
    "how", [algorithm.GradientDescent(), algorithm.Momentum(), algorithm.MultiStep(n=2)], ids=lambda a: a.label
)
@pytest.mark.parametrize("store", [memory.Vector(), memory.Matrix()], ids=lambda m: m.label)
def test_composed_hebbian_rules_are_exact_too(store, how):
    for kept in (retention.Keep(), retention.L2(anchor=True), retention.L2(at="previous")):
        spec = Spec(memory=store, bias=bias.DotProduct(), retention=kept, algorithm=how)
        for channelwise in (False, True):
            arguments = draw(spec, B=2, T=21, H=1, K=3, V=2, grad=True, channelwise=channelwise)
            both(spec, arguments, {"chunk_size": 8}, {"form": "recurrent"})


def deep_specs():
    """The deep presets, their anchored and other forms, and composed ones with every retention."""
    yield from (presets.get(name) for name in DEEP)
    yield from (presets.titans_lmm(depth=depth) for depth in (1, 3, 4))
    yield from (
        presets.moneta(link="exact"),
        presets.moneta(anchor=True),
        presets.yaad(anchor=True),
        presets.yaad(form="mixture"),
    )
    yield from (presets.memora(chunk="dual"), presets.memora(anchor=True), presets.memora(slice="matrix", chunk="dual"))
    small = memory.MLP(expansion=1)
    for kept in RETENTIONS:
        for store, how in (
            (memory.Vector(), algorithm.GradientDescent()),
            (memory.Matrix(), algorithm.Momentum()),
            (small, algorithm.Momentum()),
            (small, algorithm.MultiStep(n=2)),
        ):
            try:
                yield Spec(memory=store, bias=bias.Huber(), retention=kept, algorithm=how)
            except ValueError:
                continue

    yield from meaningful(one_of_each(MEMORIES), BIASES, [retention.L2(at="previous")], [algorithm.GradientDescent()])
    yield from meaningful(MEMORIES, [bias.Huber()], [retention.L2(at="previous")], [algorithm.GradientDescent()])


DEEP_SPECS = list({spec.to_json(): spec for spec in deep_specs()}.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rectified(memory.Memory):
    """A memory of a user's own, linear in its weights and not in the key: M(W; k) = k + W relu(k) + U k."""

    square, linear, zero_start = True, True, True

    def shapes(self, keys, values):
        return ((values, keys), (values, keys))

    def maps(self, weights):
        return tuple(Dense(weight) for weight in weights)

    def trace(self, maps, x, norm):
        return x + maps[0](x.relu()) + maps[1](x), x

    def backprop(self, maps, trace, error):
        return Factor(error, trace.relu()), Factor(error, trace)

    def gradient(self, factor):
        return factor.error.mT @ factor.input

    @property
    def sides(self):
        return "out", "out"

    def curvature(self, k):
        return (k * k).sum(-1, keepdim=True) + k.relu().square().sum(-1, keepdim=True)

    def rule(self): ...

    def gradient_rule(self, error): ...


@pytest.mark.parametrize("loss", one_of_each(BIASES), ids=lambda b: b.label)
def test_a_linear_memory_of_a_users_own(loss):
    for kept in (retention.Keep(), retention.L2(), retention.L2(at="previous"), retention.KL()):
        spec = Spec(memory=Rectified(), bias=loss, retention=kept, algorithm=algorithm.GradientDescent())
        arguments = draw(spec, B=2, T=7, H=1, K=3, grad=True)
        sizes = (1, 4) if explain(spec).exact else (1,)
        for size in sizes:
            both(spec, arguments, {"chunk_size": size}, {"form": "recurrent"})


def splits(spec):
    """Whether a spec's channel-wise gates split for the chunk form (momentum on one side and decays on the other do not)."""
    kept = spec.retention
    return not (isinstance(spec.algorithm, algorithm.Momentum) and isinstance(kept, retention.L2) and kept.side != "value")


@pytest.mark.parametrize("spec", DEEP_SPECS, ids=str)
def test_chunks_of_one_token_equal_the_recurrent_form(spec):
    for channelwise in {False, splits(spec)}:
        arguments = draw(spec, B=2, T=5, H=1, K=3, grad=True, channelwise=channelwise)
        both(spec, arguments, {"chunk_size": 1}, {"form": "recurrent"})


@pytest.mark.parametrize("spec", DEEP_SPECS, ids=str)
def test_longer_chunks_equal_a_slow_loop_of_the_same_rule(spec):
    for channelwise in {False, splits(spec)}:
        arguments = draw(spec, B=2, T=11, H=1, K=3, grad=True, channelwise=channelwise)
        slow = lambda q, k, v, gates, keywords: slow_chunk(spec, q, k, v, gates, keywords, 4)  # noqa: E731
        both(spec, arguments, {"chunk_size": 4}, {"form": "recurrent"} if explain(spec).exact else slow)


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("name", DEEP)
def test_real_chunk_sizes_equal_the_slow_loop(name, size):
    spec = presets.get(name)
    arguments = draw(spec, B=1, T=70, H=1, K=4, grad=True)
    slow = lambda q, k, v, gates, keywords: slow_chunk(spec, q, k, v, gates, keywords, size)  # noqa: E731
    both(spec, arguments, {"chunk_size": size}, slow)


@pytest.mark.parametrize("cuts", [[3], [4], [8], [1, 2, 3, 5, 8, 9], list(range(1, 21))])
@pytest.mark.parametrize("spec", [presets.get(name) for name in presets.PRESETS] + [presets.memora(chunk="dual")], ids=str)
def test_segments_cut_anywhere_equal_the_whole(spec, cuts):
    q, k, v, gates, keywords = draw(spec, T=21, V=5)
    whole, end = memorize(spec, q, k, v, gates, chunk_size=4, **keywords)
    n = v.shape[1] // q.shape[1]
    outputs, state, options = [], None, keywords
    for a, b in zip([0, *cuts], [*cuts, 21], strict=True):
        pairs = slice(a * n, b * n)
        keys = None if k is None else k[:, pairs]
        y, state = memorize(
            spec, q[:, a:b], keys, v[:, pairs], cut_gates(gates, slice(a, b), pairs), chunk_size=4, state=state, **options
        )
        options = {"norm": keywords["norm"]} if "norm" in keywords else {}
        outputs.append(y)
    assert relative(torch.cat(outputs, 1), whole) < 1e-12
    for got, want in zip(pytree.tree_leaves(state.weights), pytree.tree_leaves(end.weights), strict=True):
        assert relative(got, want) < 1e-12


@pytest.mark.parametrize("spec", [presets.get(name) for name in presets.PRESETS] + [presets.memora(chunk="dual")], ids=str)
def test_a_packed_batch_equals_the_sequences_one_by_one(spec):
    q, k, v, gates, keywords = draw(spec, B=1, T=40, V=5, grad=True)
    n = v.shape[1] // q.shape[1]
    bounds = [0, 3, 4, 12, 31, 40]
    y, state = memorize(spec, q, k, v, gates, chunk_size=4, cu_seqlens=torch.tensor(bounds), **keywords)
    alone, ends = [], []
    for a, b in itertools.pairwise(bounds):
        pairs = slice(a * n, b * n)
        keys = None if k is None else k[:, pairs]
        out, end = memorize(spec, q[:, a:b], keys, v[:, pairs], cut_gates(gates, slice(a, b), pairs), chunk_size=4, **keywords)
        alone.append(out)
        ends.append(end)
    assert relative(y, torch.cat(alone, 1)) < 1e-12
    named = leaves(q, k, v, gates, keywords)
    mark = torch.randn_like(y)
    together = torch.autograd.grad((y * mark).sum(), list(named.values()), allow_unused=True, retain_graph=True)
    apart = torch.autograd.grad((torch.cat(alone, 1) * mark).sum(), list(named.values()), allow_unused=True)
    assert all(relative(a, b) < TOLERANCE for a, b in zip(together, apart, strict=True) if b is not None)
    if spec.name != "transformer":
        for i, end in enumerate(ends):
            for got, want in zip(pytree.tree_leaves(state.weights), pytree.tree_leaves(end.weights), strict=True):
                assert relative(got[i : i + 1], want) < 1e-12
    # rows now stand at different places of their chunks, and go on from there, one by one or together
    more = draw(spec, B=1, T=15, V=5, seed=3)
    onward, _ = memorize(
        spec, *more[:4], chunk_size=4, cu_seqlens=torch.tensor([0, 3, 6, 9, 12, 15]), state=state, norm=keywords.get("norm")
    )
    for i, end in enumerate(ends):
        tokens, pairs = slice(3 * i, 3 * i + 3), slice(3 * i * n, (3 * i + 3) * n)
        keys = None if more[1] is None else more[1][:, pairs]
        want, _ = memorize(
            spec,
            more[0][:, tokens],
            keys,
            more[2][:, pairs],
            cut_gates(more[3], tokens, pairs),
            chunk_size=4,
            state=end,
            norm=keywords.get("norm"),
        )
        assert relative(onward[:, tokens], want) < 1e-12


@pytest.mark.parametrize("name", presets.PRESETS)
def test_an_empty_sequence_in_a_packed_batch_keeps_its_state(name):
    spec = presets.get(name)
    first, second = draw(spec, B=1, T=12), draw(spec, B=1, T=9, seed=3)
    norm = {"norm": first[4]["norm"]} if "norm" in first[4] else {}
    second = (*second[:3], second[3]._replace(ridge=first[3].ridge))
    _, state = memorize(spec, *first[:4], chunk_size=4, cu_seqlens=torch.tensor([0, 0, 5, 12]), **first[4])
    y, end = memorize(spec, *second, chunk_size=4, cu_seqlens=torch.tensor([0, 9, 9, 9]), state=state, **norm)
    want, alone = memorize(spec, *second, chunk_size=4, **first[4])
    assert relative(y, want) < 1e-12
    for got, own, before in zip(*(pytree.tree_leaves(s.weights) for s in (end, alone, state)), strict=True):
        if spec.name != "transformer":  # whose cache is filled up on the left
            assert relative(got[:1], own) < 1e-12 and relative(got[1:], before[1:]) < 1e-12


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_prefix_does_not_change_with_what_follows(name):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, T=20, V=5)
    n = v.shape[1] // q.shape[1]
    y, _ = memorize(spec, q, k, v, gates, chunk_size=8, **keywords)
    q2, k2, v2, gates2, _ = draw(spec, T=20, V=5, seed=5)
    for cut in (3, 8, 13):
        pairs = slice(cut * n, None)
        other = [q.clone(), None if k is None else k.clone(), v.clone()]
        for mine, theirs, where in zip(other, (q2, k2, v2), (slice(cut, None), pairs, pairs), strict=True):
            if mine is not None:
                mine[:, where] = theirs[:, where]
        changed = {}
        for gate, theirs in zip(gates._asdict().items(), gates2, strict=True):
            if gate[1] is not None:
                changed[gate[0]] = gate[1].clone()
                if gate[0] != "ridge":
                    changed[gate[0]][:, pairs if gate[0] == "eta" else slice(cut, None)] = theirs[
                        :, pairs if gate[0] == "eta" else slice(cut, None)
                    ]
        again, _ = memorize(spec, *other, Gates(**changed), chunk_size=8, **keywords)
        assert relative(again[:, :cut], y[:, :cut]) < 1e-12
        assert relative(again[:, cut:], y[:, cut:]) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", presets.PRESETS)
def test_strong_decay_is_safe(name, dtype):
    """alpha down to 1e-4 and to 0, chunk 64: finite, equal to the recurrent form where that is exact, and so are gradients."""
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, B=1, T=130, H=1, K=4, dtype=dtype, eta=0.5)
    if gates.log_alpha is None:
        return
    log_alpha = gates.log_alpha.clone()
    log_alpha[:, ::2] = torch.log(torch.tensor(1e-4))
    log_alpha[:, 7] = -torch.inf if name != "hgrn2" else -50.0
    changes = {"log_alpha": log_alpha} | ({"log_beta": log_alpha} if gates.log_beta is not None else {})
    gates = gates._replace(**changes)
    v = v.requires_grad_()
    y, state = memorize(spec, q, k, v, gates, chunk_size=64, **keywords)
    assert torch.isfinite(y).all() and all(torch.isfinite(w).all() for w in pytree.tree_leaves(state.weights))
    (grad,) = torch.autograd.grad(y.float().square().sum(), v)
    assert torch.isfinite(grad).all()
    if explain(spec).exact:
        want, _ = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
        assert relative(y.float(), want.float()) < (1e-4 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_bf16_is_no_worse_than_the_recurrent_form_in_bf16(name):
    spec = dataclasses.replace(presets.get(name), chunk_size=16)
    q, k, v, gates, keywords = draw(spec, B=1, T=48, H=2, K=8, dtype=torch.bfloat16)
    double = pytree.tree_map_only(torch.Tensor, torch.Tensor.double, (q, k, v, gates, keywords))
    errors = {}
    for form in ("chunk", "recurrent"):
        want, _ = memorize(spec, *double[:4], form=form, **double[4])
        got, _ = memorize(spec, q, k, v, gates, form=form, **keywords)
        errors[form] = relative(got.double(), want)
    assert errors["chunk"] < 3 * errors["recurrent"]


def test_edges():
    spec = presets.yaad()
    for T in (0, 1):
        q, k, v, gates, keywords = draw(spec, T=T)
        y, state = memorize(spec, q, k, v, gates, **keywords)
        assert y.shape == q.shape
        assert torch.isfinite(state.weights[0]).all()
    q, k, v, gates, keywords = draw(spec, T=5)
    _, state = memorize(spec, q, k, v, gates, chunk_size=64, **keywords)
    norm = keywords["norm"]
    with pytest.raises(ValueError, match="state stands 5 tokens into its chunk, so it cannot go on with chunk_size=4"):
        memorize(spec, q, k, v, gates, chunk_size=4, state=state, norm=norm)
    with pytest.raises(ValueError, match="state stands in the middle of a chunk"):
        memorize(spec, q, k, v, gates, form="recurrent", state=state, norm=norm)
    with pytest.raises(ValueError, match="form='recurrent' has no chunks"):
        memorize(spec, q, k, v, gates, form="recurrent", chunk_size=4, **keywords)
    with pytest.raises(ValueError, match="chunk_size must be an integer >= 1"):
        memorize(spec, q, k, v, gates, chunk_size=0, **keywords)
    with pytest.raises(ValueError, match="backend 'fla' cannot run yaad"):
        memorize(spec, q, k, v, gates, backend="fla", **keywords)
    with pytest.raises(ValueError, match="backend is 'auto'"):
        memorize(spec, q, k, v, gates, backend="cuda", **keywords)


def test_an_unsplittable_momentum_is_refused():
    spec = Spec(memory=memory.Matrix(), bias=bias.Huber(), retention=retention.L2(side="key"), algorithm=algorithm.Momentum())
    q, k, v, gates, keywords = draw(spec)
    with pytest.raises(ValueError, match="channel-wise on both sides of a matrix"):
        memorize(spec, q, k, v, gates, **keywords)


def test_many_stretches_are_recomputed_and_equal_one():
    """More chunks than a stretch holds: the backward pass recomputes, values and gradients do not change."""
    for name in ("yaad", "memora", "titans_lmm", "gla"):
        spec = presets.get(name)
        arguments = draw(spec, B=1, T=70, H=1, K=3, grad=True, eta=0.05)
        slow = lambda q, k, v, gates, keywords: slow_chunk(spec, q, k, v, gates, keywords, 2)  # noqa: B023, E731
        both(spec, arguments, {"chunk_size": 2}, slow)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_spec_any_shape(data):
    """Random specs, shapes, gates and chunk sizes: the fast form is the slow loop, cut anywhere."""
    spec = data.draw(st.sampled_from(DEEP_SPECS))
    size, T, K = (data.draw(st.integers(*bounds)) for bounds in ((1, 9), (1, 20), (2, 5)))
    channelwise = data.draw(st.booleans()) and splits(spec)
    seed = data.draw(st.integers(0, 99))
    q, k, v, gates, keywords = draw(spec, B=1, T=T, H=1, K=K, channelwise=channelwise, seed=seed)
    y, state = memorize(spec, q, k, v, gates, chunk_size=size, **keywords)
    want, end = slow_chunk(spec, q, k, v, gates, keywords, size)
    assert relative(y, want) < TOLERANCE
    assert all(
        relative(a, b) < TOLERANCE
        for a, b in zip(pytree.tree_leaves(state.weights), pytree.tree_leaves(end.weights), strict=True)
    )
