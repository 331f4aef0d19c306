"""Decay ratios: the three ways to apply them agree, and none over- or underflows."""

import pytest
import torch

from inputs import relative
from miras.forms.ratio import Blocks, Dense, Direct, channel_ratio, cumulative, products, ratio, scalar_ratio


@pytest.mark.parametrize("size", [1, 3, 8, 9, 16, 37, 64])
@pytest.mark.parametrize("decay", [0.01, 0.5, 9.2, 1000.0])
def test_blocks_and_direct_equal_dense(size, decay):
    q, k, u = torch.randn(3, 2, size, 5, dtype=torch.float64)
    total = cumulative(-decay * torch.rand(2, size, 5, dtype=torch.float64))
    dense, blocks = Dense(channel_ratio(total)), Blocks(total)
    scores = dense.scores(q, k)
    assert (blocks.scores(q, k) - scores).abs().max() < 1e-12
    assert (blocks.values(scores, u) - dense.values(scores, u)).abs().max() < 1e-12
    if decay * size < 60:
        assert (Direct(total).scores(q, k) - scores).abs().max() < 1e-12
        assert (Direct(total).values(scores, u) - dense.values(scores, u)).abs().max() < 1e-12


def test_no_alpha_is_too_small():
    """Forward and backward in float32, chunk 64, down to a total erasure."""
    for log_alpha in (-9.2, -100.0, -torch.inf):
        given = torch.full((64, 4), log_alpha).requires_grad_()
        q, k = torch.randn(2, 64, 4)
        pairs = ratio(cumulative(given))
        assert isinstance(pairs, Blocks)
        out = pairs.values(pairs.scores(q, k), k)
        (grad,) = torch.autograd.grad(out.sum(), given)
        assert torch.isfinite(out).all() and torch.isfinite(grad).all()


def test_mild_decays_take_the_short_way_on_a_cpu():
    assert isinstance(ratio(cumulative(torch.full((64, 4), -0.9))), Direct)
    assert isinstance(ratio(cumulative(torch.full((64, 4), -1.0))), Blocks)


def test_products_and_scalar_ratio_by_hand():
    factor = torch.tensor([[0.5], [0.0], [2.0]], dtype=torch.float64)
    want = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
    assert torch.equal(products(factor)[0], want)
    total = torch.tensor([[-1.0], [-3.0]], dtype=torch.float64)
    assert relative(scalar_ratio(total), torch.tensor([[1.0, 0.0], [torch.e**-2, 1.0]], dtype=torch.float64)) < 1e-7
