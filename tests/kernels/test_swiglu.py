"""SwiGLU in one pass, in Triton's interpreter or on a GPU, against float64."""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F

from devices import DEVICE
from miras.kernels import swiglu as kernel
from miras.nn import block as module
from miras.nn.block import SwiGLU

pytestmark = pytest.mark.gpu


def draw(*shape, dtype=torch.float32):
    return (2 * torch.randn(*shape, device=DEVICE)).to(dtype).requires_grad_()


def results(run, both, outer):
    y = run(both)
    return [y, *torch.autograd.grad(y, both, outer.to(y.dtype))]


def defined(both):
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


def compared(both, outer, dtype):
    got, want = results(kernel.swiglu, both, outer), results(defined, both.detach().double().requires_grad_(), outer)
    for name, a, b in zip(("y", "both"), got, want, strict=True):
        assert a.dtype == dtype and a.shape == b.shape, name
        assert (a.double() - b).norm() <= max(torch.finfo(dtype).eps, 3e-7) * b.norm(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 2), (3, 7, 40), (20, 600)])
def test_values_and_gradients(shape, dtype):
    """Of one channel, of many, of rows that fill no program; each is rounded once."""
    both = draw(*shape, dtype=dtype)
    compared(both, torch.randn(*shape[:-1], shape[-1] // 2, device=DEVICE).to(dtype), dtype)


def test_views_are_read_for_what_they_are():
    """Rows of a wider tensor, and a gradient that stands still along them."""
    compared(draw(5, 9, 50)[:, 2:7, 3:23], torch.randn(1, 1, 10, device=DEVICE).expand(5, 5, 10), torch.float32)


@pytest.mark.parametrize("cast", [True, False])
def test_the_module_gives_the_same_by_either_way(cast, monkeypatch):
    mlp, x = SwiGLU(16, 24).to(DEVICE), draw(4, 20, 16)
    found = []
    for fused in (False, True):
        monkeypatch.setattr(module, "worth_fusing", lambda x, fused=fused: fused)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=cast):
            y = mlp(x)
        found.append([y, *torch.autograd.grad(y.float().square().sum(), (x, *mlp.parameters()))])
    for plain, fused in zip(*found, strict=True):
        assert plain.dtype == fused.dtype and (plain - fused).norm() <= (2e-2 if cast else 1e-6) * plain.norm()


def test_float64_stays_with_torch(monkeypatch):
    mlp, x = SwiGLU(16, 24).double().to(DEVICE), draw(4, 20, 16).double()
    want = mlp(x)
    monkeypatch.setattr(module, "worth_fusing", lambda x: True)
    assert torch.equal(mlp(x), want)
