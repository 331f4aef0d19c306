"""Rotary positions in one pass, in Triton's interpreter or on a GPU, against float64."""

import pytest

pytest.importorskip("triton")

import torch

from comparison import by_either_way
from devices import DEVICE
from miras.nn import MirasLayer, SlidingWindowAttention
from miras.nn import functional as module
from miras.nn.functional import turned, turns

pytestmark = pytest.mark.gpu


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def results(x, angles, outer, fused, monkeypatch):
    monkeypatch.setattr(module, "worth_fusing", lambda x: fused)
    y = turned(x, *angles)
    return [y, *torch.autograd.grad(y, x, outer.to(y.dtype))]


def compared(x, positions, monkeypatch):
    angles, outer = turns(positions, x.shape[-1], 1e4, x.dtype), torch.randn(x.shape, device=DEVICE).to(x.dtype)
    got = results(x, angles, outer, True, monkeypatch)
    want = results(x.detach().double().requires_grad_(), angles, outer, False, monkeypatch)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == x.dtype and a.shape == b.shape
        assert (a.double() - b).norm() <= max(torch.finfo(x.dtype).eps, 3e-7) * b.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 7, 3, 20), (2, 40, 2, 64)])
def test_values_and_gradients(shape, dtype, monkeypatch):
    """Rows that share their positions, and rows that stand at their own, far from the first."""
    time = torch.arange(shape[1], device=DEVICE)
    compared(draw(*shape, dtype=dtype), time[None], monkeypatch)
    compared(draw(*shape, dtype=dtype), torch.arange(shape[0], device=DEVICE)[:, None] * 100_000 + time, monkeypatch)


def test_any_layout_is_read(monkeypatch):
    time = torch.arange(5, device=DEVICE)[None]
    compared(draw(2, 5, 50)[..., 7:31].unflatten(-1, (3, 8)), time, monkeypatch)
    compared(draw(2, 9, 3, 8)[:, 2:7], time, monkeypatch)
    compared(draw(2, 3, 5, 8).transpose(1, 2), time, monkeypatch)


@pytest.mark.parametrize("make", [lambda: MirasLayer(16, 2, "transformer"), lambda: SlidingWindowAttention(16, 2, window=3)])
def test_layers_give_the_same_by_either_way(make, monkeypatch):
    for plain, fused in by_either_way(module, make().to(DEVICE), draw(2, 30, 16), monkeypatch):
        assert (plain - fused).norm() <= 1e-5 * plain.norm()
