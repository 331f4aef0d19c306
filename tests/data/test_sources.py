import gzip
import json
import lzma
import os

import pyarrow
import pyarrow.parquet
import pytest

from miras.data import sources
from miras.data.embedded import Embedded
from miras.data.sources import Complaints, Files, Hub, source_of

TEXTS = [f"document {i}\nwith two lines and ünïcode" for i in range(40)]


def read(path, on_bad="error", **options):
    complaints = Complaints(on_bad)
    pieces = list(source_of(str(path), **options).pieces(complaints))
    return [piece.text for piece in pieces], complaints


def write(path, lines):
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8", newline="") as handle:
        handle.write("".join(lines))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.xz", "a.jsonl.gz"])
def test_jsonl(tmp_path, name):
    path = write(tmp_path / name, [json.dumps({"text": text, "title": 3}) + "\n" for text in TEXTS])
    assert read(path)[0] == TEXTS


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, name):
    path = write(tmp_path / name, ["\ufeff", *(json.dumps({"text": text}) + "\n" for text in TEXTS)])
    assert read(path)[0] == TEXTS


def test_parquet(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS, "other": list(range(40))}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0] == TEXTS
    with pytest.raises(ValueError, match=r"no column 'body': it has text, other; --data\.field names it"):
        read(tmp_path / "a.parquet", field="body")


@pytest.mark.parametrize(("column", "found"), [([None, 3], "row 2 is int"), ([b"bytes"], "row 1 is bytes")])
def test_a_column_without_text(tmp_path, column, found):
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=rf"a\.parquet: the column 'text' holds no text, {found}"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("packed", ["snappy", "none"])
def test_a_damaged_column(tmp_path, packed):
    """What lies between the two ends of a file is read last, packed or not."""
    table, path = pyarrow.table({"text": [text * 9 for text in TEXTS]}), tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, compression=packed, use_dictionary=False)
    damaged = bytearray(path.read_bytes())
    middle = len(damaged) // 3
    damaged[middle : middle + 100] = b"\xff" * 100
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read after row \d+: "):
        read(path)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.xz"])
def test_a_single_text_file_gives_its_end_for_validation(tmp_path, name, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 100)
    text = "\r\n".join(TEXTS)
    path = write(tmp_path / name, [text])
    pieces = list(source_of(str(path), valid_share=0.1).pieces(Complaints("error")))
    assert len(pieces) > 5 and "".join(piece.text for piece in pieces) == text
    splits = [piece.split for piece in pieces]
    assert splits == sorted(splits) and set(splits) == {"train", "valid"}
    share = sum(len(piece.text) for piece in pieces if piece.split == "valid") / len(text)
    assert 0.05 < share < 0.15
    # each split is one document
    assert [piece.split for piece in pieces if piece.closes] == ["train", "valid"]


@pytest.mark.parametrize("text", ["word " * 2001, "a\n" * 50 + "word " * 2000 + "\n", "no end\n" * 20 + "word " * 500])
def test_a_single_text_of_long_lines_has_an_end_too(tmp_path, text):
    pieces = list(source_of(str(write(tmp_path / "a.txt", [text])), valid_share=0.1).pieces(Complaints("error")))
    assert [piece.split for piece in pieces] == ["train", "valid"] and "".join(piece.text for piece in pieces) == text
    assert len(pieces[1].text) == pytest.approx(0.1 * len(text), rel=0.3)


def test_a_folder_is_read_in_the_order_of_its_names_and_says_what_it_passes_over(tmp_path):
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "x.txt", ["second"])
    write(tmp_path / "a.jsonl", [json.dumps({"text": "first"})])
    write(tmp_path / "notes.pdf", ["?"])
    texts, complaints = read(tmp_path)
    assert texts == ["first", "second"]
    assert complaints.summary() == [f"passed over 1 files of other kinds; the first: {tmp_path / 'notes.pdf'}"]


