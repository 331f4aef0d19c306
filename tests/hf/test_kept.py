"""Memory that can be kept: what was read, saved and loaded goes on as if nothing had happened, and nowhere else."""

import copy
import dataclasses
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save_file
from test_generate import Writes
from test_model import CHUNK, build, offloaded, tokens
from torch.utils import _pytree as pytree
from transformers import AutoModelForCausalLM, StoppingCriteriaList

import disks
from miras import presets
from miras.hf import KeptMemory, byte_tokenizer

GREEDY = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
each_preset = pytest.mark.parametrize("name", [*presets.PRESETS, "yaad-h", "yaad-shared"])


def continued(memory, ids=None):
    """Greedy tokens after a memory and a prompt."""
    inputs = memory.inputs(ids)
    return memory.model.generate(**inputs, **GREEDY)[:, inputs["input_ids"].shape[1] :]


def plain(model, ids):
    """Greedy tokens after a prompt that transformers reads at once."""
    return model.generate(ids, **GREEDY)[:, ids.shape[1] :]


@pytest.fixture
def kept(tmp_path):
    model = build("yaad", torch.float32)
    memory = model.read(tokens(9))
    memory.save(tmp_path / "memory.safetensors")
    return model, tmp_path / "memory.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_preset
def test_a_saved_memory_goes_on_in_a_model_loaded_from_disk(name, dtype, tmp_path):
    """At a chunk's start, inside it and before the first one ends; another instance, the same tokens."""
    model = build(name, dtype)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    # the blocks have seen one token less: none, a whole chunk, a part of one
    for length in (1, CHUNK + 1, 2 * CHUNK + 3):
        ids, question = tokens(1, length), tokens(1, 3, seed=1)
        memory = model.read(ids)
        memory.save(tmp_path / "memory.safetensors")
        loaded = KeptMemory.load(tmp_path / "memory.safetensors", again)
        assert loaded.tokens == memory.tokens == length and loaded.nbytes == memory.nbytes
        assert torch.equal(continued(loaded), continued(memory))
    assert torch.equal(continued(loaded, question), continued(memory, question))


@each_preset
def test_reading_in_stretches_is_reading(name):
    """In float64 stretches change nothing: greedy tokens after them are those of one prompt."""
    model, ids = build(name), tokens(1, 2 * CHUNK + 3)
    want = plain(model, ids)
    for stretch in (3, CHUNK, 100):
        assert torch.equal(continued(model.read(ids, stretch=stretch)), want)
    assert torch.equal(continued(model.read(ids[:, 5:], memory=model.read(ids[:, :5]))), want)
    assert torch.equal(continued(model.read(ids[:, :5]), ids[:, 5:]), want)


def test_progress_counts_to_the_end():
    model, seen = build("yaad"), []
    first = model.read(tokens(10), stretch=4, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 10), (8, 10), (9, 10), (10, 10)] and first.tokens == 10
    seen.clear()
    second = model.read(tokens(5), memory=first, stretch=4, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 5), (4, 5), (5, 5)] and second.tokens == 15


@pytest.mark.parametrize("name", ["yaad", "mesa", "transformer", "yaad-h"])
def test_a_memory_is_never_changed(name):
    model = build(name)
    memory = model.read(tokens(6))
    before = copy.deepcopy(memory.states)
    want = continued(memory)
    model.read(tokens(7, seed=2), memory=memory)
    assert torch.equal(continued(memory), want)
    for one, other in zip(pytree.tree_leaves(before), pytree.tree_leaves(memory.states), strict=True):
        assert one is None or torch.equal(one, other)


def test_several_questions_to_one_memory():
    model, questions = build("yaad"), tokens(3, 4, seed=3)
    memory = model.read(tokens(7))
    together = continued(memory, questions)
    for row in range(3):
        assert torch.equal(together[row : row + 1], continued(memory, questions[row : row + 1]))
    rows = model.read(tokens(2, 7))
    assert rows.last.shape == (2, 1) and continued(rows).shape == (2, 6)
    with pytest.raises(ValueError, match="ids have 3 rows, the memory has 2"):
        rows.inputs(questions)


