"""Deep models at their start: gradients that do not explode over a long text."""

from pathlib import Path

import pytest
import torch

from miras.hf import MirasConfig, MirasForCausalLM

LICENCE = Path(__file__).parents[2] / "LICENSE"


def gradient(name, decay=None):
    """The norm of a small model's gradient over 4096 bytes."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 64}
    model = MirasForCausalLM(MirasConfig.preset(name, **sizes))
    for parameter_name, parameter in model.named_parameters():
        if decay is not None and parameter_name.endswith("log_alpha.bias"):
            torch.nn.init.constant_(parameter, torch.tensor(decay).expm1().log().item())
    ids = torch.tensor(list(LICENCE.read_bytes()[:4096]))[None]
    model(ids, labels=ids).loss.backward()
    return torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()


@pytest.mark.parametrize("name", ["yaad-tiny", "yaad-anchored-tiny"])
def test_gradients_stay_small_over_a_long_text(name):
    torch.manual_seed(0)
    assert gradient(name) < 10


def test_what_they_are_kept_from():
    torch.manual_seed(0)
    assert gradient("yaad-tiny", decay=2e-3) > 30
