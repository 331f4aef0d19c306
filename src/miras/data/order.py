"""The order of training: a permutation that is computed point by point, so that nothing has to be kept or replayed.

N sequences of an epoch, J positions asked for at once
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
ROUNDS = 4


def shuffled(count: int, seed: int, positions: Integers) -> Integers:
    """The sequence at each position of an endless training order, a pure function of its arguments.

    Position j belongs to epoch j // N, and every epoch is a permutation of 0..N-1 of its own: a Feistel network on the
    smallest even number of bits that holds N, walked until it lands below N. It needs no memory, whatever N is.

    Args:
        count: N, the number of sequences.
        seed: chooses the order.
        positions: ``[J]``, from 0.

    Returns:
        ``[J]``, in 0..N-1.

    >>> import numpy as np
    >>> sorted(shuffled(5, 0, np.arange(5)).tolist()), shuffled(5, 0, np.arange(5, 10)).tolist()
    ([0, 1, 2, 3, 4], [1, 0, 4, 2, 3])
    """
    if count < 1:
        raise ValueError(f"there is no order of {count} sequences")
    half = max((int(count - 1).bit_length() + 1) // 2, 1)
    epochs, places = np.divmod(np.asarray(positions, dtype=np.int64), count)
    result = np.empty_like(places)
    for epoch in np.unique(epochs):
        mine = epochs == epoch
        result[mine] = permuted(places[mine].astype(np.uint64), count, half, round_keys(seed, int(epoch))).astype(np.int64)
    return result


def permuted(places: NDArray[np.uint64], count: int, half: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """Places under the permutation; what lands at or above ``count`` is sent on until it does not."""
    result = feistel(places, half, keys)
    outside = result >= count
    while outside.any():
        result[outside] = feistel(result[outside], half, keys)
        outside = result >= count
    return result


def feistel(x: NDArray[np.uint64], half: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """(l, r) -> (r, l xor F(r, key)) for each key: a bijection of the numbers of 2 * half bits, whatever F is."""
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = x >> shift, x & mask
    for key in keys:
        left, right = right, left ^ (mixed(right ^ key) & mask)
    return (left << shift) | right


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def round_keys(seed: int, epoch: int) -> list[np.uint64]:
    """Independent keys of the rounds for one epoch of one seed."""
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return [np.uint64(int.from_bytes(digest[8 * i : 8 * i + 8], "little")) for i in range(ROUNDS)]