@pytest.mark.parametrize("name", ["yaad", "gated_deltanet", "yaad-h"])
def test_what_was_generated_can_be_kept_too(name, tmp_path):
    model, ids = build(name), tokens(1, 5)
    memory = model.read(ids)
    out = model.generate(**memory.inputs(tokens(1, 2, seed=1)), **GREEDY, return_dict_in_generate=True)
    after = memory.after(out)
    assert after.tokens == 5 + 2 + 6
    whole = torch.cat([ids[:, :-1], out.sequences], 1)
    after.save(tmp_path / "after.safetensors")
    assert torch.equal(continued(KeptMemory.load(tmp_path / "after.safetensors", model)), plain(model, whole))


def test_rows_that_ended_apart_are_not_kept_as_one_memory():
    model = build("yaad")
    memory = model.read(tokens(2, 5))
    free = model.generate(**memory.inputs(), **GREEDY)
    end = next(int(x) for x in free[0, 2:5] if x not in free[1, 1:])
    ending = {**GREEDY, "eos_token_id": end, "pad_token_id": 39}
    out = model.generate(**memory.inputs(), **ending, return_dict_in_generate=True)
    with pytest.raises(ValueError, match=r"rows \[0\] ended before the others"):
        memory.after(out)
    by_itself = StoppingCriteriaList([Writes(end)])
    out = model.generate(
        **memory.inputs(), **{**ending, "eos_token_id": 38}, stopping_criteria=by_itself, return_dict_in_generate=True
    )
    assert (out.sequences[0] == 39).any()
    with pytest.raises(ValueError, match=r"rows \[0\] ended before the others"):
        memory.after(out)


def test_beams_are_not_kept_as_a_memory():
    """Their cache is that of the beams that went on, in another order than the sequences."""
    model = build("yaad")
    memory = model.read(tokens(2, 5))
    inputs = memory.inputs()
    inputs["past_key_values"].batch_repeat_interleave(2)
    out = model.generate(**inputs, **GREEDY, num_beams=2, num_return_sequences=2, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="beams go on in other rows than the sequences come back in"):
        memory.after(out)


def test_a_compiled_model_takes_the_memory_of_the_model_it_is(kept):
    model, path = kept
    again = KeptMemory.load(path, torch.compile(model, backend="eager"))
    assert torch.equal(again.last, KeptMemory.load(path, model).last)


def test_an_offloaded_model_reads_and_goes_on(kept, tmp_path):
    """Its weights are not at hand, so they are not compared; everything else is as ever."""
    model, path = kept
    want = continued(KeptMemory.load(path, model))
    spread = offloaded(model, tmp_path / "model", 1)
    assert torch.equal(continued(KeptMemory.load(path, spread)), want)
    spread.read(tokens(9)).save(path)
    assert torch.equal(continued(KeptMemory.load(path, model)), want)


def test_a_memory_of_float32_goes_on_in_bf16(kept):
    """As it was kept: what was learned is not rounded."""
    model, path = kept
    want = KeptMemory.load(path, model).states
    loaded = KeptMemory.load(path, model.to(torch.bfloat16))
    pairs = zip(pytree.tree_leaves(loaded.states), pytree.tree_leaves(want), strict=True)
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in pairs if x is not None)
    assert continued(loaded).shape == (1, 6)


def test_texts_are_read_with_the_model_s_tokenizer(tmp_path):
    model = build("yaad", torch.float32, vocab_size=259)
    with pytest.raises(ValueError, match="not loaded from a folder"):
        model.read("a text")
    want = model.read(list(b"a text"))
    assert torch.equal(continued(model.read("a text", tokenizer=byte_tokenizer())), continued(want))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with pytest.raises(ValueError, match="there is no tokenizer in"):
        again.read("a text")
    byte_tokenizer().save_pretrained(tmp_path)
    assert torch.equal(continued(again.read("a text")), continued(want))


