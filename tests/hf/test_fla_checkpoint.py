"""Checkpoints of fla: the logits are those of fla's layers, and what has no counterpart is refused by name."""

import json

import pytest
import torch
from fla_reference import checkpoint, logits
from safetensors.torch import load, save_file
from test_model import tokens
from transformers import AutoModelForCausalLM

from miras.hf import from_fla

GDN = {"model_type": "gated_deltanet", "head_dim": 8, "expand_v": 2.0}
VARIANTS = {
    "gated_deltanet": GDN,
    "gated_deltanet, shared keys": {**GDN, "num_v_heads": 4},
    "gated_deltanet, no gate, no convolution": {**GDN, "use_gate": False, "use_short_conv": False},
    "gated_deltanet, sigmoid, negative eigenvalues": {**GDN, "output_gate_activation": "sigmoid", "allow_neg_eigval": True},
    "delta_net": {"model_type": "delta_net"},
    "delta_net, other widths, gate": {"model_type": "delta_net", "expand_k": 0.5, "expand_v": 2.0, "use_gate": True},
    "delta_net, no convolution, tied": {"model_type": "delta_net", "use_short_conv": False, "tie_word_embeddings": True},
    "delta_net, negative eigenvalues, wide": {"model_type": "delta_net", "allow_neg_eigval": True, "conv_size": 3},
    "gla": {"model_type": "gla", "expand_k": 0.5, "expand_v": 1.0},
    "gla, shared keys and values": {"model_type": "gla", "expand_k": 0.5, "num_heads": 4, "num_kv_heads": 2},
    "gla, no gate": {"model_type": "gla", "expand_k": 0.5, "use_output_gate": False},
    "gla, norms without weights": {"model_type": "gla", "expand_k": 0.5, "elementwise_affine": False},
    "transformer": {"model_type": "transformer", "rope_theta": 500.0},
    "transformer, shared keys and values": {"model_type": "transformer", "num_heads": 4, "num_kv_heads": 1},
}


def relative(got, want):
    return float((got - want).abs().max() / want.abs().max())


@torch.no_grad()
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_fla(name, tmp_path):
    config, tensors = checkpoint(tmp_path / "theirs", **VARIANTS[name])
    ids = tokens(2, 70)
    want = logits(config, tensors, ids)
    assert relative(from_fla(tmp_path / "theirs", dtype=torch.float64)(ids).logits, want) < 1e-9
    model = from_fla(tmp_path / "theirs")
    assert relative(model(ids).logits, want) < 1e-4
    assert model.dtype == torch.float32 and not model.training and model.config.eos_token_id == 2
    model.save_pretrained(tmp_path / "ours")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(again(ids).logits, model(ids).logits)


@torch.no_grad()
def test_every_tensor_counts(tmp_path):
    """Moving any tensor of the checkpoint moves both models alike: none is mapped by luck."""
    for kind in ("gated_deltanet", "delta_net", "gla", "transformer"):
        config, tensors = checkpoint(tmp_path, **VARIANTS[kind])
        ids = tokens(1, 12)
        before = logits(config, tensors, ids)
        for name in [name for name in tensors if "layers.1" in name]:
            moved = {**tensors, name: tensors[name] + 0.2 * torch.randn_like(tensors[name])}
            save_file(moved, tmp_path / "model.safetensors")
            want = logits(config, moved, ids)
            assert relative(before, want) > 1e-4, name
            assert relative(from_fla(tmp_path, dtype=torch.float64)(ids).logits, want) < 1e-9, name


def test_shards_precision_and_training(tmp_path):
    _, tensors = checkpoint(tmp_path, **GDN)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in enumerate((names[:9], names[9:])):
        shard = {name: tensors[name].bfloat16() for name in part}
        save_file(shard, tmp_path / f"model-0000{number + 1}-of-00002.safetensors")
    assert from_fla(tmp_path).dtype == torch.bfloat16
    model, ids = from_fla(tmp_path, dtype=torch.float32), tokens(1, 8)
    model.train()(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("variant", "changes", "words"),
    [
        ("gated_deltanet", {"attn": {"layers": [1], "num_heads": 2}}, "attn="),
        ("gated_deltanet", {"hidden_act": "powlu"}, "hidden_act='powlu'"),
        ("gated_deltanet", {"attnres_block_size": 4}, "attnres_block_size=4"),
        ("gated_deltanet", {"output_gate_activation": "relu"}, "output_gate_activation='relu'"),
        ("delta_net", {"use_beta": False}, "use_beta=False"),
        ("delta_net", {"qk_norm": "sum"}, "qk_norm='sum'"),
        ("delta_net", {"qk_activation": "elu"}, "qk_activation='elu'"),
        ("gla", {"feature_map": "relu"}, "feature_map='relu'"),
        ("gla", {"use_short_conv": True}, "use_short_conv=True"),
        ("gla", {"clamp_min": -1.0}, "clamp_min=-1.0"),
        ("transformer", {"qkv_bias": True}, "qkv_bias=True"),
        ("transformer", {"qk_norm": True}, "qk_norm=True"),
        ("transformer", {"window_size": 16}, "window_size=16"),
        ("transformer", {"a_new_option": 1}, "does not know the option a_new_option"),
        ("transformer", {"model_type": "rwkv7"}, "type 'rwkv7'"),
        ("gated_deltanet", {"num_v_heads": 3}, "num_v_heads=3 is not a multiple of num_heads=2"),
        ("gated_deltanet", {"head_dim": 4}, "its configuration asks for"),
        ("gated_deltanet", {"num_hidden_layers": 1}, "no place for"),
        ("gated_deltanet", {"num_hidden_layers": 3}, "has no tensor model.layers.2"),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(tmp_path, variant, changes, words):
    config, _ = checkpoint(tmp_path, **VARIANTS[variant])
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=words) as error:
        from_fla(tmp_path)
    assert "\n" not in str(error.value)


def test_an_option_can_be_ignored(tmp_path):
    config, _ = checkpoint(tmp_path, **VARIANTS["transformer"])
    (tmp_path / "config.json").write_text(json.dumps({**config, "a_new_option": 1}))
    assert from_fla(tmp_path, ignore=("a_new_option",)).config.rope_base == 500.0


def test_broken_folders(tmp_path):
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        from_fla(tmp_path)
    checkpoint(tmp_path, **VARIANTS["gla"])
    weights = tmp_path / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        from_fla(tmp_path)
    save_file({**load(data), "model.layers.0.attn.more": torch.ones(1)}, weights)
    with pytest.raises(ValueError, match=r"no place for: model\.layers\.0\.attn\.more"):
        from_fla(tmp_path)
    weights.unlink()
    with pytest.raises(ValueError, match=r"no model\*\.safetensors"):
        from_fla(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        from_fla(tmp_path)


def test_a_dtype_may_be_a_name(tmp_path):
    checkpoint(tmp_path, **GDN)
    assert [from_fla(tmp_path, dtype=name).dtype for name in ("auto", "bfloat16")] == [torch.float32, torch.bfloat16]
    for wrong in ("bf16", "int32", torch.int64, 16):
        with pytest.raises(ValueError, match="dtype must be a floating-point dtype of torch, its name, 'auto' or None"):
            from_fla(tmp_path, dtype=wrong)
