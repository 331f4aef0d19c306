import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from miras.data import Batches, Bytes, prepare, source_of
from miras.data import corpus as corpus_module
from miras.data.sequences import batch_of, spread
from miras.data.shards import Tokens, broken, dtype_for
from miras.types import IGNORED

TEXTS = [f"document {i} " + "x" * (i % 7) for i in range(60)]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return source_of(str(path), valid_share=0.2)


@pytest.fixture
def corpus(source, tmp_path):
    # shards of 100 tokens: everything crosses a border
    return prepare(source, Bytes(), tmp_path / "cache", shard=100)


def documents(tokens):
    starts = [0, *tokens.ends[:-1].tolist()]
    return [tokens.read(start, end) for start, end in zip(starts, tokens.ends.tolist(), strict=True)]


def test_every_document_is_there_once_and_whole(corpus):
    found = [bytes(ids[:-1].tolist()).decode() for split in (corpus.train, corpus.valid) for ids in documents(split)]
    assert sorted(found) == sorted(TEXTS) and len(corpus.valid.ends) > 3
    assert all(ids[-1] == 258 for ids in documents(corpus.train))
    assert len(corpus.train.shards) > 3 and corpus.train.count == corpus.train.ends[-1]
    assert corpus.train.bytes_per_token == pytest.approx(1 - len(corpus.train.ends) / corpus.train.count)


def test_found_again(corpus, source, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "build", None)
    again = prepare(source, Bytes(), tmp_path / "cache", shard=100)
    assert again.folder == corpus.folder and again.train.digest == corpus.train.digest


def damage_meta(folder):
    (folder / "meta.json").write_text((folder / "meta.json").read_text()[:-40])


def remove_meta(folder):
    (folder / "meta.json").unlink()


def truncate(folder):
    os.truncate(folder / "train-00001.bin", 50)


def remove_shard(folder):
    (folder / "valid-documents.bin").unlink()


@pytest.mark.parametrize("damage", [damage_meta, remove_meta, truncate, remove_shard])
def test_a_folder_that_is_not_whole_is_made_again(corpus, source, tmp_path, damage, capsys):
    damage(corpus.folder)
    again = prepare(source, Bytes(), tmp_path / "cache", shard=100)
    assert broken(again.folder) is None and again.train.digest == corpus.train.digest
    assert capsys.readouterr().err.startswith(f"miras: tokenising again, since {corpus.folder} is not whole: ")


KILLED = """
import sys, time
from pathlib import Path
from miras.data import Bytes, prepare, source_of
class Slow(Bytes):
    def encode(self, texts):
        print("begun", flush=True)
        time.sleep(60)
prepare(source_of(sys.argv[1], valid_share=0.2), Slow(), Path(sys.argv[2]), shard=100)
"""


def test_killed_while_it_is_made(source, tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a.jsonl"), str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
    (left,) = (tmp_path / "cache").iterdir()
    assert ".partial-" in left.name
    deadline = time.monotonic() + 5
    while corpus_module.running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    corpus = prepare(source, Bytes(), tmp_path / "cache", shard=100)
    assert list((tmp_path / "cache").iterdir()) == [corpus.folder]


def test_a_full_disk_leaves_nothing_behind(source, tmp_path, monkeypatch):
    def full(writer):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus_module.Writer, "finish", full)
    with pytest.raises(OSError, match="No space left"):
        prepare(source, Bytes(), tmp_path / "cache", shard=100)
    assert list((tmp_path / "cache").iterdir()) == []


