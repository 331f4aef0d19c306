"""Heads of projections that lie side by side, in Triton's interpreter or on a GPU, against float64."""

import pytest

pytest.importorskip("triton")

import torch

from comparison import by_either_way
from devices import DEVICE
from miras import presets
from miras.nn import MirasLayer, recipe_of
from miras.nn import heads as module
from miras.nn.heads import Part, fuses, heads_of, parts_of

pytestmark = pytest.mark.gpu
# q scaled to a length, k of another number of heads, v of other channels: as it is, scaled to unit RMS, and q alone left out
CASES = {
    "yaad": parts_of(recipe_of(presets.yaad()), 3, 20, 20, 1, False),
    "scaled": (Part(2, 8, 0.3, 1e-3), Part(4, 8, 1.5, 1e-6), Part(4, 5)),
    "tied": (Part(2, 8), Part(2, 33, 1.0, 1e-3)),
}


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def results(joined, parts, outer, fused, monkeypatch):
    monkeypatch.setattr(module, "worth_fusing", lambda x: fused)
    made = heads_of(joined, parts)
    return [*made, *torch.autograd.grad(made, joined, [one.to(part.dtype) for one, part in zip(outer, made, strict=True)])]


def compared(joined, parts, monkeypatch):
    outer = [torch.randn(*joined.shape[:-1], part.heads, part.channels, device=DEVICE).to(joined.dtype) for part in parts]
    got = results(joined, parts, outer, True, monkeypatch)
    want = results(joined.detach().double().requires_grad_(), parts, outer, False, monkeypatch)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == joined.dtype and a.shape == b.shape and a.is_contiguous()
        assert (a.double() - b).norm() <= max(torch.finfo(a.dtype).eps, 5e-7) * b.norm()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [(1, 1), (2, 35)])
def test_values_and_gradients(name, dtype, tokens, monkeypatch):
    parts = CASES[name]
    compared(draw(*tokens, sum(part.width for part in parts), dtype=dtype), parts, monkeypatch)


def test_any_layout_is_read(monkeypatch):
    parts = CASES["scaled"]
    width = sum(part.width for part in parts)
    compared(draw(2, 9, width + 5)[:, 2:7, 3 : 3 + width], parts, monkeypatch)
    compared(draw(2, width, 5).mT, parts, monkeypatch)


def test_zeros_have_finite_gradients(monkeypatch):
    parts, joined = (Part(1, 4, 0.5, 1e-6 / 4),), torch.zeros(1, 2, 4, device=DEVICE, requires_grad=True)
    (y, dx) = results(joined, parts, [torch.ones(1, 2, 1, 4, device=DEVICE)], True, monkeypatch)
    assert not y.any() and dx.isfinite().all() and dx.any()


def test_a_part_without_a_gradient_gives_zeros(monkeypatch):
    monkeypatch.setattr(module, "worth_fusing", lambda x: True)
    parts, joined = CASES["yaad"], draw(1, 5, 180)
    q, _, _ = heads_of(joined, parts)
    (dx,) = torch.autograd.grad(q.sum(), joined)
    assert dx[..., :60].any() and not dx[..., 60:].any()


def test_where_there_is_nothing_to_gain_torch_takes_views(monkeypatch):
    monkeypatch.setattr(module, "worth_fusing", lambda x: True)
    x = draw(1, 5, 16)
    assert fuses(x, CASES["tied"])
    assert not fuses(x, (Part(2, 8),)) and not fuses(x, (Part(1, 8, 1.0, 1e-6), Part(1, 8, positive=True)))
    assert heads_of(x.double(), (Part(2, 8, 1.0, 1e-6),))[0].dtype == torch.float64


@pytest.mark.parametrize("name", ["yaad", "gated_deltanet", "ttt_mlp", "delta_product"])
def test_the_layer_gives_the_same_by_either_way(name, monkeypatch):
    layer, x = MirasLayer(16, 2, name, chunk_size=4, backend="torch").to(DEVICE), draw(3, 20, 16)
    for plain, fused in by_either_way(module, layer, x, monkeypatch, cut=17, kept=lambda state: (state.window,)):
        assert (plain - fused).norm() <= 1e-4 * plain.norm()