def test_the_header_names_the_model(kept):
    _, path = kept
    with safe_open(path, "pt") as file:
        header = file.metadata()
    assert header["format"] == "miras memory 1" and header["architecture"] == "MirasForCausalLM"
    assert header["chunk_size"] == str(CHUNK) and header["tokens"] == "9" and len(header["model_hash"]) == 16
    assert "Huber" in header["memory"] and set(json.loads(header["versions"])) == {"miras", "torch"}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("memora", {}, r"spec is MLP \+ Huber"),
        ("yaad", {"chunk_size": 8}, "chunk_size is 4 there, 8 here"),
        ("yaad", {"hidden_size": 32}, "hidden_size is 16 there, 32 here"),
        ("yaad", {"num_hidden_layers": 1}, "num_hidden_layers is 2 there, 1 here"),
        ("yaad", {"rope": True}, "rope is None there, True here"),
        ("yaad", {"weight_start": 2.0}, "weight_start is None there, 2.0 here"),
        ("yaad-h", {}, "sliding_window is None there, 5 here"),
    ],
)
def test_another_model_refuses_it(kept, name, changes, words):
    _, path = kept
    with pytest.raises(ValueError, match=words) as error:
        KeptMemory.load(path, build(name, torch.float32, **changes))
    assert "was made by another model" in str(error.value) and "\n" not in str(error.value)


def test_a_chunk_size_may_be_spelled_out_or_not(kept):
    """Where it holds is what counts, in files of before too."""
    model, path = kept
    spec = dataclasses.replace(model.config.memory, chunk_size=CHUNK)
    named = build("yaad", torch.float32, spec=spec, chunk_size=None)
    assert torch.equal(continued(KeptMemory.load(path, named)), continued(KeptMemory.load(path, model)))
    named.read(tokens(9)).save(path)
    KeptMemory.load(path, model)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    before = json.loads(header["model"]) | {"spec": spec.to_dict() | {"name": ""}, "chunk_size": None}
    save_file(load(path.read_bytes()), path, header | {"model": json.dumps(before)})
    KeptMemory.load(path, model)
    with pytest.raises(ValueError, match=f"made by another model: chunk_size is {CHUNK} there, 8 here$"):
        KeptMemory.load(path, build("yaad", torch.float32, spec=spec, chunk_size=8))


def test_a_memory_goes_on_in_its_model_alone():
    memory = build("moneta").read(tokens(9))
    with pytest.raises(ValueError, match=r"past_key_values was made by another model: spec is MLP \+ Lp"):
        build("yaad").generate(**memory.inputs(), **GREEDY)


def test_other_weights_refuse_it_and_other_names_do_not(kept):
    model, path = kept
    model.config.label, model.config.loss_chunk = "another name", 7
    KeptMemory.load(path, model)
    with torch.no_grad():
        model.model.layers[1].mixer.q_proj.weight.mul_(1.05)
    with pytest.raises(ValueError, match="but its weights are not"):
        KeptMemory.load(path, model)


def test_what_is_not_a_memory_file_is_refused(kept, tmp_path):
    model, path = kept
    with pytest.raises(ValueError, match="there is no memory file"):
        KeptMemory.load(tmp_path / "none.safetensors", model)
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], data[:4], b"", b"not a memory file at all"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="not a complete memory file"):
            KeptMemory.load(path, model)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="its header does not say so"):
        KeptMemory.load(path, model)
    save_file({"x": torch.ones(1)}, path, {"format": "miras memory 99"})
    with pytest.raises(ValueError, match="has the format 'miras memory 99'"):
        KeptMemory.load(path, model)


def test_a_file_without_one_of_its_tensors_is_refused(kept):
    model, path = kept
    with safe_open(path, "pt") as file:
        header = file.metadata()
    header.pop("contents")
    found = load(path.read_bytes())
    found.pop("blocks.1.seen")
    save_file(found, path, header)
    with pytest.raises(ValueError, match=r"not a complete memory file.*blocks\.1\.seen"):
        KeptMemory.load(path, model)


