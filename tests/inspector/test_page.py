"""The page: it parses, holds the numbers, needs nothing from outside; the command makes it or says in one line why not."""

import base64
import json
import re
import shutil
import zlib
from html.parser import HTMLParser

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from miras import presets
from miras.cli import main
from miras.hf import MirasConfig, MirasForCausalLM, byte_tokenizer
from miras.inspector.packing import Packer, thinned
from miras.inspector.page import BUDGET, page
from miras.inspector.reading import Layer, Reading, read, steps_of
from miras.inspector.text import Tokens, tokens_of
from miras.inspector.walk import Band, LayerTrace

TEXT = 'def f(x):\n    return "</script><b>né" + x  # 世界\n' * 3
VOID = {"meta", "link", "br", "img", "input"}


def unpacked(data, place):
    """The values of an array in inflated bytes, as the page reads them: 255 is missing, 0 is zero or, without ``log``, low."""
    low, high = (torch.tensor(place[name], dtype=torch.float64)[:, None] for name in ("low", "high"))
    count = len(low) * place["length"]
    level = torch.frombuffer(bytearray(data[place["at"] : place["at"] + count]), dtype=torch.uint8).reshape(len(low), -1)
    x = low + (high - low) * (level.double() - 1) / 253
    x = torch.where(level > 0, x.exp(), 0.0) if place["log"] else torch.where(level > 0, x, low)
    return torch.where(level == 255, torch.nan, x)


