"""Steps shared among keys alike in one pass each way, in Triton's interpreter or on a GPU, against float64.

The interpreter has no products of 16-bit numbers: those are for a GPU, and a GPU has no room for others.
"""

import dataclasses

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F

from comparison import by_either_way
from devices import DEVICE, needs_gpu
from miras import presets
from miras.kernels import shared_steps
from miras.nn import MirasLayer, recipe_of
from miras.nn import shared_steps as module
from miras.nn.shared_steps import Recent, Sum, shared

pytestmark = pytest.mark.gpu
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
SHAPES = [((1, 150, 2, 64), 64, 63), ((1, 130, 1, 48), 1, 39), ((1, 1, 1, 48), 48, 3), ((2, 70, 2, 96), 96, 15)]
# heads of other widths are left to PyTorch on a GPU
NARROW = [((1, 1, 1, 16), 16, 3), ((2, 70, 2, 20), 20, 15), ((1, 9, 1, 4), 4, 0)]


def results(k, eta, over, lead, outer, fused, monkeypatch):
    monkeypatch.setattr(module, "worth_fusing", lambda x: fused)
    y = shared(Recent(k, eta), over, lead)
    return [y, *torch.autograd.grad(y, (k, eta), outer.to(y.dtype))]


def smooth(k, eta, over, lead):
    """0 where steps add up to so nearly the most that rounding decides whether they share: there the gradient jumps."""
    before = (0, 0, 0, 0, over.width - lead, 0)
    crowd = module.crowding(F.pad(k, before), F.pad(eta / over.unit, before), over.width)
    return (crowd / over.most - 1).abs() > 2**-5


def compared(shape, steps, width, lead, monkeypatch, dtype=DTYPE, lean=True):
    """Relative to what float64 finds from the same numbers."""
    k = F.normalize(torch.randn(shape, device=DEVICE) + 1, dim=-1).to(dtype).requires_grad_()
    eta = torch.rand(*shape[:3], steps, device=DEVICE).to(dtype if lean else torch.float32).requires_grad_()
    assert shared_steps.takes(k, eta, width)
    over, exact = Sum(1.5, 0.7, width), [x.detach().double().requires_grad_() for x in (k, eta)]
    outer = smooth(*exact, over, lead) * torch.randn(shape[0], shape[1] - lead, shape[2], steps, device=DEVICE).to(eta.dtype)
    got = results(k, eta, over, lead, outer, True, monkeypatch)
    want = results(*exact, over, lead, outer, False, monkeypatch)
    for a, b, like in zip(got, want, (eta, k, eta), strict=True):
        assert a.dtype == like.dtype and a.shape == b.shape
        assert (a.double() - b).norm() <= 2 * max(torch.finfo(dtype).eps, 5e-7) * b.norm()


@pytest.mark.parametrize("lead", [False, True])
@pytest.mark.parametrize(("shape", "steps", "width"), SHAPES + (NARROW if DEVICE == "cpu" else []))
def test_values_and_gradients(shape, steps, width, lead, monkeypatch):
    shape = (shape[0], shape[1] + lead * width, *shape[2:])
    compared(shape, steps, width, lead * width, monkeypatch)


@needs_gpu
def test_steps_of_more_digits_than_their_keys(monkeypatch):
    compared((1, 80, 1, 64), 64, 31, 0, monkeypatch, torch.bfloat16, lean=False)


@needs_gpu
@pytest.mark.parametrize("channels", shared_steps.WIDTHS)
def test_real_sizes(channels, monkeypatch):
    compared((4, 2048 + 17, 8, channels), channels, 63, 0, monkeypatch)
    compared((2, 2048 + 63, 8, channels), 1, 63, 63, monkeypatch)


@pytest.mark.skipif(DEVICE == "cuda", reason="a layer in float32 shares its steps by PyTorch there")
def test_layers_give_the_same_by_either_way(monkeypatch):
    spec = presets.get("titans_lmm")
    recipe = recipe_of(spec)
    long = tuple(dataclasses.replace(gate, start=1.9, limit=2.0) if gate.name == "eta" else gate for gate in recipe.gates)
    recipe = dataclasses.replace(recipe, gates=long, step_sum=2.0)
    layer = MirasLayer(32, 2, spec, recipe=recipe, chunk_size=16).to(DEVICE)
    x = torch.randn(2, 40, 32, device=DEVICE, requires_grad=True)
    for plain, fused in by_either_way(module, layer, x, monkeypatch):
        assert (plain - fused).norm() <= 1e-4 * plain.norm() + 1e-7


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_no_number_stays_in_its_sequence(monkeypatch):
    """Zeros as long as a token sees lie between two sequences; behind them nothing of a NaN is left."""
    k = F.normalize(torch.randn(1, 60, 1, 48, device=DEVICE) + 1, dim=-1).to(DTYPE)
    eta = torch.rand(1, 60, 1, 48, device=DEVICE).to(DTYPE)
    eta[:, 15:30] = 0
    for what in (torch.nan, torch.inf):
        bad = [x.clone() for x in (k, eta)]
        for x in bad:
            x[:, 7] = what
        for fused in (False, True):
            monkeypatch.setattr(module, "worth_fusing", lambda x, fused=fused: fused)
            found, want = (shared(Recent(*pair), Sum(1.5, 0.7, 15), 0) for pair in (bad, (k, eta)))
            assert not found[:, 7].isfinite().any() and torch.equal(found[:, 30:], want[:, 30:])
