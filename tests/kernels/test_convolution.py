"""The fused convolution against its definition in float64: values, all gradients, any layout, and inside the layer."""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F

from devices import DEVICE, GPU, needs_gpu
from miras.kernels import convolution as kernel
from miras.nn import MirasLayer
from miras.nn import convolution as module
from miras.nn.convolution import ShortConvolution

pytestmark = pytest.mark.gpu


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def defined(x, window, weight, silu):
    """y_t = sum_i w_i x_(t-i) by torch's own convolution."""
    y = F.conv1d(torch.cat([window, x], 1).mT, weight[:, None], groups=weight.shape[0]).mT
    return F.silu(y) if silu else y


def gradients(run, given, silu, outer):
    y = run(*given, silu)
    return [y, *torch.autograd.grad(y, given, outer.to(y.dtype))]


def compared(given, silu, tolerance, outer=None):
    """The kernel's values and gradients beside float64's, and in the dtypes of what they belong to."""
    outer = torch.randn_like(given[0]) if outer is None else outer
    got = gradients(kernel.convolution, given, silu, outer)
    want = gradients(defined, [x.detach().double().requires_grad_() for x in given], silu, outer)
    for name, a, b, like in zip(("y", "x", "window", "weight"), got, want, (given[0], *given), strict=True):
        assert a.dtype == like.dtype and a.shape == like.shape, name
        assert (a.double() - b).norm() <= tolerance * b.norm() + 1e-30, name


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize(
    ("batch", "time", "channels", "width"),
    [
        (2, 1, 3, 4),
        (1, 2, 5, 4),
        (3, 7, 33, 2),
        (1, 64, 64, 4),
        (2, 65, 131, 4),
        (1, 129, 5, 3),
        (1, 9, 70, 8),
        (1, 62, 2, 8),
        (2, 5, 6, 1),
    ],
)
def test_values_and_gradients_are_those_of_the_definition(batch, time, channels, width, silu):
    """Shorter than the window, at a stretch's end and one beyond it, channels that fill no block."""
    compared([draw(batch, time, channels), draw(batch, width - 1, channels), draw(channels, width)], silu, 3e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [torch.float32, None])
def test_sixteen_bits_are_rounded_once(dtype, weight):
    """Sums are float32: what is off is the rounding of each result, half of the last bit at most."""
    given = [draw(1, 70, 20, dtype=dtype), draw(1, 3, 20, dtype=dtype), draw(20, 4, dtype=weight or dtype)]
    compared(given, True, torch.finfo(dtype).eps / 2)


def test_views_are_read_where_they_lie():
    """Slices of wider tensors, a gradient that stands still along time, channels that are not side by side, a turned weight."""
    wide, before, tall = draw(2, 20, 50), draw(2, 9, 50), draw(4, 12)
    still, turned = draw(2, 1, 12).detach().expand(2, 15, 12), draw(2, 12, 15).detach().mT
    compared([wide[:, 3:18, 7:19], before[:, 2:5, 30:42], tall.mT], True, 3e-7, still)
    compared([draw(2, 12, 15).mT, draw(2, 12, 3).mT, draw(12, 4)], True, 3e-7, turned)


def test_an_empty_stretch_gives_nothing_and_takes_nothing():
    given = [draw(2, 0, 5), draw(2, 3, 5), draw(5, 4)]
    y, *grads = gradients(kernel.convolution, given, True, torch.zeros(2, 0, 5, device=DEVICE))
    assert y.shape == (2, 0, 5) and all(not grad.any() for grad in grads)


def test_what_is_not_finite_stays_at_its_own_tokens():
    x, window, weight = draw(1, 12, 3), draw(1, 3, 3), draw(3, 4)
    broken, dy = x.detach().clone(), torch.zeros_like(x)
    broken[:, 5], dy[:, 5] = float("inf"), float("inf")
    y = kernel.convolution(broken, window, weight, False)
    assert y[:, :5].isfinite().all() and y[:, 9:].isfinite().all() and not y[:, 5:9].isfinite().any()
    dx, dwindow, _ = torch.autograd.grad(kernel.convolution(x, window, weight, False), (x, window, weight), dy)
    assert dx[:, :2].isfinite().all() and dx[:, 6:].isfinite().all() and not dx[:, 2:6].isfinite().any() and not dwindow.any()


