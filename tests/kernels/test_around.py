"""A whole block with every kernel around its memory, in Triton's interpreter or on a GPU, beside plain PyTorch."""

from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch

from devices import DEVICE
from miras.kernels.convolution import Convolution
from miras.kernels.gate_link import GateLink
from miras.kernels.gated_norm import GatedNorm
from miras.kernels.heads import Heads
from miras.kernels.norm import Norm
from miras.kernels.residual import Residual
from miras.kernels.rotary import Rotary
from miras.kernels.swiglu import SwiGLU
from miras.nn import RECIPES, Block, MirasLayer, SlidingWindowAttention, convolution, functional, gates

pytestmark = pytest.mark.gpu
MIXERS = {
    name: lambda name=name: MirasLayer(16, 2, name, chunk_size=4, backend="torch")
    for name in ("yaad", "titans_lmm", "gated_deltanet", "mamba2", "hgrn2", "ttt_mlp", "rwkv7", "transformer")
} | {
    "ttt_mlp, turned": lambda: MirasLayer(
        16, 2, "ttt_mlp", chunk_size=4, backend="torch", recipe=replace(RECIPES["ttt_mlp"], rope=1e4)
    ),
    "window": lambda: SlidingWindowAttention(16, 2, window=5),
}
KINDS = (Convolution, GateLink, GatedNorm, Heads, Norm, Residual, Rotary, SwiGLU)
NAMES = {kind.__name__ + way for kind in KINDS for way in ("", "Backward")}


def results(block, x, fused, monkeypatch, cast, **options):
    monkeypatch.setattr(functional, "LARGE", 0)
    for module in (functional, convolution, gates):
        monkeypatch.setattr(module, "takes_kernels", lambda x: fused and x.numel() > 0)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=cast):
        y, state = block(x, **options)
        more, _ = block(x[:, :2], state) if not options else (y, None)
    leaves = (x, *block.parameters())
    total = y.square().sum() + more.square().sum()
    return [y, more, *torch.autograd.grad(total, leaves, allow_unused=True)]


def seen(work):
    """What the profiler saw, the functions of autograd among it, by the names of their classes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        found = work()
    return found, {event.key for event in profile.key_averages()}


def compared(name, monkeypatch, tolerance, cast=False, **options):
    block, x = Block(MIXERS[name](), 24).to(DEVICE), torch.randn(1, 40, 16, device=DEVICE, requires_grad=True)
    plain, unfused = seen(lambda: results(block, x, False, monkeypatch, cast, **options))
    fused, ran = seen(lambda: results(block, x, True, monkeypatch, cast, **options))
    assert not unfused & NAMES
    for one, other in zip(plain, fused, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == other.dtype and (one - other).norm() <= tolerance * one.norm() + 1e-7)
    return ran & NAMES


@pytest.mark.parametrize("name", MIXERS)
def test_values_and_gradients_are_the_same(name, monkeypatch):
    ran = compared(name, monkeypatch, 1e-3)
    assert {"Residual", "SwiGLU"} <= ran
    assert ("Rotary" in ran) == (name in ("ttt_mlp, turned", "transformer", "window"))
    ttt = name.startswith("ttt_mlp")
    assert ("Heads" in ran) == (ttt or name in ("yaad", "titans_lmm", "gated_deltanet", "hgrn2"))
    assert ("GatedNorm" in ran) == (ttt or name in ("yaad", "titans_lmm", "gated_deltanet", "mamba2", "rwkv7"))
    # what ran forwards ran backwards
    assert {kind + "Backward" for kind in ran if not kind.endswith("Backward")} <= ran


@pytest.mark.parametrize("name", ["yaad", "gated_deltanet", "transformer"])
def test_in_16_bits_they_are_no_further_from_float64(name, monkeypatch):
    """By norm over all results; four times as far is allowed, since the interpreter cuts bf16 where a GPU rounds."""
    block, x = Block(MIXERS[name](), 24).to(DEVICE), torch.randn(1, 40, 16, device=DEVICE, requires_grad=True)
    plain, fused = (results(block, x, way, monkeypatch, True) for way in (False, True))
    exact = results(block.double(), x.detach().double().requires_grad_(), False, monkeypatch, False)
    # no error reaches Huber's threshold here, so its gate has no gradient
    there = [i for i, one in enumerate(exact) if one.any()]
    far = [torch.stack([(found[i] - exact[i]).norm() / exact[i].norm() for i in there]).norm() for found in (plain, fused)]
    assert len(there) > 10 and 0 < far[1] <= 4 * far[0] < 1


def test_packed_sequences_too(monkeypatch):
    compared("yaad", monkeypatch, 1e-3, cu_seqlens=torch.tensor([0, 7, 8, 40], device=DEVICE))
