"""Needles: lengths, depths, seeds, labels; and outcomes that are right when the model is, and wrong when it is not."""

import dataclasses
import re

import pytest
import torch
from tiny_models import build

from miras.eval import NEEDLE_TASKS, NeedleResult, Outcome, haystack_of, labelled, make_needle, needle, training_needles
from miras.eval.heat_map import draw
from miras.eval.needle import ask
from miras.eval.needles import FILLER

PROSE = " ".join(f"Sentence number {number} says {'very ' * (number % 5)}little. “Did it?” Yes!" for number in range(400))


@pytest.fixture(scope="module")
def haystack():
    return haystack_of([PROSE[:5000], PROSE[5000:]])


@pytest.mark.parametrize("task", NEEDLE_TASKS)
@pytest.mark.parametrize("length", [600, 1500])
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_length_and_depth(tokenizer, haystack, task, length, depth):
    made = make_needle(task, tokenizer, length, depth, seed=3, haystack=haystack)
    whole = f"{made.prompt} {made.answer}"
    assert len(tokenizer.encode(whole)) == made.tokens <= length
    assert made.tokens > length - 110, "one more sentence would not have fitted"
    head, body, question = made.prompt.split("\n", 1)[0], made.prompt.split("\n", 1)[1], made.prompt.rsplit("\n", 1)[1]
    hidden = re.search(r"One of the special magic (\w+)s for ([\w-]+) is: ([\w-]+)\.", body)
    assert hidden[3] == made.answer and hidden[1] in head and hidden[2] in question
    straw = body.rsplit("\n", 1)[0].replace(hidden[0], "")
    assert abs(hidden.start() - depth * len(straw)) <= 50, "a border between sentences is nearer"
    assert made.prompt.count(made.answer) == 1
    if not NEEDLE_TASKS[task].prose:
        assert set(straw.replace(FILLER, "").split()) == set()


def test_answers_look_as_they_should(tokenizer, haystack):
    made = {task: make_needle(task, tokenizer, 700, 0.5, seed=0, haystack=haystack).answer for task in NEEDLE_TASKS}
    assert re.fullmatch(r"[1-9]\d{6}", made["s-niah-1"]) and re.fullmatch(r"[1-9]\d{6}", made["s-niah-2"])
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", made["s-niah-3"])


def test_a_needle_depends_on_its_own_seed_alone(tokenizer, haystack):
    def made(**changes):
        options = {"seed": 0, "number": 0, "length": 700, "depth": 0.5} | changes
        return make_needle("s-niah-2", tokenizer, options.pop("length"), options.pop("depth"), haystack=haystack, **options)

    assert made() == made()
    others = [made(seed=1), made(number=1), made(length=701), made(depth=0.51)]
    assert len({other.answer for other in [made(), *others]}) == 5


def test_needles_to_learn_from(tokenizer, haystack):
    some = list(training_needles(tokenizer, lengths=[600, 800], count=12, seed=0, haystack=haystack))
    assert some == list(training_needles(tokenizer, lengths=[600, 800], count=12, seed=0, haystack=haystack))
    assert [(one.task, one.length) for one in some[:6]] == [(task, length) for length in (600, 800) for task in NEEDLE_TASKS]
    assert len({one.depth for one in some}) == 12 and max(one.depth for one in some) > 0.7 > 0.3 > min(
        one.depth for one in some
    )
    for one in some:
        tokens, labels = labelled(one, tokenizer)
        assert bytes(tokens).decode() == f"{one.prompt} {one.answer}" and len(labels) == len(tokens)
        taught = [token for token in labels if token != -100]
        assert bytes(taught).decode() == f" {one.answer}" and labels[-len(taught) :] == taught
        tested = make_needle(one.task, tokenizer, one.length, one.depth, seed=0, haystack=haystack)
        assert tested.answer != one.answer