def test_validation_from_elsewhere(source, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("only for validation\n" * 3)
    corpus = prepare(source, Bytes(), tmp_path / "cache", valid=source_of(str(other)))
    assert bytes(corpus.valid.read(0, 20).tolist()) == b"only for validation\n"
    assert len(corpus.train.ends) < len(TEXTS) or corpus.train.count > 0


def test_too_little_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(ValueError, match=r"too few documents to set one aside .*--data\.valid_path"):
        prepare(source_of(str(tmp_path / "a.jsonl")), Bytes(), tmp_path / "cache")
    (tmp_path / "b.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(ValueError, match="gave no text to train on"):
        prepare(source_of(str(tmp_path / "b.jsonl")), Bytes(), tmp_path / "cache")


def test_only_so_many_tokens(source, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "BATCH", 50)
    corpus = prepare(source, Bytes(), tmp_path / "cache", max_tokens=300)
    assert 300 <= corpus.train.count < 400


def test_wide_vocabularies_take_four_bytes():
    assert dtype_for(2**16).itemsize == 2 and dtype_for(2**16 + 1).itemsize == 4
    with pytest.raises(ValueError, match="does not fit four bytes"):
        dtype_for(2**33)


# sequences


def batches(corpus, **changes):
    options = {"length": 16, "batch": 8, "micro_batch": 2, "seed": 5, **changes}
    return Batches(corpus.train, **options)


def test_targets_are_the_tokens_that_follow(corpus):
    batch = batch_of(corpus.train, [0, 3], 16, isolate=False)
    assert batch.inputs.shape == batch.targets.shape == (2, 16) and batch.bounds is None
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.targets[1, -1] == corpus.train.read(64, 65)[0]


def test_rows_do_not_depend_on_the_number_of_processes(corpus):
    for step in (0, 3, 1000):
        whole = torch.cat([batch.inputs for batch in batches(corpus)[step]])
        assert len(whole) == 8
        for processes, micro in ((2, 1), (4, 2)):
            parts = [batches(corpus, processes=processes, process=i, micro_batch=micro)[step] for i in range(processes)]
            assert torch.equal(torch.cat([batch.inputs for part in parts for batch in part]), whole)


def test_an_epoch_reads_every_sequence_once(corpus):
    mine = batches(corpus, batch=1, micro_batch=1)
    seen = {tuple(mine[step][0].inputs[0].tolist()) for step in range(mine.count)}
    assert seen == {tuple(corpus.train.read(i * 16, i * 16 + 16).tolist()) for i in range(mine.count)}


def test_isolated_documents(corpus):
    """Bounds are where documents begin, and no target crosses one; against a plain loop over the row of tokens."""
    chosen, length = [1, 4, 2], 40
    batch = batch_of(corpus.train, chosen, length, isolate=True)
    begins = {0, *corpus.train.ends.tolist()}
    bounds, targets = [], []
    for row, number in enumerate(chosen):
        for place in range(length):
            here = number * length + place
            if place == 0 or here in begins:
                bounds.append(row * length + place)
            targets.append(IGNORED if here + 1 in begins else int(corpus.train.read(here + 1, here + 2)[0]))
    assert batch.bounds.tolist() == [*bounds, 120] and batch.bounds.dtype == torch.int32
    assert batch.targets.tolist() == [targets] and IGNORED in targets and len(bounds) > 5
    assert batch.inputs.shape == (1, 120)


def test_what_validation_reads_is_fixed_and_spread(corpus):
    whole = spread(corpus.train, 16, 10**6)
    assert whole == list(range((corpus.train.count - 1) // 16))
    few = spread(corpus.train, 16, 5)
    assert len(set(few)) == 5 and np.ptp(few) > 0.7 * len(whole)


def test_sizes_that_do_not_fit(corpus):
    with pytest.raises(ValueError, match=r"data\.batch \(8 sequences\) must be a multiple of the processes \(3\) times"):
        batches(corpus, processes=3)
    with pytest.raises(ValueError, match=r"fewer than one sequence \(data\.length 100000\)"):
        batches(corpus, length=100_000)


def test_reading_over_the_borders_of_shards(corpus):
    whole = np.concatenate([np.asarray(shard) for shard in corpus.train.shards])
    mine = Tokens(corpus.folder, "train")
    for start, stop in ((0, 1), (99, 101), (100, 200), (50, 350), (0, mine.count)):
        assert mine.read(start, stop).tolist() == whole[start:stop].tolist()
