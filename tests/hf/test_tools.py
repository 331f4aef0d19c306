"""Other people's tools: peft, accelerate, torch.compile, transformers' Trainer and pipeline, resized vocabularies."""

import accelerate
import peft
import pytest
import torch
from test_model import build, close, offloaded, tokens
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening, Trainer, TrainingArguments, pipeline

from miras import presets
from miras.hf import MirasConfig, MirasForCausalLM, byte_tokenizer


@pytest.mark.parametrize("name", ["yaad", "gated_deltanet", "yaad-h"])
def test_low_rank_adapters_learn_and_merge(name, tmp_path):
    model, ids = build(name, torch.float32), tokens(2, 8)
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, adapters)
    learned = [p for p in adapted.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learned, lr=0.05)
    losses = []
    for _ in range(8):
        loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    adapted.eval()
    want = adapted(input_ids=ids).logits
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(build(name, torch.float32), tmp_path).eval()
    close(again(input_ids=ids).logits, want, 1e-5)
    close(again.merge_and_unload()(ids).logits, want, 1e-3)


def test_a_device_map_places_whole_blocks(tmp_path):
    model, ids = build("yaad-h", torch.float32), tokens(1, 6)
    spread = offloaded(model, tmp_path, 1)
    with torch.no_grad():
        close(spread(ids).logits, model(ids).logits, 1e-6)
        out = spread.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert torch.equal(out, model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0))
    automatic = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="auto")
    close(automatic(ids).logits, model(ids).logits, 1e-6)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_memory_can_be_offloaded(name, tmp_path):
    model, ids = build(name, torch.float32), tokens(1, 6)
    spread = offloaded(model, tmp_path, 0)
    with torch.no_grad():
        close(spread(ids).logits, model(ids).logits, 1e-6)


def test_it_trains_under_accelerate():
    model, ids = build("gated_deltanet", torch.float32), tokens(2, 8)
    engine = accelerate.Accelerator(cpu=True)
    model, optimiser = engine.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    losses = []
    for _ in range(5):
        loss = model(ids, labels=ids).loss
        engine.backward(loss)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["gated_deltanet-h", "yaad"])
def test_the_whole_model_compiles_without_graph_breaks(name):
    torch.compiler.reset()
    model, ids = build(name, torch.float32), tokens(1, 6)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(ids, use_cache=False).logits, model(ids).logits, 1e-5)
    model.train()
    close(compiled(ids, labels=ids, use_cache=False).loss, model(ids, labels=ids).loss, 1e-5)


class Repeated(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        ids = tokens(10)
        return {"input_ids": ids, "labels": ids}


def test_transformers_trainer(tmp_path):
    model = build("yaad", torch.float32)
    arguments = TrainingArguments(
        tmp_path,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        learning_rate=1e-2,
        gradient_checkpointing=True,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        save_steps=3,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Repeated())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert (tmp_path / "checkpoint-3" / "model.safetensors").exists()


def test_transformers_trainer_evaluates(tmp_path):
    """With a loss, which it needs for the best checkpoint, and with the logits alone as predictions."""
    model = build("gla", torch.float32)
    arguments = TrainingArguments(tmp_path, per_device_eval_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model, arguments, eval_dataset=Repeated())
    assert trainer.label_names == ["labels"]
    ids = Repeated()[0]["input_ids"][None]
    with torch.no_grad():
        want = model.eval()(ids, labels=ids)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(want.loss.item(), rel=1e-4)
    assert trainer.predict(Repeated()).predictions.shape[1:] == want.logits.shape[1:]


def test_transformers_collator_of_packed_documents():
    model = build("yaad", torch.float32)
    documents = [tokens(length, seed=length).tolist() for length in (3, 5, 4)]
    alone = [model(torch.tensor([ids]), labels=torch.tensor([ids])).loss * (len(ids) - 1) for ids in documents]
    for options in ({}, {"return_position_ids": False, "return_flash_attn_kwargs": True}):
        batch = DataCollatorWithFlattening(return_tensors="pt", **options)([{"input_ids": ids} for ids in documents])
        close(model(**batch).loss * 9, sum(alone), 1e-5)


def test_the_text_generation_pipeline():
    torch.manual_seed(0)
    model = MirasForCausalLM(MirasConfig.preset("gated_deltanet-tiny"))
    generate = pipeline("text-generation", model=model, tokenizer=byte_tokenizer(), device="cpu")
    texts = generate(["a", "abc"], max_new_tokens=4, do_sample=False, batch_size=2)
    assert [text[0]["generated_text"].startswith(prompt) for text, prompt in zip(texts, ["a", "abc"], strict=True)] == [
        True,
        True,
    ]


def test_the_vocabulary_can_be_resized():
    model, ids = build("yaad", torch.float32), tokens(1, 5)
    want = model(ids).logits
    model.resize_token_embeddings(50, mean_resizing=False)
    assert model.config.vocab_size == 50 and model.lm_head.weight is model.model.embed_tokens.weight
    close(model(ids).logits[..., :40], want, 1e-6)
    untied = build("yaad", torch.float32, tie_word_embeddings=False)
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
