"""Every task: shapes, labels, the same batch from the same seed and step, and an oracle that solves it."""

import collections
import itertools

import pytest
import torch

from miras.lab.tasks import (
    HELD_OUT,
    MQAR,
    TASKS,
    LinearRegression,
    NoisyRecall,
    NoisyVectors,
    Overwriting,
    Questions,
    SelectiveCopying,
    StateTracking,
    TokenTask,
    task_of,
)
from miras.lab.tasks.draws import power_law

# each task in its published or default size, and small
ALL = [
    *(kind() for kind in TASKS.values()),
    MQAR(vocab=64, pairs=6, length=41),
    NoisyRecall(vocab=64, pairs=4, shows=5, wrong=2, length=60, filler="random"),
    NoisyVectors(pairs=3, shows=3, length=12),
    Overwriting(vocab=32, keys=3, writes=9, length=40),
    SelectiveCopying(vocab=6, items=5, length=20),
    LinearRegression(dim=3, length=16),
    StateTracking(degree=5, vocab=120, length=17),
]
tasks = pytest.mark.parametrize("task", ALL, ids=lambda task: f"{task.name}-{task.length}")


@tasks
def test_shapes_and_ranges(task):
    batch = task.batch(3, seed=0, step=0)
    assert batch.where.min() >= 0 and all(len(set(row)) == len(row) for row in batch.where.tolist())
    if isinstance(task, TokenTask):
        assert batch.ids.shape == (3, task.length) and batch.answers.shape == batch.where.shape
        assert batch.ids.min() >= 0 and max(batch.ids.max(), batch.answers.max()) < task.vocab
        assert batch.where.max() < task.length - 1
    else:
        inputs, answers = task.widths
        assert batch.inputs.shape == (3, task.length, inputs) and batch.answers.shape == (*batch.where.shape, answers)
        assert batch.where.max() < task.length
    assert 0 <= task.chance < 1 and task.chance < task.solved <= 1


@tasks
def test_a_batch_depends_on_seed_and_step_alone(task):
    first = task.batch(4, seed=1, step=5)
    torch.rand(3)
    again = task.batch(4, seed=1, step=5)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    for seed, step in ((1, 6), (2, 5), (1, HELD_OUT + 5)):
        other = task.batch(4, seed=seed, step=step)
        assert not torch.equal(first[0], other[0])


@tasks
def test_readings_start_with_the_task_and_can_be_drawn(task):
    readings = task.readings()
    assert next(iter(readings.values())) == task
    for other in list(readings.values())[:3]:
        assert other.batch(2, seed=0, step=0).where.shape[0] == 2
    longest = readings.get("16x")
    assert longest is None or longest.length == 16 * task.length


@tasks
def test_labels_stand_behind_their_questions(task):
    batch = task.batch(3, seed=0, step=0)
    if isinstance(batch, Questions):
        labels = batch.labels()
        assert labels.shape == batch.ids.shape and (labels != -100).sum() == batch.where.numel()
        assert torch.equal(labels.gather(1, batch.where + 1), batch.answers)


def oracle(task, ids, place):
    """The answer of somebody who reads the tokens and knows the rules."""
    if isinstance(task, SelectiveCopying):
        marks = ids.index(1)
        return [token for token in ids[:marks] if token][place - marks]
    if isinstance(task, StateTracking):
        elements = list(itertools.permutations(range(task.degree)))
        state = list(range(task.degree))
        for token in ids[: place + 1]:
            # the thing at i goes where the permutation sends it
            state = [elements[token][i] for i in state]
        return elements.index(tuple(state))
    count = {"mqar": lambda: task.pairs, "noisy_recall": lambda: task.pairs * task.shows, "overwriting": lambda: task.writes}
    shown = [(ids[i], ids[i + 1]) for i in range(0, 2 * count[task.name](), 2)]
    values = [value for key, value in shown if key == ids[place]]
    return values[-1] if isinstance(task, Overwriting) else collections.Counter(values).most_common(1)[0][0]


@pytest.mark.parametrize("task", [t for t in ALL if isinstance(t, TokenTask)], ids=lambda task: f"{task.name}-{task.length}")
def test_an_oracle_that_reads_the_tokens_is_always_right(task):
    batch = task.batch(8, seed=3, step=1)
    right = []
    for ids, where, answers in zip(batch.ids.tolist(), batch.where.tolist(), batch.answers.tolist(), strict=True):
        right += [oracle(task, ids, place) == answer for place, answer in zip(where, answers, strict=True)]
    # where most presentations are right but two wrong ones agree, there may be a tie
    assert sum(right) / len(right) > (0.95 if task.name == "noisy_recall" else 0.999)


