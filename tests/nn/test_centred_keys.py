"""Keys less their mean: the definition, token by token; what they share is gone."""

import pytest
import torch
import torch.nn.functional as F

from miras.nn.centre import centred, none_read
from miras.nn.packing import Places


def drawn(*shape, shared=0.0):
    """Queries and keys of unit length, with a part that is the same in all keys."""
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, *shape, generator=draw, dtype=torch.float64)
    return F.normalize(q, dim=-1), F.normalize(k + shared * torch.randn(shape[-1], generator=draw, dtype=torch.float64), dim=-1)


def by_definition(q, k):
    """One sequence ``[T,H,K]``, token by token."""
    made = []
    for t in range(len(k)):
        mean = k[: t + 1].sum(0) / (t + 2)
        made.append([F.normalize(x[t] - mean, dim=-1) for x in (q, k)])
    return [torch.stack(parts) for parts in zip(*made, strict=True)]


def test_the_definition():
    q, k = drawn(2, 9, 3, 8)
    got = centred(q, k, none_read(2, k), torch.zeros(2, dtype=torch.long))
    for row in range(2):
        want = by_definition(q[row], k[row])
        # unit length is short of one by the eps under its root
        assert all(torch.allclose(x[row], y, atol=1e-4, rtol=0) for x, y in zip(got, want, strict=False))
    assert torch.allclose(got[1][:, 0], k[:, 0], atol=1e-5)
    assert torch.allclose(got[2], k.sum(1), atol=1e-12)


def test_it_goes_on_in_packed_sequences_and_through_empty_ones():
    q, k = drawn(1, 9, 3, 8)
    nothing = torch.zeros(3, dtype=torch.long)
    want = centred(q[:, :5], k[:, :5], none_read(1, k), nothing[:1])
    places = Places.of(torch.tensor([0, 2, 2, 4]))
    _, _, keys = centred(q[:, [0, 1, 5, 6]], k[:, [0, 1, 5, 6]], none_read(3, k), nothing, places)
    assert torch.equal(keys[1], torch.zeros(3, 8, dtype=torch.float64))
    seen = torch.tensor([2, 0, 2])
    more = centred(q[:, 2:5], k[:, 2:5], keys, seen, Places.of(torch.tensor([0, 3, 3, 3])))
    assert all(torch.allclose(x, y[:, 2:], atol=1e-12) for x, y in zip(more[:2], want[:2], strict=True))
    assert torch.allclose(more[2][0], want[2][0], atol=1e-12) and torch.equal(more[2][2], keys[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_keys_share_is_gone(dtype):
    def alike(x):
        """The share of the keys along one direction."""
        return float(torch.linalg.matrix_norm(x[0, 8:, 0].float(), 2).square()) / (x.shape[1] - 8)

    q, k = (x.to(dtype) for x in drawn(1, 128, 1, 64, shared=2.0))
    got = centred(q, k, none_read(1, k), torch.zeros(1, dtype=torch.long))
    assert alike(k) > 0.7 and alike(got[1]) < 0.1
    assert got[0].dtype == got[1].dtype == dtype and got[2].dtype == torch.float32