def test_pieces_are_the_whole(monkeypatch):
    """Through the module: the window to go on with is of what goes in, pieces shorter than the filter among them."""
    monkeypatch.setattr(module, "fuses", lambda x, weight: True)
    convolution, x, window = ShortConvolution(10, 4).to(DEVICE), draw(1, 74, 10), draw(1, 3, 10)
    whole, end = convolution(x, window, silu=True)
    pieces, at = [], window
    for piece in x.split([1, 2, 66, 1, 4], 1):
        y, at = convolution(piece, at, silu=True)
        pieces.append(y)
    assert torch.allclose(torch.cat(pieces, 1), whole, rtol=1e-6, atol=1e-6) and torch.equal(at, end)
    outer = torch.randn_like(whole)
    leaves = (x, window, convolution.weight)
    for one, other in zip(*(torch.autograd.grad(y, leaves, outer) for y in (whole, torch.cat(pieces, 1))), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("silu", [True, False])
def test_the_module_gives_the_same_by_either_way(silu, monkeypatch):
    convolution, x, window = ShortConvolution(10, 4).to(DEVICE), draw(2, 9, 10), draw(2, 3, 10)
    found = []
    for fused in (False, True):
        monkeypatch.setattr(module, "fuses", lambda x, weight, fused=fused: fused)
        y, end = convolution(x, window, silu=silu)
        found.append([y, end, *torch.autograd.grad((y * y).sum(), (x, window, convolution.weight))])
    for plain, fused in zip(*found, strict=True):
        assert torch.allclose(plain, fused, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["yaad", "gated_deltanet"])
def test_the_layer_gives_the_same_by_either_way(name, monkeypatch):
    layer, x = MirasLayer(dim=16, heads=2, spec=name, backend="torch").to(DEVICE), draw(2, 11, 16)
    assert layer.recipe.silu and layer.convolution is not None
    found = []
    for fused in (False, True):
        monkeypatch.setattr(module, "fuses", lambda x, weight, fused=fused: fused)
        y, state = layer(x[:, :2])
        rest, state = layer(x[:, 2:], state)
        total = y.square().sum() + rest.square().sum()
        found.append([y, rest, state.window, *torch.autograd.grad(total, (x, *layer.parameters()))])
    for plain, fused in zip(*found, strict=True):
        assert (plain - fused).norm() <= 1e-4 * plain.norm()


def test_only_a_gpu_fuses():
    assert not module.fuses(torch.zeros(1, 1, 1), torch.zeros(1, 4))
    if GPU:
        assert module.fuses(torch.zeros(1, 1, 1, device="cuda"), torch.zeros(1, 4, device="cuda"))


def test_what_the_kernels_take():
    x = torch.zeros(1, 1, 1)
    assert kernel.takes(x, torch.zeros(1, kernel.WIDEST)) and not kernel.takes(x, torch.zeros(1, kernel.WIDEST + 1))
    assert not kernel.takes(x.double(), torch.zeros(1, 4))


def test_deterministic():
    given = [draw(1, 70, 20), draw(1, 3, 20), draw(20, 4)]
    outer = torch.randn_like(given[0])
    first, second = (gradients(kernel.convolution, given, True, outer) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_gpu
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("channels", [96, 1000, 3072])
def test_bf16_on_a_gpu(channels, width):
    given = [draw(3, 1001, channels, dtype=torch.bfloat16), draw(3, width - 1, channels, dtype=torch.bfloat16)]
    compared([*given, draw(channels, width)], True, torch.finfo(torch.bfloat16).eps / 2)
