"""Needles after a course: what is learned from, what is asked, and that the model itself is left alone."""

import json
import lzma

import pytest
import torch

from miras.data import Tokens
from miras.eval.needles import haystack_of
from miras.hf import MirasConfig, MirasForCausalLM, byte_tokenizer
from miras.lab import corpora
from miras.lab.needle_course import Course, batches, course_of, needles, questions, reading_cost, taught, write
from miras.types import IGNORED

COURSE = Course(steps=6, rows=2, rate=2e-2, lengths=(600, 700), asked=(600, 900), depths=(0.0, 1.0), count=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The needles of a short course, in bytes."""
    where = tmp_path_factory.mktemp("needles")
    hay = haystack_of("It rained all day. Nobody came to the door. The lamp went out at nine. " * 20)
    write(where, byte_tokenizer(), hay, COURSE)
    return where


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return MirasForCausalLM(MirasConfig.preset("gla-tiny", num_hidden_layers=1, hidden_size=16, num_attention_heads=2))


def test_batches_have_one_length_and_labels_on_answers_alone(folder):
    lessons = questions(folder / "train.jsonl")
    made = list(batches(lessons, COURSE))
    assert len(made) == COURSE.steps and all(len(tokens) == COURSE.rows for tokens, _ in made)
    for step, (tokens, labels) in enumerate(made):
        assert tokens.shape == labels.shape and 500 < tokens.shape[1] <= COURSE.lengths[step % 2]
        for row, label in zip(tokens, labels, strict=True):
            answer = label[label != IGNORED]
            (lesson,) = [
                one for one in lessons if tuple(row[: len(one.before) + len(one.after)].tolist()) == one.before + one.after
            ]
            assert tuple(answer.tolist()) == lesson.after
            # each label stands where its token does: the model itself moves them by one
            assert torch.equal(row[label != IGNORED], answer)
    tasks = {one.task for one in lessons}
    assert tasks == {"s-niah-1", "s-niah-2", "s-niah-3"}


def test_nothing_that_is_asked_was_learned(folder):
    lessons, tests = questions(folder / "train.jsonl"), questions(folder / "test.jsonl")
    assert len(tests) == 3 * 2 * 2 and not {one.after for one in lessons} & {one.after for one in tests}


def test_a_course_teaches_a_copy(folder, model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pupil, losses = taught(model, questions(folder / "train.jsonl"), COURSE)
    assert losses[-1] < losses[0] - 0.3 and not pupil.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert any(not torch.equal(value, before[name]) for name, value in pupil.state_dict().items())


def test_course_and_test_from_a_folder(folder, model):
    found = needles(model, folder)
    assert found["course"]["rate"] == COURSE.rate and found["loss"]["last"] < found["loss"]["first"]
    kinds = [(cell["task"], cell["length"], cell["depth"]) for cell in found["cells"]]
    assert len(set(kinds)) == len(kinds) == 12 and all(cell["count"] == 1 for cell in found["cells"])
    json.dumps(found, allow_nan=False)
    learned, tested = 6 * 2 * 650, (600 + 900) * 2 * 3
    assert reading_cost(folder) == learned + tested / 2


def test_texts_and_questions_are_made_ready(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    (source / "valid.jsonl.xz").write_bytes(
        lzma.compress(json.dumps({"text": "It rained. Nobody came. " * 60}).encode() + b"\n")
    )
    for split, text in (("valid", "one text"), ("test", "and one more")):
        (source / f"wiki.{split}.raw").write_text(text)
    corpora.wikitext(source, tmp_path / "wikitext2", "bytes")
    found = Tokens(tmp_path / "wikitext2", "test")
    assert bytes(found.read(0, found.count - 1).tolist()).decode() == "and one more"
    corpora.wikitext(source, tmp_path / "wikitext2_short", "bytes", held=4)
    short = Tokens(tmp_path / "wikitext2_short", "test")
    assert bytes(short.read(0, short.count - 1).tolist()).decode() == "one "
    small = Course(steps=1, rows=1, lengths=(600,), asked=(600,), depths=(0.5,), count=1)
    corpora.needles(source, tmp_path / "needles", "bytes", small)
    assert course_of(tmp_path / "needles") == small and len(questions(tmp_path / "needles" / "test.jsonl")) == 3
    corpora.needles(source, tmp_path / "needles", "bytes", small)
    assert "is there already" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"holds no wiki\.valid\.raw"):
        corpora.wikitext(tmp_path, tmp_path / "none", "bytes")


def test_books_for_a_processor_are_the_middle_of_each(tmp_path):
    for split, texts in (("train-00", ["All of it."]), ("valid", ["0123456789", "ab"]), ("test", ["aä€b"])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{split}.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    corpora.books(tmp_path, tmp_path / "books_short", "bytes", 1, held=4)
    found = {split: Tokens(tmp_path / "books_short", split) for split in ("train", "valid", "test")}
    read = {split: own.read(0, own.count) for split, own in found.items()}
    # a character that the cut goes through is left out
    assert {split: bytes(own[own < 256].tolist()).decode() for split, own in read.items()} == {
        "train": "All of it.",
        "valid": "3456ab",
        "test": "ä",
    }


def test_a_folder_without_needles(tmp_path):
    with pytest.raises(ValueError, match=r"holds no needles: experiments/prepare\.py needles makes them"):
        course_of(tmp_path)
