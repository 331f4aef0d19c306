"""``miras eval``: what it prints, what it writes, what it refuses, each in one line."""

import builtins
import gzip
import json
import lzma
import shutil
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import miras.eval
from miras.cli import main
from miras.commands.measuring import table
from miras.eval import Sliding, Streaming, perplexity
from miras.hf import MirasConfig, MirasForCausalLM, byte_tokenizer

TEXT = "It was a dark and stormy night; the rain fell in torrents. Naïve?\n" * 12
PIQA = [{"goal": "Open a jar", "sol1": "Turn the lid", "sol2": "Wait", "label": 0}] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    where = tmp_path_factory.mktemp("model")
    MirasForCausalLM(MirasConfig.preset("gated_deltanet-tiny", eos_token_id=None)).save_pretrained(where)
    byte_tokenizer().save_pretrained(where)
    return where


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path):
    where = tmp_path / "data"
    where.mkdir()
    (where / "piqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PIQA))
    (where / "lambada.jsonl").write_text('{"text": "open the door"}\n')
    return where


def run(capsys, *argv):
    capsys.readouterr()
    assert main(["eval", *map(str, argv)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def error(capsys, *argv):
    capsys.readouterr()
    assert main(["eval", *map(str, argv)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("miras: ") and err.count("\n") == 1, err
    return err.strip()


# perplexity


def test_perplexity_prints_and_writes_what_the_function_gives(capsys, folder, book, tmp_path):
    out = tmp_path / "out.json"
    shown = run(capsys, "perplexity", folder, "--data", book, "--context", 64, "--stride", 64, "--buckets", 16, "--json", out)
    model = MirasForCausalLM.from_pretrained(folder).eval()
    wanted = perplexity(model, byte_tokenizer(), TEXT, mode=Sliding(context=64, stride=64), buckets=16)
    written = json.loads(out.read_text())
    assert written["nats"] == pytest.approx(wanted.loss.nats, rel=1e-6)
    assert written["bytes"] == len(TEXT.encode()) and written["model"] == str(folder) and written["stride"] == 64
    assert {"machine", "versions", "commit", "date", "command", "device"} <= written.keys()
    assert [bucket["nats"] for bucket in written["buckets"]] == pytest.approx([b.loss.nats for b in wanted.buckets], rel=1e-6)
    assert f"{wanted.loss.bits_per_byte:.4f}" in shown and "48-64" in shown and "tokens a second" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.txt", "out.json"]


def test_streaming(capsys, folder, book):
    shown = run(capsys, "perplexity", folder, "--data", book, "--mode", "streaming", "--stretch", 100, "--rows", 2)
    model = MirasForCausalLM.from_pretrained(folder).eval()
    wanted = perplexity(model, byte_tokenizer(), TEXT, mode=Streaming(stretch=100, rows=2))
    assert f"{wanted.loss.nats_per_token:.4f}" in shown and "streaming, stretch 100, rows 2" in shown and "100-200" in shown


def test_every_kind_of_file_reads_alike(capsys, folder, book, tmp_path):
    def bits(path, *options):
        line = run(capsys, "perplexity", folder, "--data", path, "--context", 2000, *options).splitlines()[-3]
        assert line.startswith("all")
        return line

    wanted = bits(book)
    for suffix, pack in ((".xz", lzma.compress), (".txt.gz", gzip.compress), (".raw", bytes)):
        (tmp_path / f"other{suffix}").write_bytes(pack(TEXT.encode()))
        assert bits(tmp_path / f"other{suffix}") == wanted
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"body": TEXT}) + "\n")
    assert bits(lines, "--data.field", "body") == wanted
    lines.write_text("{\n" + json.dumps({"body": TEXT}) + "\n")
    assert bits(lines, "--data.field", "body", "--data.on_bad", "skip") == wanted
    longer = tmp_path / "longer.txt"
    longer.write_text("äöü" + TEXT + "ß", encoding="utf-8")
    assert bits(longer, "--span", f"5:{6 + len(TEXT.encode())}") == wanted, "a span begins where a character does"
    several = tmp_path / "several"
    several.mkdir()
    (several / "a.txt").write_text(TEXT)
    assert bits(several) == wanted == bits(several, "--separate")


def test_another_tokenizer_and_autocast(capsys, folder, book, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    assert "there is no tokenizer" in error(capsys, "perplexity", bare, "--data", book)
    assert "all" in run(capsys, "perplexity", bare, "--data", book, "--tokenizer", "bytes", "--autocast")
    many = Tokenizer(models.WordLevel({f"w{number}": number for number in range(300)} | {"<end>": 300}, unk_token="w0"))
    many.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=many, eos_token="<end>").save_pretrained(tmp_path / "many")
    told = error(capsys, "perplexity", folder, "--data", book, "--tokenizer", tmp_path / "many")
    assert "has 301 tokens, the model 259: they do not belong together" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--context", "1"], "context must be 2 tokens or more, got 1"),
        (["--context", "8", "--stride", "9"], "stride must be 1 to 8, the context, got 9"),
        (["--mode", "streaming", "--context", "8"], "--context is no option of --mode streaming"),
        (["--rows", "2"], "--rows is no option of --mode sliding"),
        (["--mode", "streaming", "--stretch", "0"], "stretch must be 1 token or more"),
        (["--batch-tokens", "0"], "batch_tokens must be 1 or more"),
        (["--buckets", "x"], "--buckets takes whole numbers"),
        (["--buckets", "0"], "1 position or more"),
        (["--span", "7"], "--span takes A:B"),
        (["--span", "7:3"], "the span 7:3 does not lie in"),
        (["--json", "none/out.json"], "cannot write none/out.json: there is no folder none"),
        (["--mode", "diving"], "invalid choice"),
        (["--contxt", "8"], "no option --contxt"),
    ],
)
def test_options_of_perplexity_that_are_refused(capsys, folder, book, options, words):
    assert words in error(capsys, "perplexity", folder, "--data", book, *options)


