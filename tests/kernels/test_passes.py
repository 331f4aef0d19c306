"""What all passes around a memory have in common as functions of autograd, in Triton's interpreter or on a GPU."""

import pytest

pytest.importorskip("triton")

import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from devices import DEVICE
from miras.kernels import around, convolution, gate_link, gated_norm, heads, norm, residual, rotary, shared_steps, swiglu
from miras.nn.functional import turns

pytestmark = pytest.mark.gpu
LOW, HIGH = torch.bfloat16, torch.float32
PARTS = ((2, 8, 0.3, 1e-3), (2, 8, 1.5, 1e-6), (1, 5, 1.0, None))


def turned(x):
    return rotary.rotary(x, *turns(torch.arange(x.shape[1], device=DEVICE)[None], x.shape[-1], 1e4, x.dtype), False)


# how each is called, the shapes of what it differentiates, and which of these is a parameter
PASSES = {
    "norm": (lambda x, gain: norm.rms_norm(x, gain, 1e-3, LOW), [(2, 5, 12), (12,)], 1),
    "residual": (lambda x, b, gain: residual.residual(x, b.to(LOW), gain, 1e-3, LOW), [(2, 5, 12), (2, 5, 12), (12,)], 2),
    "stream": (lambda x, gain: residual.residual(x, None, gain, 1e-3, LOW), [(2, 5, 12), (12,)], 1),
    "gated_norm": (
        lambda y, gain, gate: gated_norm.gated_norm(y, gain, gate, 1e-3, "silu"), [(2, 5, 3, 4), (4,), (2, 5, 12)], 1,
    ),
    "heads": (lambda x: heads.as_heads(x.to(LOW), PARTS), [(2, 5, 37)], None),
    "rotary": (turned, [(2, 5, 3, 4)], None),
    "swiglu": (swiglu.swiglu, [(2, 5, 12)], None),
    "convolution": (lambda x, w, taps: convolution.convolution(x, w, taps, True), [(2, 5, 3), (2, 3, 3), (3, 4)], 2),
    "gate_link": (lambda x, bias: gate_link.gate_link(x, bias, 0.3, "softplus", False), [(2, 5, 12), (12,)], 1),
    "shared_steps": (lambda k, eta: shared_steps.shared_steps(k, eta, 2.0, 0.3, 4, 2), [(2, 7, 3, 4), (2, 7, 3, 5)], None),
}  # fmt: skip


def given(name):
    return [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in PASSES[name][1]]


def listed(made):
    return [made] if isinstance(made, torch.Tensor) else list(made)


def outer_of(made):
    torch.manual_seed(1)
    return [torch.randn(y.shape, device=DEVICE).to(y.dtype) for y in made]


def both(run, leaves):
    """What comes out, and the gradients of what asks for them."""
    made = listed(run(*leaves))
    return made + list(torch.autograd.grad(made, [x for x in leaves if x.requires_grad], outer_of(made)))


def same(found, wanted):
    assert len(found) == len(wanted)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", PASSES)
def test_autocast_changes_nothing(name):
    leaves = given(name)
    wanted = both(PASSES[name][0], leaves)
    with torch.autocast(DEVICE, torch.float16):
        same(both(PASSES[name][0], leaves), wanted)


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_values_are_the_same(name, mode):
    leaves = given(name)
    wanted = listed(PASSES[name][0](*leaves))
    with mode():
        found = listed(PASSES[name][0](*leaves))
    same(found, wanted)
    assert all(y.requires_grad for y in wanted) and not any(y.requires_grad for y in found)


@pytest.mark.parametrize("name", PASSES)
def test_a_checkpoint_gives_the_same_bits(name):
    leaves = given(name)
    same(both(lambda *x: checkpoint(PASSES[name][0], *x, use_reentrant=False), leaves), both(PASSES[name][0], leaves))


@pytest.mark.parametrize("name", [name for name, (*_, parameter) in PASSES.items() if parameter is not None])
def test_a_frozen_parameter_takes_no_gradient_and_changes_no_other(name):
    leaves, parameter = given(name), PASSES[name][2]
    wanted = both(PASSES[name][0], leaves)
    del wanted[len(wanted) - len(leaves) + parameter]
    leaves[parameter].requires_grad_(False)
    same(both(PASSES[name][0], leaves), wanted)


@pytest.mark.parametrize("name", PASSES)
def test_gradients_may_stand_still(name):
    """As behind a sum, whose gradient is one number expanded."""
    leaves = given(name)
    made = listed(PASSES[name][0](*leaves))
    found = torch.autograd.grad(sum(y.float().sum() for y in made), leaves, retain_graph=True)
    same(found, torch.autograd.grad(made, leaves, [torch.ones_like(y) for y in made]))


@pytest.mark.parametrize("name", ["residual", "stream", "heads"])
def test_a_result_that_nothing_uses_has_a_gradient_of_zeros(name):
    leaves = given(name)
    made = listed(PASSES[name][0](*leaves))
    outer = outer_of(made)
    for used in range(len(made)):
        full = [dy if i == used else torch.zeros_like(dy) for i, dy in enumerate(outer)]
        found = torch.autograd.grad(made[used], leaves, outer[used], retain_graph=True)
        same(found, torch.autograd.grad(made, leaves, full, retain_graph=True))


@pytest.mark.parametrize("name", [name for name in PASSES if name != "rotary"])
def test_a_second_derivative_is_refused(name):
    """Not only where what arrives is differentiated: the part that the saved tensors have in it would be missing."""
    leaves = given(name)
    made = listed(PASSES[name][0](*leaves))
    first = torch.autograd.grad(made, leaves, outer_of(made), create_graph=True)
    with pytest.raises(RuntimeError, match="no derivative of its own"):
        torch.autograd.grad(first[0].sum(), leaves)


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
# torch's own, when it makes its first dual number
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_a_derivative_forwards_is_refused(name, mode):
    """Without gradients too, where a value alone would lose its tangent without a word."""
    with mode(), forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        PASSES[name][0](*(forward_ad.make_dual(x.detach(), torch.ones_like(x)) for x in given(name)))


def test_turning_is_linear_and_differentiated_as_often_as_asked():
    x = given("rotary")[0]
    (first,) = torch.autograd.grad(turned(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    # lengths stay, so this is the gradient of sum x^2 and its own
    assert torch.allclose(first, 2 * x, atol=1e-5) and torch.allclose(second, torch.full_like(x, 2.0), atol=1e-5)


def test_only_what_was_scaled_to_a_length_is_kept():
    """Each part that was, with one number a row; nothing of the input."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.shape) or x, lambda x: x):
        heads.as_heads(given("heads")[0], PARTS)
    assert sizes == [(2, 5, 2, 8), (20,), (2, 5, 2, 8), (20,)]


def test_tensors_without_memory_of_their_own_are_left_to_torch():
    """Fake ones and sharded ones, for which a kernel would read at an address that is none."""
    x, sharded = torch.zeros(2, 3), TwoTensor(torch.zeros(2, 3), torch.zeros(2, 3))
    with FakeTensorMode():
        fake = torch.zeros(2, 3)
    assert around.readable(x, torch.nn.Parameter(x))
    assert not around.readable(fake) and not around.readable(x, sharded) and not around.readable(torch.nn.Parameter(sharded))
