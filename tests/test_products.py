"""Products whose gradients lie as their arguments do: the same numbers as torch's own, in every kind of derivative."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from miras.products import outer, times

CASES = {
    "times": (times, lambda x, w: x @ w.mT, (3, 4, 5), (3, 6, 5)),
    "outer": (outer, lambda a, b: a.mT @ b, (3, 4, 5), (3, 4, 6)),
}
# torch's own derivatives forwards are made by what it deprecates
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")


@pytest.fixture(params=CASES)
def case(request):
    product, plain, *shapes = CASES[request.param]
    generator = torch.Generator().manual_seed(0)
    return product, plain, [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_values_and_derivatives(case):
    product, plain, given = case
    assert torch.equal(product(*given), plain(*given))
    assert gradcheck(product, given, check_forward_ad=True, check_batched_grad=True) and gradgradcheck(product, given)


def test_gradients_lie_as_their_arguments_do(case):
    product, plain, given = case
    mine, torchs = (torch.autograd.grad(of(*given).square().sum(), given) for of in (product, plain))
    assert all(grad.is_contiguous() for grad in mine) and not all(grad.is_contiguous() for grad in torchs)
    assert all(map(torch.allclose, mine, torchs))


def test_one_derivative_alone(case):
    product, plain, (a, b) = case
    for given in ((a, b.detach()), (a.detach(), b)):
        leaf = next(x for x in given if x.requires_grad)
        found, wanted = (torch.autograd.grad(of(*given).square().sum(), leaf)[0] for of in (product, plain))
        assert torch.allclose(found, wanted)
    with forward_ad.dual_level():
        along = forward_ad.make_dual(a.detach(), torch.ones_like(a))
        found, wanted = (forward_ad.unpack_dual(of(along, b.detach())).tangent for of in (product, plain))
        assert torch.allclose(found, wanted)


def test_many_at_once(case):
    product, plain, given = case
    stacked = [torch.stack([x.detach(), 2 * x.detach()]) for x in given]
    assert torch.allclose(torch.func.vmap(product)(*stacked), torch.func.vmap(plain)(*stacked))
    total = lambda of: torch.func.vmap(torch.func.grad(lambda x, y: of(x, y).square().sum()))(*stacked)  # noqa: E731
    assert torch.allclose(total(product), total(plain))


def test_what_is_broadcast(case):
    """Rows that share a matrix, and matrices that share their rows, are left to torch."""
    product, plain, (a, b) = case
    for given in ((a[None], b), (a, b[:1]), (a[:, :1], b[:, :1] if plain(a, b).shape[-2] == 5 else b)):
        assert torch.equal(product(*given), plain(*given))