def test_texts_that_are_refused(capsys, folder, tmp_path):
    def told(path, *options):
        return error(capsys, "perplexity", folder, "--data", path, *options)

    path = tmp_path / "a.txt"
    assert f"no such file or folder: {path}" in told(path)
    path.write_bytes(b"")
    assert "is empty" in told(path)
    path.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text: byte 0 cannot be read" in told(path)
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a"}\n{"body": "b"}\n')
    assert "a.jsonl, line 2: no text under 'text', it has body; --data.field names it" in told(lines)
    assert "a span of bytes is cut from one plain text" in told(lines, "--span", "0:3")
    lines.write_text('{"text": ""}\n')
    assert "has no text: there is nothing to score" in told(lines)
    packed = tmp_path / "a.xz"
    packed.write_bytes(b"not packed")
    assert "cannot be read" in told(packed)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no file to read" in told(empty)


def test_models_that_are_refused(capsys, book, tmp_path):
    assert "there is no folder" in error(capsys, "perplexity", tmp_path / "none", "--data", book)
    assert "it has no config.json" in error(capsys, "zero-shot", tmp_path, "--data", tmp_path)


# zero-shot


def test_zero_shot_prints_and_writes(capsys, folder, data, tmp_path):
    out = tmp_path / "out.json"
    shown = run(capsys, "zero-shot", folder, "--data", data, "--tasks", "piqa,lambada", "--json", out, "--answers")
    written = json.loads(out.read_text())
    piqa, lambada = written["tasks"]
    assert piqa["task"] == "piqa" and piqa["items"] == 2 and piqa["acc"] in (0, 1) and len(piqa["answers"]) == 2
    assert lambada["ppl"] > 1 and written["scored_by"] == "miras" and f"{lambada['ppl']:,.2f}" in shown
    run(capsys, "zero-shot", folder, "--data", data, "--tasks", "piqa", "--json", out, "--limit", 1)
    assert json.loads(out.read_text())["tasks"][0]["items"] == 1 and "answers" not in json.loads(out.read_text())["tasks"][0]


def test_zero_shot_refuses(capsys, folder, data):
    def told(*options):
        return error(capsys, "zero-shot", folder, *options)

    assert "unknown task 'mmlu': known are lambada, piqa, hellaswag" in told("--data", data, "--tasks", "mmlu")
    assert "holds no boolq.jsonl" in told("--data", data, "--tasks", "boolq")
    assert "no such folder" in told("--data", data / "none")
    assert "context must be 2 tokens or more" in told("--data", data, "--tasks", "piqa", "--context", "1")
    assert "which was not given" in told("--data", data, "--answers")
    assert "required" in told("--tasks", "piqa")
    (data / "piqa.jsonl").write_text(json.dumps(PIQA[0]) + '\n{"goal": "a"}\n')
    assert "piqa.jsonl, line 2: no field 'sol1'" in told("--data", data, "--tasks", "piqa")


