"""What the kernels of the 2-layer MLP memory take, keep and give, as named tuples.

R sequences, B batch, T time, H heads, D channels, E hidden channels, N chunks
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .biases import Fused

Key = TypeVar("Key", bound=tuple[Any, ...])
Made = TypeVar("Made")


class Rows(NamedTuple):
    """Where each sequence lies among all tokens, which chunks are its own, and where its outgoing state lies behind them.

    ``places`` are what kernels ask for: all but the last.
    """

    first: Tensor
    length: Tensor
    chunk: Tensor
    row: Tensor
    end: Tensor

    @property
    def places(self) -> tuple[Tensor, ...]:
        """Of sequences ``[R]`` the first token, the length and the first chunk; of chunks ``[N]`` the sequence."""
        return self[:4]

    @classmethod
    def of(cls, lengths: list[int], size: int, device: torch.device) -> Rows:
        """Sequences that lie one behind the other."""
        return at_hand(KNOWN, 64, cls._made, (tuple(lengths), size, device))

    @classmethod
    def _made(cls, lengths: tuple[int, ...], size: int, device: torch.device) -> Rows:
        counts = [-(-length // size) for length in lengths]
        if len(set(lengths)) == 1:
            # made where they are needed: a compiled call would copy them there every time
            each, length, count = torch.arange(len(lengths), device=device), lengths[0], counts[0]
            own = (each * length, torch.full_like(each, length), each * count, each.repeat_interleave(count))
            return cls(*own, each * (count + 1) + count)
        first, starts = ([0, *accumulate(x)][:-1] for x in (lengths, counts))
        row = [i for i, count in enumerate(counts) for _ in range(count)]
        end = [i + start + count for i, (start, count) in enumerate(zip(starts, counts, strict=True))]
        lists = (first, lengths, starts, row, end)
        tensors = (torch.tensor(x, dtype=torch.int64).to(device, non_blocking=True) for x in lists)
        return cls(*tensors)


KNOWN: dict[tuple[tuple[int, ...], int, torch.device], Rows] = {}


def at_hand(known: dict[Key, Made], most: int, make: Callable[..., Made], key: Key) -> Made:
    """``make(*key)``, that of an earlier call where there was one: a copy to a device keeps it waiting. The oldest goes."""
    if torch.compiler.is_compiling():
        return make(*key)
    if key not in known:
        if len(known) == most:
            known.pop(next(iter(known)))
        # what inference mode makes, no training can keep
        with torch.inference_mode(False):
            known[key] = make(*key)
    return known[key]


class Tokens(NamedTuple):
    """What is read, ``[T,H,D]`` for all sequences together; gates ``[T,H,D or 1]``, None where a spec has none."""

    q: Tensor
    k: Tensor
    v: Tensor
    eta: Tensor
    log_alpha: Tensor | None
    delta: Tensor | None


class Weights(NamedTuple):
    """Float32 weights, E-major: W1' and W2 ``[R,H,E,D]``, the anchors where there are any, gain and shift ``[H,D]``.

    Where there are slopes ``[R,H,2]``, what a chunk's tokens read has moved by so much of what was written to W1 and W2 since its start.
    """

    w1: Tensor
    w2: Tensor
    anchor1: Tensor | None
    anchor2: Tensor | None
    gain: Tensor
    shift: Tensor
    slopes: Tensor | None = None


class Momentum(NamedTuple):
    """The momentum and what its gates make of a chunk, all float32.

    S of both weights ``[R,H,E,D]``; the pair factors kappa ``[N,H,C,C]``, sigma ``[N,H,C]``, what of S each token reads, and
    the products of mu from a token to its chunk's end ``[N,H,C]`` and over all of it ``[N,H]``.
    """

    speed1: Tensor
    speed2: Tensor
    kappa: Tensor
    sigma: Tensor
    grown: Tensor
    grown_end: Tensor


NO_MOMENTUM = (None,) * len(Momentum._fields)


class Link(NamedTuple):
    """W = A / max(||A||_q, floor)^(q-2), one norm a weight; q is 0 where the weights are read as they accumulate.

    The masses are what a column of W1 and of W2 sums to where a chunk's first token maps them by a softmax, else 0.
    """

    q: float = 0.0
    floor: float = 0.0
    mass1: float = 0.0
    mass2: float = 0.0


class Lead(NamedTuple):
    """What a chunk's first token takes its own step with, float32: the token and its gates ``[N,H,D]``, log A_0 ``[R,H,E,D]``.

    delta and the anchors are empty where there are none.
    """

    k: Tensor
    v: Tensor
    eta: Tensor
    log_alpha: Tensor
    delta: Tensor
    log_anchor1: Tensor
    log_anchor2: Tensor


NO_LEAD = (None,) * len(Lead._fields)


class Given(NamedTuple):
    """All that both passes take: what is read, from which state, in chunks of how many tokens, with which bias and link."""

    tokens: Tokens
    weights: Weights
    momentum: Momentum | None
    lead: Lead | None
    rows: Rows
    size: int
    bias: Fused
    link: Link


class Saved(NamedTuple):
    """What the forward pass leaves for the backward one.

    The weights at each chunk's start, the errors u1, both norms' inputs, both layers' scores, the decayed queries, each write's
    step at its chunk's end, bare and times -k and -u1, the decay of each chunk, that from its start to each token as a logarithm, and
    over how many tokens differences of these may be split in two. With momentum also its value at each chunk's
    start, what the read takes from it, and each write's step in it, bare and times -k and -u1; with a link the norms of each
    sequence's states; where a chunk's first token has a step of its own, the weights that it found and its norm's input. Empty
    otherwise.
    """

    starts1: Tensor
    starts2: Tensor
    u1: Tensor
    o: Tensor
    o_q: Tensor
    o_anchor: Tensor
    scores1: Tensor
    scores2: Tensor
    late_q: Tensor
    late: Tensor
    late_k: Tensor
    late_u1: Tensor
    kept: Tensor
    total: Tensor
    sizes: Tensor
    speeds1: Tensor
    speeds2: Tensor
    o_speed: Tensor
    slow: Tensor
    slow_k: Tensor
    slow_u1: Tensor
    norms: Tensor
    before1: Tensor
    before2: Tensor
    lead_o: Tensor


class Result(NamedTuple):
    """y, the weights after the last token, those at the start of the last chunk where that is not full, the momentum (or nothing)."""

    y: Tensor
    w1: Tensor
    w2: Tensor
    tail1: Tensor
    tail2: Tensor
    speed1: Tensor
    speed2: Tensor
