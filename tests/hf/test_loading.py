"""Loading: whole or refused in one line; base and language models from each other's checkpoints."""

import json
import logging

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_model import build, tokens
from transformers import AutoModel, AutoModelForCausalLM

from miras.hf import MirasConfig, MirasForCausalLM, MirasModel, byte_tokenizer
from miras.hf.loading import load

GONE = "layers.0.mixer.q_proj.weight"


@pytest.fixture
def said():
    """What transformers says while a model is loaded."""
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("transformers").addHandler(handler)
    yield heard
    logging.getLogger("transformers").removeHandler(handler)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def saved(request, tmp_path):
    model = build("yaad-h", torch.float32, tie_word_embeddings=request.param)
    model.save_pretrained(tmp_path / "language")
    model.model.save_pretrained(tmp_path / "base")
    return model, tmp_path


def change(folder, without=(), more=None):
    """Rewrite a folder's weights without some tensors and with others."""
    path = folder / "model.safetensors"
    kept = {name: weight for name, weight in load_file(path).items() if name not in without}
    save_file(kept | (more or {}), path, {"format": "pt"})


def refused(kind, folder, said, **options):
    with pytest.raises(ValueError) as told:
        kind.from_pretrained(folder, **options)
    assert said == [] and "\n" not in str(told.value)
    return str(told.value)


@torch.no_grad()
def test_base_and_language_models_are_loaded_from_each_other(saved, said):
    model, folder = saved
    ids = tokens(1, 6)
    base = MirasModel.from_pretrained(folder / "language")
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state) and said == []
    whole = AutoModelForCausalLM.from_pretrained(folder / "base")
    assert torch.equal(whole.model(ids).last_hidden_state, model.model(ids).last_hidden_state)
    # a head that starts anew is worth transformers' remark, one that is tied is not new
    tied = model.config.tie_word_embeddings
    assert (whole.lm_head.weight is whole.model.embed_tokens.weight) is tied
    assert [("lm_head.weight" in line, "MISSING" in line) for line in said] == ([] if tied else [(True, True)])


@pytest.mark.parametrize("kind", [MirasModel, MirasForCausalLM, AutoModel, AutoModelForCausalLM])
@pytest.mark.parametrize("source", ["base", "language"])
def test_other_tensors_are_refused(saved, said, kind, source):
    _, folder = saved
    there = "model." if source == "language" else ""
    change(folder / source, without=[there + GONE])
    assert f"has missing tensors: {'model.' if 'LM' in kind.__name__ else ''}{GONE} (1 in all)" in refused(
        kind, folder / source, said
    )
    change(folder / source, more={there + GONE: torch.ones(16, 16), f"{there}more": torch.ones(2), "other": torch.ones(2)})
    assert "has unexpected tensors: " in refused(kind, folder / source, said)
    change(folder / source, without=["more", "model.more"])
    assert "has unexpected tensors: other (1 in all)" in refused(kind, folder / source, said)


def test_a_language_model_that_lost_its_head_is_refused(tmp_path, said):
    build("yaad", torch.float32, tie_word_embeddings=False).save_pretrained(tmp_path)
    change(tmp_path, without=["lm_head.weight"])
    assert "has missing tensors: lm_head.weight (1 in all)" in refused(MirasForCausalLM, tmp_path, said)
    assert isinstance(MirasModel.from_pretrained(tmp_path), MirasModel)


def test_other_sizes_are_refused_or_let_through(saved, said):
    model, folder = saved
    folder = folder / "language"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 41}))
    assert refused(AutoModelForCausalLM, folder, said).endswith("has a vocabulary of 40 tokens, its configuration one of 41")
    grown = AutoModelForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=True)
    assert grown.lm_head.weight.shape == (41, 16) and said != []
    assert torch.equal(grown.model.norm.weight, model.model.norm.weight)
    said.clear()
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 40}))
    told = refused(AutoModelForCausalLM, folder, said)
    assert "mlp.down_proj.weight is [16, " in told and "[16, 40] in its configuration" in told


@pytest.mark.parametrize("size", [0, 4, 200, -50])
def test_a_truncated_file_is_refused(saved, said, size):
    _, folder = saved
    path = folder / "language" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    told = refused(AutoModelForCausalLM, folder / "language", said)
    assert told.startswith(f"the weights of {folder / 'language'} cannot be loaded: ")
    assert refused(MirasForCausalLM, folder / "language", said, output_loading_info=True) == told


def test_whoever_asks_what_was_missing_is_told(saved):
    _, folder = saved
    folder = folder / "language"
    change(folder, without=["model." + GONE], more={"model.more": torch.ones(2)})
    _, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert set(told["missing_keys"]) == {"model." + GONE} and set(told["unexpected_keys"]) == {"model.more"}


def test_a_missing_gate_starts_as_it_should(saved):
    _, folder = saved
    weights = load_file(folder / "language" / "model.safetensors")
    change(folder / "language", without=[name for name in weights if "log_alpha" in name or "memory" in name])
    model, _ = AutoModelForCausalLM.from_pretrained(folder / "language", output_loading_info=True)
    mixer = model.model.layers[0].mixer
    assert torch.allclose(mixer.gates["log_alpha"].bias, torch.tensor(1e-4).expm1().log(), atol=1e-3)
    assert 0.8 < mixer.memory.w1.std() < 1.2 and torch.equal(mixer.memory.gain, torch.ones_like(mixer.memory.gain))


def test_a_state_dict_is_checked_too(saved):
    model, _ = saved
    weights = model.state_dict()
    again = MirasForCausalLM.from_pretrained(None, config=model.config, state_dict=dict(weights))
    assert torch.equal(again(tokens(1, 4)).logits, model(tokens(1, 4)).logits)
    weights.pop("model." + GONE)
    with pytest.raises(ValueError, match=f"the state_dict has missing tensors: model.{GONE}"):
        MirasForCausalLM.from_pretrained(None, config=model.config, state_dict=weights)


def test_adapters_are_loaded_with_their_model(saved):
    model, folder = saved
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = str(folder / "language")
    adapted.save_pretrained(folder / "adapter")
    again = AutoModelForCausalLM.from_pretrained(folder / "adapter")
    torch.testing.assert_close(again(tokens(1, 5)).logits, adapted(tokens(1, 5)).logits)


def test_a_model_and_its_tokenizer(tmp_path):
    MirasForCausalLM(MirasConfig.preset("gated_deltanet-tiny")).to(torch.bfloat16).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="there is no tokenizer in "):
        load(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model, tokenizer = load(tmp_path)
    assert model.dtype == torch.bfloat16 and not model.training and len(tokenizer) == 259
    assert load(str(tmp_path), dtype=torch.float32).model.dtype == torch.float32
