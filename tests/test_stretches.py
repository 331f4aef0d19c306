"""Calls whose stretches are computed again in the backward pass: the same values and gradients, for less memory."""

import pytest
import torch

from comparison import gradients, on_device, tame
from inputs import draw, leaves, relative, tensors
from miras import Spec, algorithm, bias, memorize, memory, presets, retention
from miras.stretches import _ends

SPECS = {name: presets.get(name) for name in presets.PRESETS if name != "transformer"} | {
    "yaad, anchored": presets.yaad(anchor=True),
    "memora, anchored": presets.memora(anchor=True),
    "two pairs a token": Spec(
        memory=memory.MLP(), bias=bias.L2(), retention=retention.Keep(), algorithm=algorithm.MultiStep(n=2)
    ),
}


def results(spec, arguments, **how):
    """Outputs, everything the outgoing state holds, and every gradient."""
    q, k, v, gates, keywords = arguments
    y, state = memorize(spec, q, k, v, gates, **keywords, **how)
    made = {"y": y} | {f"state {i}": x for i, x in enumerate(tensors(state)) if x.is_floating_point()}
    flowing = {name: x for name, x in made.items() if x.requires_grad}
    return made | {f"d{name}": x for name, x in gradients(flowing, leaves(*arguments)).items()}, state


def same(spec, arguments, recompute, tolerance=1e-12, **how):
    found, state = results(spec, arguments, recompute=recompute, **how)
    wanted, other = results(spec, arguments, **how)
    if getattr(other, "chunk", None) is None and getattr(state, "chunk", None) is not None:
        assert not state.chunk.position.any()
        wanted, found = ({n: x for n, x in each.items() if "state" not in n} for each in (wanted, found))
    assert found.keys() == wanted.keys()
    wrong = {name: relative(found[name], want) for name, want in wanted.items()}
    assert {name: error for name, error in wrong.items() if not error <= tolerance} == {}


@pytest.mark.parametrize("name", SPECS)
def test_rows_of_a_batch(name):
    same(SPECS[name], draw(SPECS[name], T=22, grad=True), 8, chunk_size=4)


@pytest.mark.parametrize("name", SPECS)
def test_packed_sequences(name):
    """Sequences that a stretch holds whole, one that takes several, empty ones, and an end in the middle of a chunk."""
    bounds = torch.tensor([0, 3, 3, 5, 21, 29, 34, 34])
    same(SPECS[name], draw(SPECS[name], B=1, T=34, grad=True), 8, chunk_size=4, cu_seqlens=bounds)


def test_a_state_in_the_middle_of_a_chunk():
    spec = presets.yaad()
    first, (q, k, v, gates, keywords) = draw(spec, T=6), draw(spec, T=23, grad=True, seed=1)
    _, state = memorize(spec, *first[:4], chunk_size=4, **first[4])
    same(spec, (q, k, v, gates, {"norm": keywords["norm"], "state": state}), 9, chunk_size=4)


def test_token_by_token():
    same(presets.yaad(), draw(presets.yaad(), T=9, grad=True), 2, form="recurrent")


@pytest.mark.parametrize("bounds", [None, [0, 7, 60, 60, 90]])
@pytest.mark.parametrize("name", ["yaad, anchored", "titans_lmm", "moneta", "memora", "ttt_linear"])
def test_by_the_kernels(name, bounds):
    spec = SPECS[name]
    arguments = on_device(tame(spec, B=2 if bounds is None else 1, T=90, H=1, K=16), torch.float32)
    packed = None if bounds is None else torch.tensor(bounds)
    same(spec, arguments, 40, tolerance=2e-5, chunk_size=16, backend="triton", cu_seqlens=packed)


def test_stretches_end_where_chunks_do():
    assert _ends([0, 100], [0], 16, 40, 1) == [32, 64, 100]
    assert _ends([0, 100], [6], 16, 40, 1) == [26, 58, 90, 100]
    assert _ends([0, 50, 100], [0, 0], 16, 40, 1) == [32, 66, 100]
    # too little of the second sequence for a chunk: it waits for the next stretch
    assert _ends([0, 38, 100], [0, 0], 16, 40, 1) == [38, 70, 100]
    assert _ends([0, 100], [0], 16, 40, 2) == [40, 80, 100]
    assert _ends([0, 30], [0], 16, 40, 1) == [30]


class Kept:
    """Bytes of tensors that autograd keeps for the backward pass, each storage once."""

    def __init__(self):
        self.storages = {}

    def __enter__(self):
        def pack(x):
            self.storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
        self.hooks.__enter__()
        return self

    def __exit__(self, *exception):
        self.hooks.__exit__(*exception)

    def total(self):
        return sum(self.storages.values())


def test_only_states_are_kept():
    """Of eight stretches the kernels' backward pass finds eight states, where it found what all tokens left."""
    spec, kept = presets.titans_lmm(), []
    q, k, v, gates, keywords = on_device(tame(spec, B=1, T=512, H=1, K=16), torch.float32)
    for recompute in (None, 64):
        with Kept() as found:
            memorize(spec, q, k, v, gates, chunk_size=16, backend="triton", recompute=recompute, **keywords)
        kept.append(found.total())
    state = 2 * 2 * 64 * 16 * 4
    assert kept[0] > 32 * state and kept[1] < 8 * 3 * state


def test_nothing_is_cut_where_no_gradient_is_asked_for():
    spec = presets.yaad()
    q, k, v, gates, keywords = draw(spec, T=22)
    y, state = memorize(spec, q, k, v, gates, chunk_size=4, **keywords)
    again, end = memorize(spec, q, k, v, gates, chunk_size=4, recompute=4, **keywords)
    assert torch.equal(y, again) and all(map(torch.equal, tensors(state), tensors(end)))


def test_what_is_refused():
    q, k, v, gates, keywords = draw(presets.yaad())
    with pytest.raises(ValueError, match="recompute must be at least a chunk of 4 tokens, got 3"):
        memorize(presets.yaad(), q, k, v, gates, chunk_size=4, recompute=3, **keywords)
    with pytest.raises(ValueError, match="recompute must be an integer of 1 or more, or None, got 0"):
        memorize(presets.yaad(), q, k, v, gates, recompute=0, **keywords)
    with pytest.raises(ValueError, match="keeps all pairs: leave it out"):
        memorize(presets.transformer(), q, k, v, recompute=64)


def test_stretches_of_the_chunk_form_within_them():
    """The chunk form keeps no more than sixteen chunks by itself: fifty in a stretch are computed again once more."""
    spec = presets.yaad()
    same(spec, draw(spec, B=1, T=210, H=1, K=3, grad=True, eta=0.05), 100, chunk_size=2)
