"""The bounded backward pass: its rule written out chunk by chunk, no change where nothing overshoots, finite where all does."""

import itertools

import pytest
import torch

from inputs import cut_gates, draw, leaves, relative
from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, retention
from miras.forms.common import spread
from miras.types import Norm

WILD = {"B": 2, "T": 24, "H": 2, "K": 4, "channelwise": False, "eta": 4.0, "decay": 0.1}
PLAIN = {
    "yaad": presets.yaad(),
    "ttt_mlp": presets.ttt_mlp(),
    "titans_lmm": presets.titans_lmm(),
    "l_p": Spec(
        memory=memory.MLP(), bias=bias.Lp(p=3), retention=retention.L2(at="previous"), algorithm=algorithm.GradientDescent()
    ),
}
DEEP = PLAIN | {
    "yaad, anchored": presets.yaad(anchor=True),
    "titans_lmm, anchored": presets.titans_lmm(anchor=True),
    "ttt_linear": presets.ttt_linear(),
    "moneta": presets.moneta(),
    "moneta, anchored": presets.moneta(anchor=True),
    "memora": presets.memora(),
    "memora, anchored": presets.memora(anchor=True),
    "memora, dual": presets.memora(chunk="dual"),
    "elastic net": Spec(
        memory=memory.MLP(), bias=bias.L2(), retention=retention.ElasticNet(), algorithm=algorithm.GradientDescent()
    ),
}


def one_chunk(spec, reads, writes, q, k, v, gates, norm):
    """A chunk from two copies of its start, (W1, W2) or (W1, W2, P1, P2), every token's weights made: y and the end."""
    start, late = [list(reads), list(writes)], [[0.0, 0.0], [0.0, 0.0]]
    outputs = []
    for t in range(q.shape[1]):
        delta = None if gates.delta is None else gates.delta[:, t, :, None, None]
        for first, state, moved in zip((reads, writes), start, late, strict=True):
            maps = spec.memory.maps(first[:2])
            prediction, trace = spec.memory.trace(maps, k[:, t, :, None], norm)
            factors = spec.memory.backprop(maps, trace, spec.bias.gradient(prediction, v[:, t, :, None], delta))
            for i, side in enumerate(spec.memory.sides):
                step = spread(side, gates.eta[:, t, :, None]) * spec.memory.gradient(factors[i])
                if gates.mu is not None:
                    step = state[2 + i] = spread(side, gates.mu[:, t, :, None]) * state[2 + i] + step
                kept = 1.0 if gates.log_alpha is None else spread(side, gates.log_alpha[:, t, :, None]).exp()
                moved[i] = kept * moved[i] + step
                state[i] = kept * state[i]
        now = tuple(state - moved for state, moved in zip(start[0], late[0], strict=False))
        outputs.append(spec.memory.recall(spec.memory.maps(now), q[:, t, :, None], norm).transpose(1, 2))
    end = [state - moved for state, moved in zip(start[1], late[1], strict=False)]
    return torch.cat(outputs, 1), (*end, *start[1][2:])


def size_of(parts):
    return torch.stack([x.square().flatten(2).sum(2) for x in parts]).sum(0).sqrt()


def by_the_rule(spec, q, k, v, gates, keywords, mark, size, bound):
    """The gradients of <y, mark> by k, v and gates, each chunk's adjoint by hand; and how often it was cut."""
    rows = q.shape[0]
    norm = Norm(*(x[:, None] for x in keywords["norm"]))
    state = tuple(w.detach().expand(rows, *w.shape) for w in keywords["weights"])
    state += tuple(map(torch.zeros_like, state)) if gates.mu is not None else ()
    starts, cuts = [], [slice(left, left + size) for left in range(0, q.shape[1], size)]
    for cut in cuts:
        starts.append(state)
        with torch.no_grad():
            _, state = one_chunk(spec, state, state, q[:, cut], k[:, cut], v[:, cut], cut_gates(gates, cut, cut), norm)
    adjoint, tally, times = [torch.zeros_like(x) for x in state], torch.zeros(rows, q.shape[2]).to(q), 0
    found = []
    for start, cut in reversed(list(zip(starts, cuts, strict=True))):
        own = [x.detach()[:, cut].requires_grad_() for x in (k, v, *(g for g in gates if g is not None))]
        given = iter(own[2:])
        part = Gates(*(None if g is None else next(given) for g in gates))
        reads, writes = ([x.detach().clone().requires_grad_() for x in start] for _ in range(2))
        y, end = one_chunk(spec, reads, writes, q[:, cut], *own[:2], part, norm)
        total = (y * mark[:, cut]).sum() + sum((a * b).sum() for a, b in zip(end, adjoint, strict=True))
        grads = torch.autograd.grad(total, [*reads, *writes, *own], allow_unused=True, materialize_grads=True)
        n = len(start)
        tally = tally + size_of(grads[:n])
        whole = [a + b for a, b in zip(grads[:n], grads[n : 2 * n], strict=True)]
        share = (bound * tally / size_of(whole)).clamp(max=1.0)
        times += int((share < 1).sum())
        adjoint = [share[..., None, None] * x for x in whole]
        found.append(grads[2 * n :])
    return [torch.cat(x[::-1], 1) for x in zip(*found, strict=True)], times


