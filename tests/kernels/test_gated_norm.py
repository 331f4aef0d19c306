"""The norm and the gate behind a memory in one pass, in Triton's interpreter or on a GPU, against float64."""

import pytest

pytest.importorskip("triton")

import torch

from devices import DEVICE
from miras.kernels import gated_norm as kernel
from miras.kernels import norm
from miras.nn import MirasLayer
from miras.nn import norm as module
from miras.nn.norm import OUTPUT_GATES

pytestmark = pytest.mark.gpu
EPS = 1e-3


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def defined(y, gain, gate, eps, curve):
    unit = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (gain * unit).flatten(-2) * OUTPUT_GATES[curve](gate)


def results(run, given, curve, outer):
    out = run(*given, EPS, curve)
    return [out, *torch.autograd.grad(out, given, outer.to(out.dtype))]


def compared(given, curve, outer):
    got = results(kernel.gated_norm, given, curve, outer)
    want = results(defined, [x.detach().double().requires_grad_() for x in given], curve, outer)
    for name, a, b, like in zip(("out", "y", "gain", "gate"), got, want, (given[0], *given), strict=True):
        assert a.dtype == like.dtype and a.shape == b.shape, name
        assert (a.double() - b).norm() <= max(torch.finfo(a.dtype).eps, 5e-7) * b.norm(), name


def test_the_curves_are_the_layers():
    assert set(kernel.CURVES) == set(OUTPUT_GATES)


@pytest.mark.parametrize("curve", kernel.CURVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 5, 3, 20), (2, 40, 2, 64)])
def test_values_and_gradients(shape, dtype, curve, monkeypatch):
    """Each is rounded once, however the rows are shared out; the gate lies beside others, as one product leaves it."""
    *tokens, heads, channels = shape
    wide = draw(*tokens, heads * channels + 7, dtype=dtype)
    given = [draw(*shape, dtype=dtype), draw(channels), wide[..., 4 : 4 + heads * channels]]
    outer = torch.randn(*tokens, heads * channels, device=DEVICE).to(dtype)
    for shares in (1, 1024):
        monkeypatch.setattr(norm, "SHARES", shares)
        compared(given, curve, outer)


def test_any_layout_is_read():
    y, gate = draw(2, 3, 5, 4).transpose(1, 2), draw(2, 12, 5).mT
    compared([y, draw(4), gate], "silu", torch.randn(1, 1, 12, device=DEVICE).expand(2, 5, 12))


@pytest.mark.parametrize("name", ["yaad", "gated_deltanet"])
def test_the_layer_gives_the_same_by_either_way(name, monkeypatch):
    layer, x = MirasLayer(16, 2, name, chunk_size=4, backend="torch").to(DEVICE), draw(4, 12, 16)
    with torch.no_grad():
        layer.norm.weight.uniform_(0.5, 2)

    def results(fused, cast):
        monkeypatch.setattr(module, "worth_fusing", lambda x: fused)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=cast):
            y, _ = layer(x)
        return [y, *torch.autograd.grad(y.float().square().sum(), (x, *layer.parameters()))]

    exact, plain = results(False, False), results(False, True)
    for own, reference in zip(results(True, False), exact, strict=True):
        assert own.dtype == reference.dtype and (own - reference).norm() <= 1e-4 * reference.norm()
    # in 16 bits both round, each in its own order
    for own, other, reference in zip(results(True, True), plain, exact, strict=True):
        assert own.dtype == other.dtype
        assert (own - reference).norm() <= 2 * (other - reference).norm() + 3e-2 * reference.norm()


def test_a_norm_with_a_hook_is_called(monkeypatch):
    layer, x = MirasLayer(16, 2, "gated_deltanet", backend="torch").to(DEVICE), draw(1, 12, 16)
    want, heard = layer(x)[0], []
    layer.norm.register_forward_hook(lambda module, args, out: heard.append(out.shape))
    monkeypatch.setattr(module, "worth_fusing", lambda x: True)
    assert torch.allclose(layer(x)[0], want, atol=1e-6) and heard == [(1, 12, 2, 8)]


def test_deterministic():
    given, outer = [draw(70, 3, 20), draw(20), draw(70, 60)], torch.randn(70, 60, device=DEVICE)
    first, second = (results(kernel.gated_norm, given, "silu", outer) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