def taught(tokenizer, needles, steps=80):
    """A tiny model that has learned the answers by heart, with labels on them alone."""
    model = build("gated_deltanet-tiny").float()
    rows = [labelled(one, tokenizer) for one in needles]
    ids, labels = (torch.tensor([row[part][-400:] for row in rows]) for part in (0, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimiser.step()
    return model.eval()


def test_what_was_learned_is_found_and_nothing_else(tokenizer):
    known = make_needle("s-niah-1", tokenizer, 600, 0.5, seed=0)
    model = taught(tokenizer, [known])
    end, last = known.answer[:-1], known.answer[-1]
    lower = dataclasses.replace(known, answer=known.answer[3:])
    wrong = dataclasses.replace(known, answer=end + ("1" if last != "1" else "2"))
    outcomes = ask(model, tokenizer, [known, lower, wrong], batch_tokens=1500)
    assert [outcome.exact for outcome in outcomes] == [True, False, False]
    assert [outcome.found for outcome in outcomes] == [True, True, False]
    assert outcomes[0].generated.startswith(f" {known.answer}") and outcomes[0].likelihood > outcomes[2].likelihood
    (alone,) = ask(model, tokenizer, [known], generate=False)
    assert alone.generated is None and alone.found is None and alone.exact
    assert alone.likelihood == pytest.approx(outcomes[0].likelihood, rel=1e-3)


def test_rows_of_unequal_length_are_generated_as_alone(model, tokenizer):
    some = [make_needle("s-niah-1", tokenizer, 420 + 90 * number, 0.5, seed=number) for number in range(3)]
    together = [outcome.generated for outcome in ask(model, tokenizer, some, batch_tokens=10_000)]
    assert together == [ask(model, tokenizer, [one], batch_tokens=1)[0].generated for one in some]
    assert all(together)


def test_every_length_depth_and_task(model, tokenizer, haystack, tmp_path):
    seen = []
    options = {"lengths": [450, 600], "depths": [0.0, 1.0], "count": 2, "haystack": haystack, "generate": False}
    found = needle(model, tokenizer, **options, progress=lambda done, total: seen.append((done, total)))
    assert len(found.outcomes) == 24 == seen[-1][0] == seen[-1][1] and len(found.cells) == 12
    assert {(cell.task, cell.length, cell.depth) for cell in found.cells} == {
        (task, length, depth) for task in NEEDLE_TASKS for length in (450, 600) for depth in (0.0, 1.0)
    }
    assert all(cell.count == 2 and cell.found is None and cell.exact == 0 for cell in found.cells)
    paths = [tmp_path / "map.png", tmp_path / "map.svg"]
    draw(found.cells, paths, "a model")
    assert paths[0].read_bytes()[:4] == b"\x89PNG" and "<svg" in paths[1].read_text()
    assert sorted(tmp_path.iterdir()) == paths


def test_shares_of_a_cell():
    known = {
        "task": "s-niah-1",
        "length": 1024,
        "depth": 0.5,
        "tokens": 1000,
        "answer": "1",
        "likelihood": -1.0,
        "generated": "",
    }
    outcomes = [Outcome(number=number, exact=number == 0, found=number < 3, **known) for number in range(4)]
    (cell,) = NeedleResult(outcomes=tuple(outcomes), seconds=0.0).cells
    assert (cell.count, cell.exact, cell.found) == (4, 0.25, 0.75)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": ["s-niah-9"]}, "unknown task 's-niah-9': known are s-niah-1, s-niah-2, s-niah-3"),
        ({"tasks": []}, "no task was named"),
        ({"tasks": ["s-niah-2"]}, "s-niah-2 hides its needle in prose, and no haystack was given"),
        ({}, "s-niah-2 hides its needle in prose"),
        ({"tasks": ["s-niah-1"], "lengths": [100]}, "a length of 100 is too short"),
        ({"tasks": ["s-niah-1"], "depths": [1.5]}, "a depth lies from 0 to 1, got 1.5"),
        ({"tasks": ["s-niah-1"], "lengths": []}, "at least one length"),
        ({"tasks": ["s-niah-1"], "count": 0}, "count must be 1 or more"),
        ({"tasks": ["s-niah-1"], "batch_tokens": 0}, "batch_tokens must be 1 or more"),
        ({"tasks": ["s-niah-2"], "haystack": haystack_of("Too short. Far too short.")}, "too little text for 1024 tokens"),
    ],
)
def test_what_cannot_be_asked(model, tokenizer, options, words):
    with pytest.raises(ValueError, match=words):
        needle(model, tokenizer, **options)


def test_a_haystack_without_text():
    with pytest.raises(ValueError, match=r"book\.txt has no sentence"):
        haystack_of(" \n ", title="book.txt")


def test_a_haystack_takes_so_many_characters():
    assert len(haystack_of([PROSE, PROSE]).sentences) == 2 * len(haystack_of(PROSE).sentences)
    assert haystack_of([PROSE, PROSE], characters=len(PROSE)) == haystack_of(PROSE)
