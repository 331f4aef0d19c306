"""Noise on the keys: tame at the start for every deep preset, chaotic where decays are strong, refused without a key."""

import dataclasses

import pytest
import torch

from miras import presets
from miras.diagnostics import layer_noise, noise_response
from miras.hf import MirasConfig, MirasForCausalLM
from miras.nn import MirasLayer, recipe_of

DEEP = ["ttt_linear", "ttt_mlp", "titans_lmm", "moneta", "yaad", "memora"]


@pytest.mark.parametrize("name", DEEP)
def test_a_small_change_of_the_keys_stays_small(name):
    """1e-6 on k moves y by less than 1e-4, and bf16 stays near float32; up to 4096 tokens: experiments/tame_start."""
    found = layer_noise(MirasLayer(64, 1, name), torch.randn(1, 1024, 64))
    assert found.response.shape == (1024,)
    assert 0 < found.response.max() < 1e-4
    assert found.low_precision.mean() < 0.05


def test_an_untamed_start_is_found():
    """The same memory with a decay of 0.3 a token from the start."""
    recipe = recipe_of(presets.yaad())
    wild = tuple(dataclasses.replace(gate, start=0.3) if gate.name == "log_alpha" else gate for gate in recipe.gates)
    layer = MirasLayer(64, 1, "yaad", recipe=dataclasses.replace(recipe, gates=wild))
    assert layer_noise(layer, torch.randn(1, 512, 64)).response.max() > 1e-3


def test_products_have_all_their_digits_whatever_the_process_lets_a_gpu_shorten_them_to(monkeypatch):
    """With TF32 a tame memory would answer with 5e-4 on a GPU."""
    layer, met = MirasLayer(64, 1, "yaad"), []
    remember = layer.remember
    monkeypatch.setattr(
        layer, "remember", lambda *own, **how: met.append(torch.get_float32_matmul_precision()) or remember(*own, **how)
    )
    torch.set_float32_matmul_precision("high")
    try:
        layer_noise(layer, torch.randn(1, 16, 64))
        assert met[:2] == ["highest", "highest"] and torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_every_layer_of_a_model_at_its_own_input():
    model = MirasForCausalLM(MirasConfig.preset("yaad-tiny-h", num_hidden_layers=4)).eval()
    found = noise_response(model, torch.randint(0, 256, (2, 70)))
    assert list(found) == ["model.layers.0.mixer", "model.layers.2.mixer"]
    assert all(response.response.max() < 1e-4 for response in found.values())


def test_refuses():
    with pytest.raises(ValueError, match=r"hgrn2.* has no key to move: it is tied to the decay"):
        layer_noise(MirasLayer(16, 2, "hgrn2"), torch.randn(1, 4, 16))
    with pytest.raises(ValueError, match="Linear has no MirasLayer to measure"):
        noise_response(torch.nn.Linear(2, 2), torch.randn(1, 2))
