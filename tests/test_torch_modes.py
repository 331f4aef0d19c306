"""Where torch's own switches do not reach: transforms through calls that are computed again, devices without autocast."""

import pytest
import torch

from inputs import draw
from miras import memorize, nn, presets
from miras.hf.loss import chunked_cross_entropy
from miras.torch_modes import again, multiplied_in, uncast

# more than two stretches of the chunk form, of 16 chunks each
LONG = 2 * 35


def test_a_function_is_called_again_where_gradients_are_taken():
    calls = []

    def square(x):
        calls.append(x)
        return x * x

    x = torch.ones(2, requires_grad=True)
    again(square, x).sum().backward()
    assert len(calls) == 2 and torch.equal(x.grad, 2 * torch.ones(2))
    calls.clear()
    with torch.no_grad():
        again(square, x)
    assert torch.equal(torch.func.grad(lambda x: again(square, x).sum())(x.detach()), 2 * torch.ones(2))
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["yaad", "memora", "titans_lmm", "mesa", "gated_deltanet"])
@pytest.mark.parametrize("recompute", [None, 8])
def test_gradients_by_torch_func_through_what_is_computed_again(name, recompute):
    torch.manual_seed(0)
    layer = nn.MirasLayer(16, 2, name, chunk_size=2, recompute=recompute).double()
    x = torch.randn(2, LONG, 16, dtype=torch.float64)
    own = dict(layer.named_parameters())
    grad = torch.func.grad(lambda p, rows: torch.func.functional_call(layer, p, (rows,))[0].square().sum())
    found = grad(own, x)
    layer(x)[0].square().sum().backward()
    for key, parameter in own.items():
        assert torch.allclose(found[key], parameter.grad, atol=1e-9), key


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_gradients_of_each_sequence_of_many_chunks():
    layer = nn.MirasLayer(16, 2, "yaad", chunk_size=2).double()
    x = torch.randn(3, LONG, 16, dtype=torch.float64)
    own = dict(layer.named_parameters())
    grad = torch.func.grad(lambda p, one: torch.func.functional_call(layer, p, (one[None],))[0].square().sum())
    found = torch.func.vmap(grad, (None, 0))(own, x)
    layer(x)[0].square().sum().backward()
    for key, parameter in own.items():
        assert torch.allclose(found[key].sum(0), parameter.grad, atol=1e-9), key


def test_a_loss_in_one_piece_is_computed_once():
    calls = []

    def head(x):
        calls.append(x)
        return x

    hidden, labels = torch.randn(6, 5, requires_grad=True), torch.arange(6) % 5
    chunked_cross_entropy(head, hidden, labels, 0).backward()
    assert len(calls) == 1
    chunked_cross_entropy(head, hidden, labels, 3).backward()
    assert len(calls) == 1 + 2 * 2


def test_a_device_without_autocast_has_none_to_leave():
    with torch.autocast("cpu", torch.bfloat16):
        assert multiplied_in(torch.device("cpu"), torch.float32) == torch.bfloat16
        assert multiplied_in(torch.device("cpu"), torch.float64) == torch.float64
        assert multiplied_in(torch.device("meta"), torch.float32) == torch.float32
        with uncast(torch.device("meta")), uncast(torch.device("cpu")):
            assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", presets.PRESETS)
def test_shapes_on_no_device_are_those_on_the_cpu(name):
    spec = presets.get(name)
    q, k, v, gates, keywords = draw(spec, T=7)
    y, _ = memorize(spec, q, k, v, gates, chunk_size=4, check_gates=False, **keywords)
    tree = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), (q, k, v, gates, keywords))
    q, k, v, gates, keywords = tree
    there, _ = memorize(spec, q, k, v, gates, chunk_size=4, check_gates=False, **keywords)
    assert there.device.type == "meta" and there.shape == y.shape and there.dtype == y.dtype