def test_least_squares_solves_the_regression():
    task = LinearRegression(dim=4, length=32)
    batch = task.batch(5, seed=0, step=0)
    x, y = batch.inputs[:, 0::2, :4].double(), batch.inputs[:, 1::2, 4:].double()
    for number, place in enumerate(batch.where[0].tolist()):
        point = place // 2
        w = torch.linalg.lstsq(x[:, :point], y[:, :point]).solution
        assert torch.allclose((x[:, point : point + 1] @ w)[:, 0], batch.answers[:, number].double(), atol=1e-3)


def test_the_median_solves_noisy_vectors_and_the_mean_does_not():
    task = NoisyVectors(pairs=6, shows=7, wrong=2, magnitude=10.0, length=48)
    batch = task.batch(16, seed=0, step=0)
    keys, values, asks = batch.inputs.split([16, 16, 1], -1)
    assert torch.equal(asks.sum(1), torch.full((16, 1), 6.0))
    found = {"median": [], "mean": []}
    for row in range(16):
        for number, place in enumerate(batch.where[row].tolist()):
            shown = values[row, :42][(keys[row, :42] == keys[row, place]).all(-1)]
            assert shown.shape == (7, 16)
            answer = batch.answers[row, number]
            found["median"].append((shown.median(0).values - answer).square().mean())
            found["mean"].append((shown.mean(0) - answer).square().mean())
    assert torch.stack(found["median"]).mean() < 0.05 and torch.stack(found["mean"]).mean() > 2


def test_noisy_recall_shows_each_pair_so_often_and_wrong_so_often():
    task = NoisyRecall(vocab=256, pairs=5, shows=5, wrong=2, length=80)
    batch = task.batch(4, seed=0, step=0)
    for ids, where, answers in zip(batch.ids.tolist(), batch.where.tolist(), batch.answers.tolist(), strict=True):
        shown = [(ids[i], ids[i + 1]) for i in range(0, 50, 2)]
        for place, answer in zip(where, answers, strict=True):
            values = [value for key, value in shown if key == ids[place]]
            assert len(values) == 5 and values.count(answer) == 3


def test_queries_follow_a_power_law():
    places = power_law(20_000, 8, 1, 0.01, torch.Generator().manual_seed(0))[:, 0]
    wanted = torch.arange(1, 9) ** -0.99
    found = torch.bincount(places, minlength=8) / 20_000
    assert torch.allclose(found, wanted / wanted.sum(), atol=0.01)


def test_mqar_as_published():
    batch = MQAR().batch(16, seed=0, step=0)
    keys, values = batch.ids[:, 0:64:2], batch.ids[:, 1:64:2]
    assert keys.min() >= 1 and keys.max() < 4096 <= values.min()
    assert all(len(set(row)) == 32 for row in [*keys.tolist(), *values.tolist()])
    assert (batch.where % 2 == 0).all() and batch.where.min() >= 64
    # the answers do not stand behind the queries
    assert (batch.ids.gather(1, batch.where + 1) == batch.answers).float().mean() < 0.01


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sorting", {}, "unknown task 'sorting': known are mqar"),
        ("mqar", {"colours": 3}, "the task mqar does not take these settings"),
        ("mqar", {"pairs": 32, "length": 64}, "length=64 leaves 0 places for 32 queries behind 32 pairs: give 128"),
        ("mqar", {"vocab": 32}, "vocab=32 has 15 keys, fewer than the 32 that differ"),
        ("noisy_recall", {"shows": 4, "wrong": 2}, "fewer than half may be wrong"),
        ("noisy_vectors", {"length": 50}, "length=50: 8 pairs shown 5 times take 48"),
        ("overwriting", {"keys": 99}, "writes=64 must be at least keys=99"),
        ("copying", {"length": 20}, "length=20 is too short for 16 items"),
        ("regression", {"length": 16}, "length=16 leaves nothing to ask after 8 points: give 18"),
        ("tracking", {"degree": 5}, "vocab=6: the permutations of 5 things are 120"),
        ("tracking", {"degree": 9}, "degree must be 2 to 5, got 9"),
    ],
)
def test_what_makes_no_sense_is_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        task_of(name, **settings)
