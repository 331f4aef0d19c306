"""Training on a dataset's name: ``datasets`` streams it, as it would from the hub, from a folder that stands for one there."""

import itertools
import json

import datasets
import pytest
from test_train import error_of

WORDS = ["the", "memory", "keeps", "what", "surprises", "it", "and", "lets", "go", "of", "the", "rest"]
CARD = """---
configs:
- config_name: prose
  data_files: [{split: train, path: prose.jsonl}]
- config_name: verse
  data_files: [{split: train, path: verse/*.jsonl}, {split: other, path: prose.jsonl}]
---
"""


def row(number):
    return {"body": " ".join(WORDS[(number * k) % 11] for k in range(1, 30)) + f" {number}", "id": number}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """``owner/name`` is a folder laid out as a repository on the hub; what was asked for is noted."""
    repository = tmp_path / "repository"
    (repository / "verse").mkdir(parents=True)
    (repository / "README.md").write_text(CARD)
    (repository / "prose.jsonl").write_text(json.dumps({"body": "prose", "id": 0}) + "\n")
    for part in range(2):
        lines = [json.dumps(row(number)) + "\n" for number in range(60 * part, 60 * part + 60)]
        (repository / "verse" / f"{part}.jsonl").write_text("".join(lines))
    real, asked = datasets.load_dataset, []

    def load(path, /, **options):
        asked.append((path, options))
        return real(str(repository) if path == "owner/name" else path, **options)

    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


NAMED = ["--data.path", "owner/name", "--data.field", "body", "--optim.steps", "3"]


def test_a_subset_is_streamed_and_trained_on(lab, hub):
    assert lab.here("streamed", *NAMED, "--data.subset", "verse") == 0
    assert hub == [("owner/name", {"name": "verse", "split": "train", "streaming": True})]
    about = lab.about("streamed")["data"]
    assert about["title"] == "owner/name (verse), split train, streamed"
    size = sum(len(row(number)["body"]) + 1 for number in range(120))
    assert about["train"] + about["valid"] == size and about["valid"] > 0
    # tokenised once: the second run does not ask again
    assert lab.here("again", *NAMED, "--data.subset", "verse") == 0 and len(hub) == 1
    assert lab.losses("again") == lab.losses("streamed")


def test_what_cannot_be_opened_is_one_line(lab, hub, capsys):
    told = error_of(capsys, lab, "none", *NAMED, "--data.subset", "song")
    assert "owner/name is neither a file or folder here nor a dataset that can be opened: " in told and "song" in told
    told = error_of(capsys, lab, "none", *NAMED, "--data.subset", "verse", "--data.split", "late")
    assert "can be opened: " in told and "late" in told
    told = error_of(capsys, lab, "none", *NAMED[:2], "--data.subset", "verse")
    assert "owner/name, row 0: no text under 'text', it has body, id; --data.field names it" in told
    assert not (lab.root / "none").exists()


def endless(seen, broken=None):
    """A stream that never ends by itself; it may break."""

    def rows():
        for number in itertools.count():
            if number == broken:
                raise ConnectionError("the line went dead")
            seen.append(number)
            yield row(number)

    return datasets.IterableDataset.from_generator(rows)


def test_no_more_is_read_than_is_asked_for(lab, monkeypatch):
    seen = []
    monkeypatch.setattr(datasets, "load_dataset", lambda path, /, **options: endless(seen))
    monkeypatch.setattr("miras.data.corpus.BATCH", 1000)
    assert lab.here("some", *NAMED, "--data.max_tokens", "8000") == 0
    assert 8000 <= lab.about("some")["data"]["train"] < 9500 and 50 < len(seen) < 80


def test_a_stream_that_breaks_leaves_nothing(lab, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "load_dataset", lambda path, /, **options: endless([], broken=30))
    told = error_of(capsys, lab, "broken", *NAMED)
    assert "the stream of owner/name broke after 30 rows, nothing of it is kept: " in told and "went dead" in told
    assert not (lab.root / "broken").exists() and list((lab.root / "cache").iterdir()) == []
