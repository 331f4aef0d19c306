"""RMSNorm in one pass, in Triton's interpreter or on a GPU, against float64."""

import pytest

pytest.importorskip("triton")

import torch

from devices import DEVICE
from miras.kernels import norm as kernel
from miras.nn import functional
from miras.nn import norm as module
from miras.nn.norm import RMSNorm

pytestmark = pytest.mark.gpu
EPS = 1e-3


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def defined(x, gain, eps, to):
    return (gain * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).to(to)


def results(run, x, gain, to, outer):
    y = run(x, gain, EPS, to)
    return [y, *torch.autograd.grad(y, (x, gain), outer.to(y.dtype))]


@pytest.mark.parametrize("channels", [3, 64, 100])
@pytest.mark.parametrize("rows", [(1,), (2, 3), (130,)])
@pytest.mark.parametrize(
    ("dtype", "to"),
    [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)],
)
def test_values_and_gradients(rows, channels, dtype, to, monkeypatch):
    """Each is rounded once, however the rows are shared out among programs; the interpreter cuts bf16 where a GPU rounds."""
    x, gain, outer = draw(*rows, channels, dtype=dtype), draw(channels), draw(*rows, channels, dtype=to).detach()
    exact = [t.detach().double().requires_grad_() for t in (x, gain)]
    want = results(defined, *exact, torch.float64, outer)
    for shares in (1, 1024):
        monkeypatch.setattr(kernel, "SHARES", shares)
        got = results(kernel.rms_norm, x, gain, to, outer)
        for name, a, b, like in zip(("y", "x", "gain"), got, want, (to, dtype, torch.float32), strict=True):
            assert a.dtype == like and a.shape == b.shape, name
            assert (a.double() - b).norm() <= max(torch.finfo(like).eps, 5e-7) * b.norm(), name


def test_zeros_have_finite_gradients():
    x = torch.zeros(2, 8, device=DEVICE, requires_grad=True)
    y = kernel.rms_norm(x, draw(8), 1e-6, torch.float32)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert not y.any() and dx.isfinite().all() and dx.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False])
def test_the_module_gives_the_same_by_either_way(dtype, cast, monkeypatch):
    norm, x = RMSNorm(24, 1e-6).to(DEVICE), draw(2, 7, 24, dtype=dtype)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    outer, found = torch.randn(2, 7, 24, device=DEVICE), []
    for fused in (False, True):
        monkeypatch.setattr(module, "worth_fusing", lambda x, fused=fused: fused)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=cast):
            y = norm(x)
        found.append([y, *torch.autograd.grad(y, (x, norm.weight), outer.to(y.dtype))])
    for plain, fused in zip(*found, strict=True):
        assert plain.dtype == fused.dtype
        assert (plain - fused).norm() <= (1e-6 if dtype == torch.float32 and not cast else 1e-2) * plain.norm()


def test_what_the_kernels_take():
    gain, wide = torch.ones(8), torch.ones(kernel.WIDEST + 1)
    assert kernel.takes(torch.zeros(1, 8), gain) and kernel.takes(torch.zeros(1, 8, dtype=torch.bfloat16), gain)
    assert not kernel.takes(torch.zeros(1, 8, dtype=torch.float64), gain)
    assert not kernel.takes(torch.zeros(0, 8), gain) and not kernel.takes(torch.zeros(1, kernel.WIDEST + 1), wide)


def test_deterministic():
    given, outer = (draw(300, 20), draw(20)), torch.randn(300, 20, device=DEVICE)
    first, second = (results(kernel.rms_norm, *given, torch.float32, outer) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_few_tokens_stay_with_torch(monkeypatch):
    """Launching a kernel from here costs more than the passes that it saves."""
    monkeypatch.setattr(functional, "takes_kernels", lambda x: True)
    assert functional.worth_fusing(torch.zeros(functional.LARGE)) and not functional.worth_fusing(torch.zeros(1, 1, 640))
    monkeypatch.setattr(functional, "takes_kernels", lambda x: False)
    assert not functional.worth_fusing(torch.zeros(functional.LARGE))