def test_a_damaged_file_is_refused_and_one_without_a_digest_is_read(kept):
    model, path = kept
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(ValueError, match="is damaged: its numbers are not those that were written"):
        KeptMemory.load(path, model)
    header = safe_open(path, "pt").metadata()
    header.pop("contents")
    save_file(load(whole), path, header)
    KeptMemory.load(path, model)


def test_nothing_is_half_written(kept):
    model, path = kept
    before = path.read_bytes()
    memory = model.read(tokens(3))
    with disks.full(), pytest.raises(OSError, match=r"memory\.safetensors could not be written: .*too large"):
        memory.save(path)
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(ValueError, match="there is no folder"):
        model.read(tokens(3)).save(path.parent / "none" / "memory.safetensors")
    with pytest.raises(ValueError, match="it is a folder"):
        model.read(tokens(3)).save(path.parent)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.zeros(1, 0, dtype=torch.long), "nothing to read"),
        (torch.tensor([3, 40]), "token 40 is not one of the model's 40"),
        (torch.tensor([3, -1]), "token -1"),
        (torch.ones(1, 3), "must be integers"),
        (torch.ones(1, 3, 2, dtype=torch.long), r"\[1, 3, 2\]"),
        ([1.5], "tokens must be integers"),
        (["a", "b"], r"tokens must be integers, got \['a', 'b'\]"),
        (None, "give a text, a tensor or a list of tokens, got NoneType"),
    ],
)
def test_bad_tokens_are_refused(ids, words):
    with pytest.raises(ValueError, match=words):
        build("yaad").read(ids)


def test_a_model_that_keeps_no_cache_goes_on_all_the_same():
    model = build("yaad", torch.float32)
    memory, question = model.read(tokens(9)), tokens(1, 3, seed=1)
    want = continued(memory, question)
    model.config.use_cache = model.generation_config.use_cache = False
    assert torch.equal(continued(memory, question), want)


def test_what_goes_on_is_tokens_and_what_comes_back_is_whole():
    model = build("yaad", torch.float32)
    memory = model.read(tokens(9))
    assert torch.equal(continued(memory, tokens(3)), continued(memory, tokens(1, 3)))
    assert model.read(tokens(9).numpy()).tokens == model.read(range(9)).tokens == memory.tokens
    for given in ("Who?", [1, 2]):
        with pytest.raises(ValueError, match="ids must be a tensor of tokens, got"):
            memory.inputs(given)
    with pytest.raises(ValueError, match="give a text, a tensor or a list of tokens, got dict"):
        model.read({"input_ids": [1]})
    with pytest.raises(ValueError, match="generate returned a Tensor: give it return_dict_in_generate=True"):
        memory.after(model.generate(**memory.inputs(), **GREEDY))
    with pytest.raises(ValueError, match=r"batch_repeat_interleave\(n\) makes n of each row"):
        model.generate(**memory.inputs(), max_new_tokens=2, num_beams=2, eos_token_id=None)


def test_a_memory_takes_the_place_of_a_memory_alone(kept):
    model, path = kept
    other = path.with_name("model.safetensors")
    other.write_bytes(b"weights")
    with pytest.raises(ValueError, match="the file there is no memory, and would be lost"):
        KeptMemory.load(path, model).save(other)
    assert other.read_bytes() == b"weights"


def test_what_a_memory_goes_into_is_checked(kept, tmp_path):
    model = build("yaad")
    with pytest.raises(ValueError, match=r"stretch must be an integer of 1 or more, got 1\.5"):
        model.read([1, 2], stretch=1.5)
    path = tmp_path / "memory.safetensors"
    model.read([1, 2, 3]).save(path)
    with pytest.raises(ValueError, match="model must be a model that was loaded, got 'folder'"):
        KeptMemory.load(path, "folder")
    with pytest.raises(ValueError, match=r"was read in another precision than this model's torch\.float32: load the model"):
        KeptMemory.load(path, model.float())
