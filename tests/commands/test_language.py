"""``miras generate`` and ``miras read``: what they print, what they keep, what they refuse."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from miras.cli import main
from miras.commands.generate import TextStream
from miras.hf import KeptMemory, MirasConfig, MirasForCausalLM, byte_tokenizer

TEXT = "It was a dark and stormy night; the rain fell in torrents. Naïve? " * 20
SHORT = ["--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    where = tmp_path_factory.mktemp("model")
    config = MirasConfig.preset("yaad-tiny", eos_token_id=None)
    MirasForCausalLM(config).save_pretrained(where)
    byte_tokenizer().save_pretrained(where)
    return where


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run(capsys, *argv):
    capsys.readouterr()
    assert main([str(part) for part in argv]) == 0
    return capsys.readouterr()


def error(capsys, *argv):
    capsys.readouterr()
    assert main([str(part) for part in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("miras: ") and err.count("\n") == 1, err
    return err.strip()


def test_read_then_generate_is_generate_after_the_text(capsys, folder, book, tmp_path):
    state = tmp_path / "book.safetensors"
    out = run(capsys, "read", folder, book, "--state", state, "--stretch", "300").out
    tokens = len(TEXT.encode())
    assert f"Read {tokens:,} tokens" in out and "a second" in out and " MB" in out and f"--state {state}" in out
    after = run(capsys, "generate", folder, "--state", state, "--prompt", "Who?", "--greedy", *SHORT).out
    whole = run(capsys, "generate", folder, "--prompt", TEXT + "Who?", "--greedy", *SHORT).out
    assert after == whole and len(after) > 1 and after.endswith("\n")


def test_reading_on_from_a_memory(capsys, folder, book, tmp_path):
    first, second, whole = (tmp_path / f"{name}.safetensors" for name in ("first", "second", "whole"))
    other = tmp_path / "other.txt"
    other.write_text("And then?")
    run(capsys, "read", folder, book, "--state", first)
    assert f"after {len(TEXT.encode()):,}" in run(capsys, "read", folder, other, "--from", first, "--state", second).out
    book.write_text(TEXT + "And then?", encoding="utf-8")
    run(capsys, "read", folder, book, "--state", whole)
    shown = [run(capsys, "generate", folder, "--state", state, "--greedy", *SHORT).out for state in (second, whole)]
    assert shown[0] == shown[1]


def test_what_was_generated_is_kept(capsys, folder, tmp_path):
    state = tmp_path / "kept.safetensors"
    options = ["--greedy", "--prompt", "The night "]
    shown = run(capsys, "generate", folder, *options, "--max-new-tokens", "5", "--save-state", state)
    assert "Kept 15 tokens" in shown.err and str(state) in shown.err
    model = MirasForCausalLM.from_pretrained(folder).eval()
    memory = KeptMemory.load(state, model)
    ids = torch.tensor([list(b"The night ")])
    want = model.generate(ids, max_new_tokens=11, do_sample=False)[:, 15:]
    got = model.generate(**memory.inputs(), max_new_tokens=6, do_sample=False)[:, 1:]
    assert torch.equal(got, want)


def test_seeds_temperature_and_top_p(capsys, folder):
    def shown(*options):
        return run(capsys, "generate", folder, "--prompt", "a", "--max-new-tokens", "12", *options).out

    assert shown("--seed", "1") == shown("--seed", "1") != shown("--seed", "2")
    assert shown("--seed", "1", "--top-p", "0.0001") == shown("--greedy")
    assert shown("--seed", "2", "--temperature", "0.0001") == shown("--greedy")


def test_a_prompt_from_standard_input(capsys, folder):
    """In a process of its own, where nothing but the text may be printed."""
    options = ["generate", str(folder), "--greedy", *SHORT, "--prompt"]
    piped = subprocess.run([sys.executable, "-m", "miras.cli", *options, "-"], input=b"Hello", capture_output=True, check=True)
    assert piped.stdout.decode() == run(capsys, *options, "Hello").out and piped.stderr == b""


def streamed(tokenizer, ids):
    written = []
    stream = TextStream(tokenizer, written.append)
    stream.put(torch.tensor([[1, 2, 3]]))
    for token in ids:
        stream.put(torch.tensor([token]))
    stream.end()
    return written


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語 🎉 fin", "🎉🎉"])
def test_characters_are_printed_when_they_are_whole(text):
    assert streamed(byte_tokenizer(), text.encode()) == [*text, "\n"]


def test_bytes_that_never_become_a_character_are_printed_too():
    written = streamed(byte_tokenizer(), [0x80] * 20)
    assert "".join(written) == "�" * 20 + "\n" and len(written) >= 3
    assert "".join(streamed(byte_tokenizer(), [97, 258, 98])) == "ab\n"


def test_words_keep_their_spaces():
    vocabulary = {"▁night": 0, "▁stormy": 1, "s": 2, "<unk>": 3}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    assert streamed(PreTrainedTokenizerFast(tokenizer_object=inner), [1, 0, 2, 1]) == ["stormy", " night", "s", " stormy", "\n"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to continue"),
        (["--prompt", "a", "--max-new-tokens", "0"], "1 or more, got 0"),
        (["--prompt", "a\udcff"], "the prompt is not UTF-8 text"),
        (["--prompt", "a", "--temperature", "0"], "must be 1e-4 or more, got 0.0"),
        (["--prompt", "a", "--top-p", "1.5"], "in (0, 1], got 1.5"),
        (["--prompt", "a", "--greedy", "--top-p", "0.5"], "--greedy draws nothing"),
        (["--prompt", "a", "--state", "none.safetensors"], "there is no memory file none.safetensors"),
        (["--prompt", "a", "--save-state", "none/out.safetensors"], "there is no folder none"),
        (["--prompt", "a", "--device", "abacus"], "--device abacus cannot be used"),
        (["--prompt", "a", "--dtype", "int3"], "invalid choice"),
    ],
)
def test_bad_options(capsys, folder, options, words):
    assert words in error(capsys, "generate", folder, *options)


def test_files_that_are_not_there_or_not_text(capsys, folder, book, tmp_path):
    state = tmp_path / "out.safetensors"
    assert "there is no file" in error(capsys, "read", folder, tmp_path / "none.txt", "--state", state)
    assert "there is no folder" in error(capsys, "read", folder, book, "--state", tmp_path / "none" / "out.safetensors")
    assert "stretch must be an integer of 1 or more, got 0" in error(
        capsys, "read", folder, book, "--state", state, "--stretch", "0"
    )
    book.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in error(capsys, "read", folder, book, "--state", state)
    book.write_bytes(b"")
    assert "nothing to read" in error(capsys, "read", folder, book, "--state", state)
    assert not state.exists()


def test_a_memory_of_another_model(capsys, folder, book, tmp_path):
    state = tmp_path / "out.safetensors"
    run(capsys, "read", folder, book, "--state", state)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    MirasForCausalLM(MirasConfig.preset("memora-tiny")).save_pretrained(other)
    assert "was made by another model: spec is" in error(capsys, "generate", other, "--state", state)
    assert "was made by another model: spec is" in error(capsys, "read", other, book, "--from", state, "--state", state)


def test_folders_that_are_not_models(capsys, folder, tmp_path):
    def told(where):
        return error(capsys, "generate", where, "--prompt", "a")

    assert "there is no folder" in told(tmp_path / "none")
    assert "it has no config.json" in told(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in told(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gla"}')
    assert "type 'gla'" in told(tmp_path) and "from_fla" in told(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "tokenizer.json").unlink()
    assert "there is no tokenizer" in told(broken)


def test_broken_weights_and_vocabularies(capsys, folder, tmp_path):
    def told(where):
        return error(capsys, "generate", where, "--prompt", "a")

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights, config = broken / "model.safetensors", json.loads((broken / "config.json").read_text())
    data = weights.read_bytes()
    whole = load(data)
    weights.write_bytes(data[: len(data) // 2])
    assert "cannot be loaded" in told(broken)
    save_file({name: value for name, value in whole.items() if "q_proj" not in name}, weights, {"format": "pt"})
    assert "missing tensors: model.layers.0.mixer.q_proj.weight" in told(broken)
    save_file({**whole, "model.more": torch.ones(1)}, weights, {"format": "pt"})
    assert "unexpected tensors: model.more" in told(broken)
    weights.write_bytes(data)
    (broken / "config.json").write_text(json.dumps({**config, "hidden_size": 32, "head_dim": 16}))
    assert "cannot be loaded" in told(broken)
    small = tmp_path / "small"
    MirasForCausalLM(MirasConfig.preset("yaad-tiny", vocab_size=100, pad_token_id=0)).save_pretrained(small)
    byte_tokenizer().save_pretrained(small)
    assert "has 259 tokens, the model 100" in told(small)


@pytest.mark.parametrize(("command", "package", "extra"), [("read", "rich", "cli"), ("generate", "transformers", "hf")])
def test_a_missing_extra_says_what_to_install(capsys, monkeypatch, folder, book, tmp_path, command, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    arguments = [book, "--state", tmp_path / "out"] if command == "read" else ["--prompt", "a"]
    assert main([str(part) for part in (command, folder, *arguments)]) == 2
    assert capsys.readouterr().err == f"miras {command} needs {package}: pip install 'miras-torch[{extra}]'\n"


def test_what_is_read_is_never_written_over(capsys, folder, book, tmp_path):
    """Texts, weights and configurations are inputs; a memory takes the place of a memory alone."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    kept = {path: path.read_bytes() for path in (book, notes, *model.iterdir())}
    for target in (book, model / "model.safetensors"):
        assert "would be lost: name another file" in error(capsys, "read", model, book, "--state", target)
    assert "is no memory, and would be lost" in error(capsys, "read", model, book, "--state", notes)
    for target, words in ((model / "config.json", "would be lost: name another file"), (notes, "the file there is no memory")):
        assert words in error(capsys, "generate", model, "--prompt", "Hi", "--save-state", target, *SHORT)
    assert "would be lost" in error(capsys, "inspect", model, book, "--out", book)
    assert {path: path.read_bytes() for path in kept} == kept
    state = tmp_path / "book.safetensors"
    for _ in range(2):
        run(capsys, "read", model, book, "--state", state)


