import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miras.data.order import shuffled


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 700), st.integers(0, 2**40), st.integers(0, 3))
def test_every_epoch_is_a_permutation(count, seed, epoch):
    order = shuffled(count, seed, np.arange(epoch * count, (epoch + 1) * count))
    assert sorted(order.tolist()) == list(range(count))


def test_a_place_does_not_depend_on_what_else_is_asked():
    whole = shuffled(1000, 7, np.arange(3000))
    assert [int(shuffled(1000, 7, np.array([place]))[0]) for place in range(0, 3000, 37)] == whole[::37].tolist()


def test_seeds_and_epochs_differ():
    orders = [shuffled(500, seed, np.arange(first, first + 500)).tolist() for seed in (0, 1) for first in (0, 500)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            # two random permutations agree in one place on average
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_neighbours_are_spread_like_random_ones():
    """The mean distance of neighbours in a random order of N is N/3; a Feistel network too weak would show here."""
    order = shuffled(100_000, 3, np.arange(100_000))
    assert abs(np.abs(np.diff(order)).mean() / 100_000 - 1 / 3) < 0.01
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02


def test_a_corpus_of_billions_needs_no_memory():
    order = shuffled(10**12, 0, np.array([0, 10**12 - 1, 10**12]))
    assert len(set(order.tolist())) == 3 and (order < 10**12).all()


def test_no_sequences():
    with pytest.raises(ValueError, match="no order of 0 sequences"):
        shuffled(0, 0, np.arange(1))