class Outline(HTMLParser):
    """The elements of a page, every one closed, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.scripts, self.links = [], [], set(), {}, []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        self.ids.add(given.get("id"))
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action", "poster")]
        if tag not in VOID:
            self.open.append((tag, given.get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            self.scripts[self.open[-1][1]] = self.scripts.get(self.open[-1][1], "") + data


def model(name="yaad-tiny", **changes):
    torch.manual_seed(0)
    return MirasForCausalLM(MirasConfig.preset(name, **{"chunk_size": 16, **changes})).eval()


def content_of(text):
    """What a page says and the numbers it holds, inflated."""
    outline = Outline(text)
    return json.loads(outline.scripts["content"]), zlib.decompress(base64.b64decode(outline.scripts["numbers"])), outline


@pytest.fixture(scope="module")
def reading():
    return read(model(), tokens_of(byte_tokenizer(), TEXT, 100))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model("gated_deltanet-tiny-h").save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


# numbers and text


@pytest.mark.parametrize("log", [False, True])
def test_packed_numbers_come_back(log):
    values = torch.randn(2, 3, 50, dtype=torch.float64).exp()
    values[0, 0, 3], values[1, 2, 7], values[1, 0] = torch.nan, 0.0, 4.0
    packer = Packer()
    packer.add(torch.rand(5))
    place = packer.add(values, log=log)
    back = unpacked(zlib.decompress(base64.b64decode(packer.text())), place).reshape(values.shape)
    assert torch.equal(back.isnan(), values.isnan()) and torch.allclose(back[1, 0], values[1, 0])
    there = ~values.isnan()
    if log:
        assert back[1, 2, 7] == 0 and ((back / values - 1)[there & (values > 0)].abs() < 0.02).all()
    else:
        spread = values.nan_to_num().amax(-1, keepdim=True)
        assert ((back - values).abs() / spread)[there].max() <= 0.5 / 253 + 1e-6


def test_thinning_keeps_what_a_band_covers():
    x = torch.arange(10.0)
    assert thinned(x, 4, "mean").tolist() == [1.5, 5.5, 8.5]
    assert thinned(x, 4, "low").tolist() == [0, 4, 8] and thinned(x, 4, "high").tolist() == [3, 7, 9]


def test_pieces_make_up_the_text():
    whole = tokens_of(byte_tokenizer(), TEXT, 10**6)
    assert "".join(whole.pieces) == TEXT and len(whole.ids) == whole.total == len(TEXT.encode())
    assert whole.pieces[TEXT.encode().index("é".encode()) :][:2] == ["é", ""] and not any(whole.special)
    part = tokens_of(byte_tokenizer(), TEXT, 7)
    assert part.ids == whole.ids[:7] and part.total == whole.total
    with pytest.raises(ValueError, match="no tokens"):
        tokens_of(byte_tokenizer(), "", 7)


def test_the_loss_is_the_model_s():
    lm, heard = model().double(), []
    found = read(lm, tokens_of(byte_tokenizer(), TEXT, 60), advance=heard.append)
    ids = torch.tensor(found.tokens.ids)
    with torch.no_grad():
        want = F.cross_entropy(lm(ids[None]).logits[0, :-1], ids[1:], reduction="none")
    assert found.loss[0].isnan() and torch.allclose(found.loss[1:], want) and sum(heard) == steps_of(lm, 60)
    assert [layer.trace.surprise.shape for layer in found.layers] == [(2, 60)] * 2


def test_logits_in_pieces_are_all_logits(monkeypatch):
    tokens, lm = tokens_of(byte_tokenizer(), TEXT, 21), model()
    whole = read(lm, tokens).loss
    monkeypatch.setattr("miras.inspector.reading.LOGITS", 5)
    assert torch.allclose(read(lm, tokens).loss[1:], whole[1:], atol=1e-5)


# the page


def test_the_page_parses_and_needs_nothing_from_outside(reading):
    text = page(reading, "a <b>.txt")
    outline = Outline(text)
    numbers = outline.scripts["numbers"]
    assert outline.links == [] and not re.search(r"https?:|//[a-z]|@import|url\(", text.replace(numbers, ""))
    assert "default-src 'none'" in text and "{{" not in text
    script = outline.scripts[None]
    assert set(re.findall(r'\$\("(\w+)"\)', script)) <= outline.ids


def test_the_page_holds_the_numbers(reading):
    content, data, _ = content_of(page(reading, "a.txt"))
    assert "".join(content["pieces"]) == "".join(reading.tokens.pieces) and content["ids"] == reading.tokens.ids
    assert torch.allclose(unpacked(data, content["loss"])[0, 1:], reading.loss[1:].double(), atol=0.05)
    assert content["mean_loss"] == pytest.approx(reading.loss[1:].mean().item(), rel=1e-5)
    for shown, layer in zip(content["layers"], reading.layers, strict=True):
        trace = layer.trace
        assert shown["memory"] and shown["title"] == presets.yaad().title and shown["ends"][:3] == [0, 16, 32]
        assert torch.allclose(unpacked(data, shown["surprise"]), trace.surprise.double(), rtol=0.01)
        assert torch.allclose(unpacked(data, shown["error"]), trace.error.double(), rtol=0.01)
        assert torch.allclose(unpacked(data, shown["clipped"]), trace.clipped.double(), atol=0.01)
        assert torch.allclose(unpacked(data, shown["norms"]), trace.norms.flatten(0, 1).double(), rtol=0.01)
        assert [gate["name"] for gate in shown["gates"]] == list(trace.bands) == ["step", "decay", "threshold"]
        for gate, band in zip(shown["gates"], trace.bands.values(), strict=True):
            assert torch.allclose(unpacked(data, gate["high"]), band.high.double(), rtol=0.02)
        assert set(shown["absent"]) == {"Soft threshold"}


@pytest.mark.parametrize("name", [*presets.PRESETS, "yaad-h"])
def test_every_kind_of_memory_has_a_page(name):
    kind = f"{name.removesuffix('-h')}-tiny" + ("-h" if name.endswith("-h") else "")
    found = read(model(kind, chunk_size=4), tokens_of(byte_tokenizer(), TEXT, 10))
    content, _, _ = content_of(page(found, "a.txt"))
    layers = content["layers"]
    assert all(layer["memory"] or "softmax attention" in layer["absent"]["Everything below"] for layer in layers)
    assert [layer["memory"] for layer in layers] == {"transformer": [False, False], "yaad-h": [True, False]}.get(
        name, [True, True]
    )
    if name == "deltanet":
        assert set(layers[0]["absent"]) == {"Retention", "Threshold", "Soft threshold"}
    if name == "gla":
        assert set(layers[0]["absent"]) == {"Error", "Step", "Threshold", "Soft threshold"} and layers[0]["error"] is None


def test_a_large_reading_stays_small():
    time, heads, depth = 2048, 16, 24
    ends = [*range(0, time, 64), time]
    noise = torch.randn(heads, time).exp()
    band = Band(noise, noise / 2, noise * 2)
    bands = dict.fromkeys(("step", "decay", "threshold"), band)
    norms = torch.rand(2, heads, len(ends))
    trace = LayerTrace(noise, noise, noise / noise.max(), bands, ends, norms, norms[..., 1:], None, torch.empty(0))
    layers = [Layer("yaad", heads, 64, trace, {})] * depth
    tokens = Tokens([1] * time, ["word "] * time, [False] * time, time)
    text = page(Reading("m", tokens, torch.rand(time), layers), "a.txt")
    content, data, _ = content_of(text)
    assert content["every"] == 8 and len(text) < 6e6
    assert len(data) < 3 * time * heads * depth + BUDGET + 10**5


# the command


def test_inspect_writes_a_page(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    assert main(["inspect", str(folder), "a.txt", "--tokens", "50"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "the first 50 of" in out and "a.inspect.html" in out
    content, _, _ = content_of((tmp_path / "a.inspect.html").read_text())
    assert content["model"] == "gated_deltanet-tiny-h" and len(content["ids"]) == 50
    assert [layer["memory"] for layer in content["layers"]] == [True, False]
    assert main(["inspect", str(folder), "a.txt", "--out", str(tmp_path / "b.html"), "--tokens", "5"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.inspect.html", "a.txt", "b.html"]


def broken(folder, tmp_path, how):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    weights = copy / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-50])
    elif how == "missing":
        kept = load_file(weights)
        kept.pop("model.norm.weight")
        save_file(kept, weights, metadata={"format": "pt"})
    elif how == "unexpected":
        save_file({**load_file(weights), "other": torch.zeros(2)}, weights, metadata={"format": "pt"})
    elif how == "no tokenizer":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (copy / name).unlink()
    elif how == "other kind":
        (copy / "config.json").write_text('{"model_type": "llama"}')
    elif how == "vocabulary":
        small = model("gated_deltanet-tiny-h", vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        small.save_pretrained(copy)
    return str(copy)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated", "cannot be loaded"),
        ("missing", "has missing tensors: model.norm.weight (1 in all)"),
        ("unexpected", "has unexpected tensors: other (1 in all)"),
        ("no tokenizer", "there is no tokenizer in"),
        ("other kind", "is a model of type 'llama', not 'miras'"),
        ("vocabulary", "has 259 tokens, the model 60: they do not belong together"),
    ],
)
def test_a_broken_model_is_refused_in_one_line(folder, tmp_path, capsys, how, said):
    (tmp_path / "a.txt").write_text(TEXT)
    copy = broken(folder, tmp_path, how)
    capsys.readouterr()
    code = main(["inspect", copy, str(tmp_path / "a.txt"), "--out", str(tmp_path / "p.html")])
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1 and said in err
    assert not (tmp_path / "p.html").exists() and not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["none", "{t}/a.txt"],
            "there is no folder none: a model is a folder that save_pretrained wrote, or",
        ),
        (["none/none", "{t}/a.txt"], "none/none cannot be loaded: "),
        (["{f}", "{t}/none.txt"], "none.txt"),
        (["{f}", "{t}/empty.txt"], "the text has no tokens: there is nothing to read"),
        (["{f}", "{t}/latin.txt"], "latin.txt is not UTF-8 text: byte 1 cannot be read"),
        (["{f}", "{t}/a.txt", "--tokens", "0"], "--tokens must be 1 or more, got 0"),
        (["{f}", "{t}/a.txt", "--out", "{t}/no/page.html"], "there is no folder"),
        (["{f}", "{t}/a.txt", "--out", "{t}"], "is a folder: name a file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(folder, tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"n\xe9 ")
    given = [argument.format(f=folder, t=tmp_path) for argument in arguments]
    out = [] if "--out" in given else ["--out", str(tmp_path / "p.html")]
    code = main(["inspect", *given, *out])
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1 and said in err
