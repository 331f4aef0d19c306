"""A gate in one pass against float64; on the CPU by Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from devices import DEVICE
from miras.kernels.gate_link import gate_link
from miras.nn.gates import CURVES, Gate, GateRecipe, linked

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_device")]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(curve, dtype):
    x = (4 * torch.randn(3, 37, 130)).to(dtype).requires_grad_()
    bias = torch.linspace(-17, 3, 130).requires_grad_()
    weight = torch.randn(3, 37, 130)
    value = gate_link(x, bias, -0.3, curve, False)
    (value * weight).sum().backward()
    exact_x, exact_bias = (t.detach().double().requires_grad_() for t in (x, bias))
    exact = -0.3 * CURVES[curve](exact_x + exact_bias)
    (exact * weight).sum().backward()
    assert value.dtype == torch.float32
    # relative to each value, however small it is
    assert torch.allclose(value.double(), exact, rtol=2e-6, atol=1e-12)
    assert torch.allclose(x.grad.double(), exact_x.grad, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-7)
    assert torch.allclose(bias.grad.double(), exact_bias.grad, rtol=1e-5, atol=1e-6)


def test_the_same_as_what_other_devices_do():
    x, bias = torch.randn(2, 5, 8), torch.randn(8)
    for curve in CURVES:
        assert torch.allclose(gate_link(x, bias, 1.5, curve, False), linked(x, bias, 1.5, curve), atol=1e-6)


def test_a_bias_keeps_its_digits_in_16_bits():
    """softplus(-9.2) = 1e-4: rounding the bias to bf16 would move it by up to 3 %."""
    gate = Gate(GateRecipe(name="log_alpha", link="decay", start=1e-4), 16, 2, 4)
    with torch.autocast(DEVICE, torch.bfloat16):
        value = gate(torch.zeros(1, 3, 16)).value
    assert torch.allclose(value, torch.full_like(value, -1e-4), rtol=1e-5, atol=0)


def test_lean_gates_are_bf16_where_their_tokens_are():
    """A decay as large as the tokens is; a momentum near 1 and gates of one number a head keep their digits."""
    for name, channelwise, dtype in (
        ("log_alpha", True, torch.bfloat16),
        ("log_alpha", False, torch.float32),
        ("mu", True, torch.float32),
    ):
        recipe = GateRecipe(name=name, link="sigmoid" if name == "mu" else "decay", channelwise=channelwise, start=1e-3)
        gate = Gate(recipe, 16, 2, 4, lean=True)
        x = torch.randn(1, 3, 16)
        with torch.autocast(DEVICE, torch.bfloat16):
            found = gate(x).value
        assert found.dtype == dtype
        assert gate(x).value.dtype == torch.float32
        x = torch.randn(3, 8, dtype=torch.bfloat16)
        lean, wide = (gate_link(x, gate.bias[:1].repeat(8), -0.3, "softplus", lean) for lean in (True, False))
        assert lean.dtype == torch.bfloat16
        assert torch.allclose(lean.float(), wide, rtol=2**-7, atol=0)