def marked(spec, arguments, **how):
    """The gradients of a fixed random mixture of the outputs, by name, and the outputs."""
    q, k, v, gates, keywords = arguments
    y, _ = memorize(spec, q, k, v, gates, **keywords, **how)
    mark = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    named = leaves(*arguments)
    return dict(zip(named, torch.autograd.grad((y * mark).sum(), list(named.values())), strict=True)), y, mark


@pytest.mark.parametrize("bound", [1.0, 0.3])
@pytest.mark.parametrize("name", PLAIN)
def test_it_is_the_rule(name, bound):
    spec = PLAIN[name]
    arguments = draw(spec, grad=True, **WILD)
    q, k, v, gates, keywords = arguments
    got, _, mark = marked(spec, arguments, chunk_size=4, backward_bound=bound)
    free, _, _ = marked(spec, arguments, chunk_size=4)
    want, times = by_the_rule(spec, q, k, v, gates, keywords, mark, 4, bound)
    assert times > 0, "nothing was cut, so nothing is tested"
    names = ["k", "v", *(n for n, g in gates._asdict().items() if g is not None)]
    for name, x in zip(names, want, strict=True):
        assert relative(got[name], x) < 1e-9, name
    assert max(relative(free[name], x) for name, x in zip(names, want, strict=True)) > 1e-3


@pytest.mark.parametrize("name", DEEP)
def test_a_wide_bound_changes_nothing(name):
    spec = DEEP[name]
    arguments = draw(spec, grad=True, B=2, T=13, H=2, K=4, eta=0.05)
    free, y, _ = marked(spec, arguments, chunk_size=4)
    bounded, same, _ = marked(spec, arguments, chunk_size=4, backward_bound=1e6)
    assert torch.equal(y, same)
    assert all(relative(bounded[name], free[name]) < 1e-9 for name in free)


@pytest.mark.parametrize("name", ["yaad", "yaad, anchored", "ttt_mlp", "ttt_linear", "memora", "memora, anchored"])
def test_descent_that_does_not_overshoot_is_not_touched(name):
    spec = DEEP[name]
    arguments = draw(spec, grad=True, B=2, T=32, H=2, K=4, eta=0.005)
    free, bounded = (marked(spec, arguments, chunk_size=4, **how)[0] for how in ({}, {"backward_bound": 1.0}))
    assert all(relative(bounded[name], free[name]) < 1e-9 for name in free)


@pytest.mark.parametrize("name", ["yaad", "yaad, anchored", "titans_lmm", "memora, dual"])
def test_what_explodes_does_not_any_more(name):
    """Steps far too long, over 64 chunks of keys all alike."""
    spec = DEEP[name]
    q, k, v, gates, keywords = draw(spec, B=1, T=512, H=1, K=4, channelwise=False, eta=8.0, decay=0.2, grad=True)
    given = (q, ((k + 3) / 6).detach().requires_grad_(), v, gates, keywords)
    free, bounded = (marked(spec, given, chunk_size=8, **how)[0] for how in ({}, {"backward_bound": 1.0}))
    largest = lambda found: max(float(x.norm()) for x in found.values())  # noqa: E731
    assert all(x.isfinite().all() for x in bounded.values())
    assert largest(bounded) < 1e6
    assert not largest(free) < 1e3 * largest(bounded)


@pytest.mark.parametrize("name", ["yaad", "titans_lmm", "moneta", "memora"])
def test_many_stretches_and_rows_of_different_lengths(name):
    """Recomputed stretches and packed sequences, each held to its own reads."""
    spec, bounds = DEEP[name], [0, 9, 13, 60]
    arguments = draw(spec, grad=True, **WILD | {"B": 1, "T": 60, "eta": 0.5 if name == "memora" else 2.0})
    q, k, v, gates, keywords = arguments
    got, _, mark = marked(spec, arguments, chunk_size=1, backward_bound=1.0, cu_seqlens=torch.tensor(bounds))
    named = leaves(*arguments)
    total = 0.0
    for left, right in itertools.pairwise(bounds):
        at = slice(left, right)
        y, _ = memorize(
            spec, q[:, at], k[:, at], v[:, at], cut_gates(gates, at, at), **keywords, chunk_size=1, backward_bound=1.0
        )
        total = total + (y * mark[:, at]).sum()
    want = dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))
    assert all(relative(got[name], want[name]) < 1e-9 for name in want)


def test_the_exact_forms_have_nothing_to_bound():
    spec = presets.gated_deltanet()
    arguments = draw(spec, grad=True, eta=1.0)
    free, bounded = (marked(spec, arguments, chunk_size=4, **how)[0] for how in ({}, {"backward_bound": 1.0}))
    assert all(torch.equal(bounded[name], free[name]) for name in free)


def test_no_bound_at_all_is_refused():
    q, k, v, gates, keywords = draw(presets.yaad())
    with pytest.raises(ValueError, match=r"backward_bound is None or a number > 0, got 0.0"):
        memorize(presets.yaad(), q, k, v, gates, **keywords, backward_bound=0.0)
