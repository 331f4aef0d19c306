"""A residual stream and its norm in one pass, in Triton's interpreter or on a GPU, against float64."""

import pytest

pytest.importorskip("triton")

import torch

from devices import DEVICE
from miras.kernels import norm
from miras.kernels import residual as kernel
from miras.nn import Block, MirasLayer
from miras.nn import norm as module
from miras.nn.norm import ResidualNorm

pytestmark = pytest.mark.gpu
EPS = 1e-3
HIGH, LOW = torch.float32, torch.bfloat16


def draw(*shape, dtype=HIGH):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def defined(x, branch, gain, eps, to):
    s = x if branch is None else x + branch
    return s, (gain * s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)).to(to)


def results(run, given, to, outer):
    made = run(*given, EPS, to)
    leaves = [x for x in given if x is not None]
    return [*made, *torch.autograd.grad(made, leaves, [one.to(y.dtype) for one, y in zip(outer, made, strict=True)])]


@pytest.mark.parametrize("shape", [(1, 3), (2, 3, 64), (130, 100)])
@pytest.mark.parametrize(
    ("dtype", "branch", "to"), [(HIGH, LOW, LOW), (HIGH, None, LOW), (HIGH, HIGH, HIGH), (LOW, LOW, LOW), (LOW, None, LOW)]
)
def test_values_and_gradients(shape, dtype, branch, to, monkeypatch):
    """Each is rounded once, the norm is of the sum that is kept, and both gradients of the stream arrive."""
    given = [draw(*shape, dtype=dtype), None if branch is None else draw(*shape, dtype=branch), draw(shape[-1])]
    outer = [torch.randn(*shape, device=DEVICE).to(kind) for kind in (dtype, to)]
    exact = [None if x is None else x.detach().double().requires_grad_() for x in given]
    want = results(defined, exact, torch.float64, outer)
    like = [dtype, to, *(x.dtype for x in given if x is not None)]
    for shares in (1, 1024):
        monkeypatch.setattr(norm, "SHARES", shares)
        got = results(kernel.residual, given, to, outer)
        for a, b, kind in zip(got, want, like, strict=True):
            # where the sum itself is rounded, all that is made of it starts from there
            digits = torch.finfo(LOW if dtype == LOW else kind).eps
            assert a.dtype == kind and a.shape == b.shape
            assert (a.double() - b).norm() <= max(1.5 * digits, 5e-7) * b.norm()


def test_a_stream_without_a_branch_is_not_copied():
    x = draw(2, 3, 8)
    s, _ = kernel.residual(x, None, draw(8), EPS, HIGH)
    assert s.data_ptr() == x.data_ptr() and s.grad_fn is not None


@pytest.mark.parametrize("cast", [True, False])
def test_the_module_gives_the_same_by_either_way(cast, monkeypatch):
    layer, x, branch = ResidualNorm(24, 1e-6).to(DEVICE), draw(2, 7, 24), draw(2, 7, 24, dtype=LOW if cast else HIGH)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2)
    for added in (None, branch):
        found = []
        for fused in (False, True):
            monkeypatch.setattr(module, "worth_fusing", lambda x, fused=fused: fused)
            with torch.autocast(DEVICE, LOW, enabled=cast):
                s, y = layer(x, added)
            leaves = [leaf for leaf in (x, added, layer.weight) if leaf is not None]
            found.append([s, y, *torch.autograd.grad((s * s).sum() + y.float().square().sum(), leaves)])
        for plain, fused in zip(*found, strict=True):
            assert plain.dtype == fused.dtype and (plain - fused).norm() <= (1e-2 if cast else 1e-6) * plain.norm()


def test_a_block_gives_the_same_by_either_way(monkeypatch):
    block, x = Block(MirasLayer(16, 2, "deltanet", chunk_size=4, backend="torch"), 24).to(DEVICE), draw(2, 12, 16)
    found = []
    for fused in (False, True):
        monkeypatch.setattr(module, "worth_fusing", lambda x, fused=fused: fused)
        y = torch.utils.checkpoint.checkpoint(lambda x: block(x)[0], x, use_reentrant=False) if fused else block(x)[0]
        found.append([y, *torch.autograd.grad((y * y).sum(), (x, *block.parameters()))])
    for plain, fused in zip(*found, strict=True):
        assert (plain - fused).norm() <= 1e-5 * plain.norm()


def test_what_the_kernels_take():
    x, gain = torch.zeros(1, 8), torch.ones(8)
    assert kernel.takes(x, None, gain) and kernel.takes(x, x.bfloat16(), gain)
    assert not kernel.takes(x.double(), None, gain) and not kernel.takes(x, x.double(), gain)
