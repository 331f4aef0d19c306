"""Projections as one product: the same values and gradients, and only where a call does nothing else."""

import copy

import accelerate
import peft
import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from miras import presets
from miras.nn import Block, MirasLayer, SlidingWindowAttention
from miras.nn.block import SwiGLU
from miras.nn.gates import Gate, GateRecipe
from miras.nn.joined import apart, bare, product, together, untouched


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Products(TorchFunctionMode):
    """Counts calls of F.linear."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += function is nn.functional.linear
        return function(*args, **(kwargs or {}))


def linears(*widths, dim=4):
    return [nn.Linear(dim, width, bias=False).double() for width in widths]


@pytest.mark.parametrize("tokens", [1, 3, 4])
def test_they_are_the_projections_one_by_one(tokens):
    """As one product from as many tokens on as channels go in."""
    projections, x = linears(3, 4, 5), draw(1, tokens, 4)
    want = [each(x) for each in projections]
    with Products() as products:
        got = together(x, projections)
    assert products.count == (1 if tokens == 4 else 3)
    assert torch.allclose(got, torch.cat(want, -1), atol=1e-15)
    for one, other in zip(apart(x, projections), want, strict=True):
        assert torch.allclose(one, other, atol=1e-15)


def test_rows_are_filled_up_and_the_parts_are_not():
    weights, x = [draw(3, 4, seed=1).requires_grad_(), draw(7, 4, seed=2).requires_grad_()], draw(2, 5, 4)
    parts = product(x, weights)
    assert [part.shape[-1] for part in parts] == [3, 7] and all(part.stride(1) == 16 for part in parts)
    loss = sum((part * draw(*part.shape, seed=3)).sum() for part in parts)
    own = sum((x @ weight.mT * draw(2, 5, len(weight), seed=3)).sum() for weight in weights)
    for got, want in zip(torch.autograd.grad(loss, weights), torch.autograd.grad(own, weights), strict=True):
        assert torch.allclose(got, want, atol=1e-14)


def test_unlike_matrices_stay_apart():
    projections = linears(4, 4)
    projections[0].to(torch.float32)
    projections[1].to(torch.bfloat16)
    with Products() as products, torch.autocast("cpu", torch.bfloat16):
        together(draw(1, 20, 4).float(), projections)
    assert products.count == 2


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def hooked(linear):
    linear.register_forward_hook(lambda module, args, out: 2 * out)
    return linear


def pre_hooked(linear):
    linear.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    return linear


def replaced(linear):
    own = linear.forward
    linear.forward = lambda x: 2 * own(x)
    return linear


def offloaded(linear):
    accelerate.cpu_offload(linear, torch.device("cpu"))
    return linear


def adapted(linear):
    holder = nn.ModuleDict({"proj": linear})
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["proj"], init_lora_weights=False), holder)
    return holder["proj"]


def parametrised(linear):
    parametrize.register_parametrization(linear, "weight", Doubled())
    return linear


def subclassed(linear):
    class Wrapped(torch.Tensor):
        pass

    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Wrapped))
    return linear


def biased(linear):
    return nn.Linear(4, 6).double()


TOUCHED = (hooked, pre_hooked, replaced, offloaded, adapted, parametrised, subclassed, biased)


@pytest.mark.parametrize("touch", TOUCHED)
def test_a_projection_that_does_more_is_called(touch):
    first, second = linears(6, 5)
    x = draw(1, 20, 4)
    assert bare(first)
    touched = touch(first)
    assert not bare(touched)
    want = torch.cat([touched(x), second(x)], -1)
    assert torch.equal(together(x, [touched, second]), want)
    assert torch.equal(torch.cat(apart(x, [touched, second]), -1), want)


def test_a_hook_on_all_modules_hears_of_each_projection():
    heard, projections = [], linears(4, 4)
    handle = register_module_forward_hook(lambda module, args, out: heard.append(module))
    try:
        together(draw(1, 20, 4), projections)
    finally:
        handle.remove()
    assert heard == projections


def test_a_gate_is_untouched_like_a_projection():
    gate = Gate(GateRecipe(name="eta", link="sigmoid"), 4, 2, 2)
    assert untouched(gate, Gate)
    gate.register_forward_hook(lambda module, args, out: None)
    assert not untouched(gate, Gate)


def compared(module, run):
    """Values and gradients as one product, and with a hook that changes nothing on everything."""
    found = []
    for seen in (False, True):
        handles = [each.register_forward_hook(lambda *given: None) for each in module.modules() if seen]
        with Products() as products:
            y = run()
        weight = draw(*y.shape, seed=9)
        found.append((products.count, y, torch.autograd.grad((y * weight).sum(), list(module.parameters()), allow_unused=True)))
        for handle in handles:
            handle.remove()
    (few, y, gradients), (many, want, wanted) = found
    assert few < many and torch.allclose(y, want, atol=1e-12)
    for got, other in zip(gradients, wanted, strict=True):
        assert (got is None) == (other is None)
        assert got is None or (got - other).norm() <= 1e-10 * other.norm() + 1e-14


# each of RWKV's projections sees a mixture of its own: nothing to join
@pytest.mark.parametrize("name", [name for name in presets.PRESETS if name != "rwkv7"])
def test_a_layer_is_the_same_either_way(name):
    layer, x = MirasLayer(16, 2, name, chunk_size=4).double(), draw(4, 20, 16)
    compared(layer, lambda: layer(x)[0])


def test_a_projection_may_serve_twice():
    layer, x = MirasLayer(16, 2, "gated_deltanet", chunk_size=4).double(), draw(1, 20, 16)
    layer.k_proj = layer.q_proj
    compared(layer, lambda: layer(x)[0])


def test_a_feed_forward_part_and_a_window_are_the_same_either_way():
    x = draw(4, 20, 8)
    mlp, attention = SwiGLU(8, 12).double(), SlidingWindowAttention(8, 2, window=3).double()
    compared(mlp, lambda: mlp(x))
    compared(attention, lambda: attention(x)[0])


def test_a_block_compiles_with_its_projections_joined():
    torch.compiler.reset()
    block, x = Block(MirasLayer(16, 2, "gated_deltanet", chunk_size=4), 24).float(), draw(4, 20, 16).float()
    with Products() as products:
        want = block(x)[0]
    assert products.count == 5
    assert torch.allclose(torch.compile(block, fullgraph=True, backend="aot_eager")(x)[0], want, atol=1e-5)


@pytest.mark.parametrize("name", ["q_proj", "v_proj", "g_proj"])
@pytest.mark.parametrize("touch", [biased, hooked, replaced, adapted])
def test_a_layer_calls_what_took_a_projections_place(name, touch):
    """With many tokens, which are one product, and with few, which never are."""
    layer, x = MirasLayer(4, 1, "gated_deltanet", value_dim=6, head_dim=6, chunk_size=4).double(), draw(1, 12, 4)
    before = layer(x)[0]
    setattr(layer, name, touch(getattr(layer, name)))
    whole, state = layer(x)
    assert not torch.allclose(whole, before)
    pieces, state = [], None
    for piece in x.split(3, 1):
        y, state = layer(piece, state)
        pieces.append(y)
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-12)


# the window that a layer goes on with is a view of what it read
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning")
def test_shards_are_joined_where_they_were_gathered(tmp_path):
    block, x = Block(MirasLayer(16, 2, "yaad", chunk_size=4), 24).double(), draw(2, 20, 16)
    plain, found = copy.deepcopy(block), []
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(block, mesh=init_device_mesh("cpu", (1,)), reshard_after_forward=True)
        for each in (plain, block):
            with Products() as products:
                y, _ = each(x)
            y.square().sum().backward()
            found.append((products.count, y))
        (count, want), (sharded_count, y) = found
        assert sharded_count == count == 8 and torch.allclose(y, want, atol=1e-12)
        for one, other in zip(block.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(one.grad.full_tensor(), other.grad, atol=1e-10)
    finally:
        distributed.destroy_process_group()
