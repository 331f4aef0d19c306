"""Saving and loading: weights, shim, card, tokenizer; what is broken is refused."""

import os
import subprocess
import sys

import peft
import pytest
import torch
from test_model import build, tokens
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

import disks
from miras import Spec, algorithm, bias, memory, presets, retention
from miras.hf import MirasConfig, MirasForCausalLM, MirasModel, byte_tokenizer
from miras.hf.tokenizer import byte_characters


@pytest.fixture
def saved(tmp_path):
    model = build("yaad-h", torch.float32)
    model.save_pretrained(tmp_path)
    return model, tmp_path


@pytest.mark.parametrize("name", presets.PRESETS)
def test_what_is_saved_is_what_is_loaded(name, tmp_path):
    model, ids = build(name, torch.float32), tokens(1, 6)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(again, MirasForCausalLM) and again.config.memory == model.config.memory
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_it_is_known_to_transformers(saved):
    model, folder = saved
    assert isinstance(AutoConfig.from_pretrained(folder), MirasConfig)
    assert isinstance(AutoModel.from_pretrained(folder), MirasModel)
    assert isinstance(AutoModelForCausalLM.from_config(model.config), MirasForCausalLM)
    assert (folder / "model.safetensors").exists()


def test_a_tool_that_never_imports_miras_can_load_it(saved):
    model, folder = saved
    code = """
import sys, torch
from transformers import AutoModelForCausalLM
assert "miras" not in sys.modules
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
print(model(torch.arange(3, 9)[None]).logits.sum().item())
model.save_pretrained(sys.argv[1] + "/again")
AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/again", trust_remote_code=True)
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(model(torch.arange(3, 9)[None]).logits.sum().item(), rel=1e-4)


def test_the_card_is_filled(saved):
    model, folder = saved
    card = (folder / "README.md").read_text()
    for part in ("- yaad", "MLP", "Huber", "attention over 5 tokens", f"{model.num_parameters():,}", "W_t = alpha_t W_(t-1)"):
        assert part in card
    assert "{" not in card.split("```")[0]
    (folder / "README.md").write_text("mine")
    model.save_pretrained(folder)
    assert (folder / "README.md").read_text() == "mine"


def test_nothing_is_half_written(saved):
    """A save that fails leaves what was there; one that succeeds leaves no shards of an earlier one."""
    model, folder = saved
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    model.config.label = "another"
    with disks.full(), pytest.raises(OSError, match=f"{folder.name}.* could not be written: .*too large"):
        model.save_pretrained(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    model.save_pretrained(folder, max_shard_size="5KB")
    assert not (folder / "model.safetensors").exists() and len(list(folder.glob("model-*.safetensors"))) > 1
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(again(tokens(1, 4)).logits, model(tokens(1, 4)).logits)
    model.save_pretrained(folder)
    assert [file.name for file in folder.glob("model*.safetensors*")] == ["model.safetensors"]


def test_a_spec_of_ones_own_is_saved_too(tmp_path):
    parts = dict(memory=memory.MLP(depth=1), bias=bias.Huber(delta=0.5), retention=retention.ElasticNet(a=20.0))
    spec = Spec(**parts, algorithm=algorithm.GradientDescent())
    model = MirasForCausalLM(MirasConfig(spec=spec, vocab_size=40, hidden_size=16, num_attention_heads=2, num_hidden_layers=1))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.memory == spec and torch.equal(again(tokens(1, 5)).logits, model(tokens(1, 5)).logits)
    assert "custom-memory" in (tmp_path / "README.md").read_text()


def test_low_precision_is_kept(tmp_path):
    build("yaad", torch.float32).to(torch.bfloat16).save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16


def test_a_save_takes_nothing_away_but_what_it_replaces(saved):
    """Neither the base model's weights beside an adapter, nor another variant's, nor a file of one's own."""
    model, folder = saved
    (folder / "model_ema.safetensors").write_bytes(b"mine")
    whole = (folder / "model.safetensors").read_bytes()
    model.save_pretrained(folder, variant="fp16", max_shard_size="5KB")
    model.save_pretrained(folder, variant="fp16")
    assert {file.name for file in folder.glob("model*safetensors*")} == {
        "model.safetensors", "model.fp16.safetensors", "model_ema.safetensors"
    }  # fmt: skip
    adapted = AutoModelForCausalLM.from_pretrained(folder)
    adapted.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(folder)
    assert (folder / "adapter_model.safetensors").exists() and (folder / "model.safetensors").read_bytes() == whole
    model.save_pretrained(folder)
    assert (folder / "model.fp16.safetensors").exists() and (folder / "model_ema.safetensors").read_bytes() == b"mine"


def test_what_goes_to_the_hub_has_the_shim_and_the_card(tmp_path, monkeypatch):
    model, seen = build("yaad"), []
    monkeypatch.setattr(
        "transformers.PreTrainedModel.save_pretrained", lambda self, folder, **given: seen.append(set(os.listdir(folder)))
    )
    model.save_pretrained(tmp_path / "up", push_to_hub=True)
    assert seen == [{"modeling_miras.py", "README.md"}]


def test_a_vocabulary_that_shrinks_below_the_padding_can_be_loaded(tmp_path):
    model = build("yaad", pad_token_id=39)
    model.resize_token_embeddings(20)
    model.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.pad_token_id is None


def test_a_spec_may_be_given_another_way_and_later(saved):
    _, folder = saved
    assert AutoConfig.from_pretrained(folder, spec="memora").memory == presets.memora()
    config = MirasConfig.preset("yaad-tiny")
    for spec in ("moneta", presets.moneta(), presets.moneta().to_dict()):
        config.spec = spec
        assert MirasForCausalLM(config).config.memory == presets.moneta()
    config.loss_chunk = -5
    with pytest.raises(ValueError, match="loss_chunk must be an integer of 0 or more, got -5"):
        MirasForCausalLM(config)


TEXTS = ["plain", "naïve café\n\ttabs", "日本語 🎉", " leading and trailing ", "", "\x00\x7f", "a  b   c", "a<eos>b <pad>"]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_bytes(text, tmp_path):
    tokenizer = byte_tokenizer()
    assert tokenizer(text).input_ids == list(text.encode())
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(text).input_ids == list(text.encode()) and again.decode(list(text.encode())) == text


def test_special_tokens_and_padding(saved):
    _, folder = saved
    byte_tokenizer().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 259 and (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257, 258)
    batch = tokenizer(["ab", "abcd"], padding=True, return_tensors="pt")
    assert batch.input_ids[0].tolist() == [256, 256, 97, 98] and batch.attention_mask[0].tolist() == [0, 0, 1, 1]
    assert tokenizer.decode([97, 258, 98], skip_special_tokens=True) == "ab"
    assert MirasConfig.preset("yaad-tiny").vocab_size == len(tokenizer)
    assert len(set(byte_characters())) == 256