def test_documents_are_split_by_name_alone(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, names in ((one, "abcdefghij"), (two, "cdefghijkl")):
        folder.mkdir()
        for name in names:
            write(folder / f"{name}.txt", [name])
    splits = [
        {piece.name: piece.split for piece in source_of(str(folder), valid_share=0.4).pieces(Complaints("error"))}
        for folder in (one, two)
    ]
    common = splits[0].keys() & splits[1].keys()
    assert len(common) == 8 and all(splits[0][name] == splits[1][name] for name in common)
    assert len(set(splits[0].values())) == 2


BAD = [
    ('{"text": "fine"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
    (
        '{"text": "fine"}\n\n{"body": "x", "id": 1}\n',
        r"a\.jsonl, line 3: no text under 'text', it has body, id; --data\.field names it",
    ),
    ('{"text": "fine"}\n[1]\n', r"a\.jsonl, line 2: no text under 'text', it is no object"),
    ('{"text": "fine"}\n{"text": null}\n', r"a\.jsonl, line 2: no text under 'text', it is a NoneType there"),
    ('{"text": "fine"}\n{"text": "cut \\ud83d"}\n', r"a\.jsonl, line 2: half a character \(a lone surrogate\) under 'text'"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_a_bad_line_is_named_by_its_number_or_counted(tmp_path, content, message):
    path = write(tmp_path / "a.jsonl", [content])
    with pytest.raises(ValueError, match=message):
        read(path)
    texts, complaints = read(path, on_bad="skip")
    assert texts == ["fine"] and complaints.counts == {"lines": 1}
    assert complaints.summary()[0].startswith(f"passed over 1 lines; the first: {path}, line")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"\x80\xff\x00abc", "is not UTF-8 text"), (b"PK\x00\x03", "is not UTF-8 text")]
)
def test_empty_and_binary_files(tmp_path, content, message):
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{message}|not JSON"):
            read(tmp_path / name)
    texts, complaints = read(tmp_path, on_bad="skip")
    assert texts == [] and sum(complaints.counts.values()) == 2


def test_a_truncated_archive(tmp_path):
    whole = lzma.compress(os.urandom(3000).hex().encode())
    (tmp_path / "a.txt.xz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.jsonl.xz").write_bytes(b"no archive")
    for name in ("a.txt.xz", "b.jsonl.xz"):
        with pytest.raises(ValueError, match="cannot be unpacked"):
            read(tmp_path / name)


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(ValueError, match="no such file or folder"):
        source_of(str(tmp_path / "missing.txt"))
    with pytest.raises(ValueError, match=r"cannot read .*a\.pdf: the kinds of files known are \.txt"):
        source_of(str(write(tmp_path / "a.pdf", ["x"])))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no file to read"):
        source_of(str(tmp_path / "empty"))
    assert isinstance(source_of("owner/dataset"), Hub)


def test_a_dataset_is_streamed(tmp_path):
    """A folder that ``datasets`` reads stands for a name on the hub."""
    write(tmp_path / "train.jsonl", [json.dumps({"text": text}) + "\n" for text in [*TEXTS, ""]])
    hub = Hub(str(tmp_path), subset=None, split="train", field="text", valid_share=0.2)
    complaints = Complaints("error")
    pieces = list(hub.pieces(complaints))
    assert [piece.text for piece in pieces] == TEXTS and {piece.split for piece in pieces} == {"train", "valid"}
    assert complaints.counts == {"empty documents": 1}
    wrong = Hub(str(tmp_path), subset=None, split="train", field="body", valid_share=0.2)
    with pytest.raises(ValueError, match="row 0: no text under 'body', it has text"):
        list(wrong.pieces(Complaints("error")))
    missing = Hub(str(tmp_path / "none"), subset=None, split="train", field="text", valid_share=0.2)
    with pytest.raises(ValueError, match="neither a file or folder here nor a dataset that can be opened"):
        list(missing.pieces(Complaints("error")))


def test_the_embedded_corpus():
    pieces = list(Embedded().pieces(Complaints("error")))
    names = {piece.name: piece for piece in pieces}
    assert {"topics/class", "hashlib.py", "json/decoder.py"} <= names.keys()
    assert sum(len(piece.text) for piece in pieces) > 5_000_000
    assert not any("site-packages" in name or "/test/" in name for name in names)
    # the split is by name alone, so these stay where they are in every version of Python that has them
    assert {name: names[name].split for name in ("topics/class", "hashlib.py", "json/decoder.py")} == {
        "topics/class": "valid",
        "hashlib.py": "valid",
        "json/decoder.py": "train",
    }
    share = sum(len(piece.text) for piece in pieces if piece.split == "valid") / sum(len(piece.text) for piece in pieces)
    assert 0.005 < share < 0.1


def test_files_are_known_by_name_size_and_time(tmp_path):
    path = write(tmp_path / "a.txt", ["one"])
    before = Files(path, field="text", valid_share=0.1).fingerprint
    assert Files(path, field="text", valid_share=0.1).fingerprint == before
    write(path, ["other"])
    assert Files(path, field="text", valid_share=0.1).fingerprint != before