def test_without_the_harness_our_scoring_works_alone(capsys, monkeypatch, folder, data):
    inner = builtins.__import__

    def absent(name, *rest, **options):
        if name.split(".")[0] == "lm_eval":
            raise ImportError(name)
        return inner(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert "acc" in run(capsys, "zero-shot", folder, "--data", data, "--tasks", "piqa")
    assert main(["eval", "zero-shot", str(folder), "--harness"]) == 2
    assert capsys.readouterr().err == "miras eval needs lm_eval: pip install 'miras-torch[harness]'\n"


def test_a_harness_without_its_data_says_what_to_do(capsys, monkeypatch, folder):
    pytest.importorskip("lm_eval")

    def offline(*model, **options):
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(miras.eval, "harness", offline)
    told = error(capsys, "zero-shot", folder, "--harness", "--tasks", "piqa")
    assert "could not get its data (Couldn't reach the hub): --data takes local files" in told


# needle


def test_needle_measures_and_draws(capsys, folder, book, tmp_path):
    out = tmp_path / "deep" / "needle"
    options = ["--lengths", "450,600", "--depths", "0,1", "--count", "1", "--haystack", book, "--out", out, "--seed", "5"]
    shown = run(capsys, "needle", folder, *options)
    lines = [json.loads(line) for line in (out / "needle.jsonl").read_text().splitlines()]
    assert len(lines) == 12 and {line["task"] for line in lines} == {"s-niah-1", "s-niah-2", "s-niah-3"}
    assert all(line["tokens"] <= line["length"] and line["found"] is False and line["seed"] == 5 for line in lines)
    assert (out / "needle.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (out / "needle.svg").read_text()
    assert "s-niah-3" in shown and "0.0 %" in shown
    cheap = run(capsys, "needle", folder, *options, "--no-generate", "--tasks", "s-niah-1")
    again = [json.loads(line) for line in (out / "needle.jsonl").read_text().splitlines()]
    assert len(again) == 4 and again[0]["generated"] is None and again[0]["answer"] == lines[0]["answer"] and "-" in cheap


def test_needles_are_written_to_learn_from(capsys, folder, tmp_path):
    out = tmp_path / "train.jsonl"
    options = ["--tasks", "s-niah-1", "--lengths", "500,700", "--count", "4", "--write", out]
    assert "Wrote 4 needles" in run(capsys, "needle", "--tokenizer", "bytes", *options)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["length"] for line in lines] == [500, 700, 500, 700] and all(
        line["answer"] in line["prompt"] for line in lines
    )
    run(capsys, "needle", folder, *options)
    assert [json.loads(line) for line in out.read_text().splitlines()] == lines


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "s-niah-2 hides its needle in prose, and no haystack was given: give one (--haystack), or --tasks s-niah-1 alone"),
        (["--tasks", "s-niah-4"], "unknown task 's-niah-4': known are s-niah-1"),
        (["--tasks", "s-niah-1", "--lengths", "many"], "--lengths takes whole numbers"),
        (["--tasks", "s-niah-1", "--depths", "deep"], "--depths takes shares"),
        (["--tasks", "s-niah-1", "--depths", "2"], "a depth lies from 0 to 1, got 2.0"),
        (["--tasks", "s-niah-1", "--lengths", "50"], "a length of 50 is too short"),
        (["--haystack", "none.txt"], "no such file or folder: none.txt"),
        (["--tasks", "s-niah-1", "--write", "none/out.jsonl"], "cannot write none/out.jsonl"),
        (["--tasks", "s-niah-1", "--write", "out.jsonl", "--depths", "0"], "--depths is for measuring"),
    ],
)
def test_needle_refuses(capsys, monkeypatch, folder, tmp_path, options, words):
    monkeypatch.chdir(tmp_path)
    assert words in error(capsys, "needle", folder, *options)
    assert not (tmp_path / "out.jsonl").exists()


def test_needle_without_a_model(capsys):
    assert "there is no MODEL to ask" in error(capsys, "needle", "--tasks", "s-niah-1")
    told = error(capsys, "needle", "--tasks", "s-niah-1", "--write", "out.jsonl")
    assert "give MODEL, or --tokenizer" in told


def test_a_write_that_fails_leaves_nothing(capsys, tmp_path):
    """The second length is too short, which is found when the first needle is written already."""
    out = tmp_path / "train.jsonl"
    options = ["--tasks", "s-niah-1", "--lengths", "500,50", "--count", "2", "--write", out]
    assert "too short" in error(capsys, "needle", "--tokenizer", "bytes", *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["rich", "transformers", "numpy"])
def test_a_missing_package_says_what_to_install(capsys, monkeypatch, folder, book, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["eval", "perplexity", str(folder), "--data", str(book)]) == 2
    extra = "cli" if package == "rich" else "eval"
    assert capsys.readouterr().err == f"miras eval needs {package}: pip install 'miras-torch[{extra}]'\n"


def test_columns():
    assert table([["a", "b"], ["long", "1"]]) == "a     b\nlong  1"


def test_what_is_read_is_never_written_over(capsys, folder, book):
    before = book.read_bytes()
    for argv in (
        ["perplexity", folder, "--data", book, "--context", "64", "--json", book],
        ["perplexity", folder, "--data", book, "--context", "64", "--json", folder / "config.json"],
        ["needle", "--write", book, "--haystack", book, "--tokenizer", "bytes", "--count", "1", "--lengths", "512"],
    ):
        capsys.readouterr()
        assert main(["eval", *map(str, argv)]) == 2
        assert "would be lost: name another file" in capsys.readouterr().err
    assert book.read_bytes() == before
