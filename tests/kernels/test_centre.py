"""Centred queries and keys by kernels, in Triton's interpreter or on a GPU, against float64."""

import pytest

pytest.importorskip("triton")

import torch

from devices import DEVICE
from miras.nn import centre as module
from miras.nn.centre import centred

pytestmark = pytest.mark.gpu


def results(given, seen, outer, fused, monkeypatch):
    monkeypatch.setattr(module, "fuses", lambda x: fused)
    made = centred(*given, seen)
    return [*made, *torch.autograd.grad(made, given, [one.to(part.dtype) for one, part in zip(outer, made, strict=True)])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(2, 1, 3, 8), (2, 64, 1, 48), (3, 150, 2, 64), (1, 130, 2, 100)], ids=str)
@pytest.mark.parametrize("before", [False, True], ids=["from the start", "going on"])
def test_values_and_gradients(sizes, dtype, before, monkeypatch):
    batch, _, heads, channels = sizes
    shared = torch.randn(channels, device=DEVICE)
    q, k = (torch.nn.functional.normalize(torch.randn(*sizes, device=DEVICE) + shared, dim=-1).to(dtype) for _ in "qk")
    seen = torch.arange(batch, device=DEVICE) * 7 * before
    start = before * 3 * torch.randn(batch, heads, channels, device=DEVICE)
    given = [x.requires_grad_() for x in (q, k, start)]
    outer = [torch.randn_like(x) for x in given]
    got = results(given, seen, outer, True, monkeypatch)
    want = results([x.detach().double().requires_grad_() for x in given], seen, outer, False, monkeypatch)
    for name, a, b in zip(("q", "k", "after", "dq", "dk", "dbefore"), got, want, strict=True):
        assert a.shape == b.shape and a.is_contiguous() and a.isfinite().all()
        assert (a.double() - b).norm() <= 2 * max(torch.finfo(dtype).eps, 1e-6) * b.norm(), name


def test_all_keys_alike_have_finite_gradients(monkeypatch):
    k = torch.ones(1, 70, 1, 16, device=DEVICE) / 4
    given = [x.requires_grad_() for x in (torch.zeros_like(k), k, torch.zeros(1, 1, 16, device=DEVICE))]
    got = results(given, torch.zeros(1, dtype=torch.long, device=DEVICE), given, True, monkeypatch)
    assert all(x.isfinite().all() for x in got)