def test_models_of_parts_of_ones_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_parts.py").write_text(
        "from dataclasses import dataclass\n"
        "from miras import bias\n"
        "from miras.types import Rule\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Cushioned(bias.Bias):\n"
        "    def loss(self, prediction, value, delta):\n"
        "        return (1 + (prediction - value) ** 2).sqrt().sum(-1)\n\n"
        "    def gradient(self, prediction, value, delta):\n"
        "        e = prediction - value\n"
        "        return e / (1 + e * e).sqrt()\n\n"
        "    def rule(self):\n"
        "        return Rule('e_t / sqrt(1 + e_t^2)', 'e_t / \\\\sqrt{1 + e_t^2}')\n"
    )
    make = (
        "import torch, own_parts, miras.hf as hf\n"
        "from miras import Spec, presets\n"
        "import dataclasses\n"
        "spec = dataclasses.replace(presets.yaad(), bias=own_parts.Cushioned(), name='')\n"
        "hf.MirasForCausalLM(hf.MirasConfig.preset('yaad-tiny', spec=spec, eos_token_id=None)).save_pretrained('own')\n"
        "hf.byte_tokenizer().save_pretrained('own')\n"
    )
    subprocess.run([sys.executable, "-c", make], check=True, cwd=tmp_path)
    refused = error(capsys, "generate", "own", "--prompt", "Hi", *SHORT)
    assert "unknown bias 'Cushioned'" in refused and "once their module is imported (miras --import)" in refused
    assert "--import nowhere: No module named 'nowhere'" in error(capsys, "--import", "nowhere", "generate", "own")
    assert run(capsys, "--import", "own_parts", "generate", "own", "--prompt", "Hi", *SHORT).out
