"""The l_q links."""

import pytest
import torch

from miras import retention


@pytest.mark.parametrize("q", [3.0, 4.0, 5.0])
def test_the_exact_link_of_large_numbers_is_finite(q):
    """It is homogeneous of degree one, so that no power need overflow: of weights, slope and gradients."""
    kept, a = retention.Lq(q=q, link="exact"), torch.randn(1, 1, 6, 5, generator=torch.Generator().manual_seed(0))
    large = (1e12 * a).requires_grad_()
    weight = kept.to_weight(large)
    torch.testing.assert_close(weight / 1e12, kept.to_weight(a), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(kept.slope(large), kept.slope(a), rtol=1e-5, atol=1e-7)
    assert torch.autograd.grad(weight.sum(), large)[0].isfinite().all()
