"""Every task: shapes, labels, the same batch from the same seed and step, and an oracle that solves it."""

import pytest
import torch

from miras.lab.tasks import HELD_OUT, MQAR, task_of
from miras.lab.tasks.draws import power_law


def test_mqar_labels_stand_behind_the_key_that_returns():
    task = MQAR(vocab=64, pairs=6, length=40)
    batch = task.batch(5, seed=3, step=7)
    labels = batch.labels()
    assert batch.ids.shape == labels.shape == (5, 40) and (labels != -100).sum() == 5 * 6
    for row in range(5):
        shown = dict(zip(batch.ids[row, 0:12:2].tolist(), batch.ids[row, 1:12:2].tolist(), strict=True))
        assert len(shown) == 6 and max(shown) < 32 and min(shown.values()) >= 32
        asked = [place for place in range(40) if labels[row, place] != -100]
        assert len(asked) == 6
        assert all(place > 12 and shown[int(batch.ids[row, place - 1])] == labels[row, place] for place in asked)


def test_queries_follow_a_power_law():
    places = power_law(20_000, 8, 1, 0.01, torch.Generator().manual_seed(0))[:, 0]
    wanted = torch.arange(1, 9) ** -0.99
    found = torch.bincount(places, minlength=8) / 20_000
    assert torch.allclose(found, wanted / wanted.sum(), atol=0.01)


def test_unknown_tasks_and_settings_are_refused():
    with pytest.raises(ValueError, match="unknown task 'sorting': known are mqar"):
        task_of("sorting")
    with pytest.raises(ValueError, match="the task mqar does not take these settings"):
        task_of("mqar", colours=3)
    with pytest.raises(ValueError, match="length=64 leaves 0 places for 32 queries behind 32 pairs: give 128"):
        task_of("mqar", pairs=32, length=64)


def test_held_out_steps_differ_from_all_steps_of_training():
    task = MQAR(vocab=64, pairs=6, length=40)
    assert not torch.equal(task.batch(4, seed=0, step=0).ids, task.batch(4, seed=0, step=HELD_OUT).ids)
