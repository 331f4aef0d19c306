"""A decoding step of the 2-layer MLP memory as a custom operator: which calls it runs, state in and out.

What is inside a chunk: its starting weights W (gradients are taken there), the sum G of the steps since, and the decay b since.
A token adds to G and b; W itself it only reads. With the weights W_t = b W - G that the state shows, a token reads W and G, and
writes G and W_t: four times the weights' size, whatever was read before.

B batch, H heads, D channels, E hidden channels, S shares of them
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..algorithm import GradientDescent, Momentum
from ..memory import MLP
from ..retention import KL, L2, Keep, Lq
from ..rows import places
from ..spec import Spec
from ..types import Gates, Norm, State
from .biases import DEVICE, Fused, fused
from .decode_kernels import finish, step
from .decode_link import close
from .decode_states import Led, Places, progress_of, rows_of, taken, weights_of
from .launch import DOTS, INTERPRETED
from .operators import operator

# programs that fill a GPU; where rows and heads are fewer, hidden channels are shared out
PROGRAMS, WIDEST = 128, 256


def why_not(spec: Spec, device: torch.device, dtype: torch.dtype, channels: int) -> str | None:
    """Why the decoding step cannot run a spec, or None where it can; ``must_map`` says which of its tokens are left out."""
    memory, kept, algorithm = spec.memory, spec.retention, spec.algorithm
    if not (isinstance(memory, MLP) and memory.depth == 2):
        return f"the decoding step fuses the 2-layer MLP memory, not {memory.label}"
    if not isinstance(algorithm, GradientDescent | Momentum):
        return f"the decoding step fuses gradient descent and momentum, not {algorithm.label}"
    plain = isinstance(kept, Keep) or (isinstance(kept, L2) and kept.at == "previous")
    if not (plain or (isinstance(kept, Lq) and kept.link == "paper") or (isinstance(kept, KL) and kept.leads)):
        return f"the decoding step fuses Keep, L2(at='previous'), Lq(link='paper') and KL(chunk='lag'), not {kept.label}"
    bias = fused(spec.bias)
    if isinstance(bias, str):
        return bias
    if dtype not in DOTS:
        return f"the decoding step takes bf16, fp16 and float32, not {dtype}"
    if channels > WIDEST:
        return f"the decoding step takes up to {WIDEST} channels a head, not {channels}"
    if device.type != "cuda" and not INTERPRETED:
        return f"the decoding step needs an NVIDIA GPU (or TRITON_INTERPRET=1), not {device.type}"
    return None


def must_map(spec: Spec, state: State) -> list[int]:
    """The rows whose next token takes a map of all weights, once a chunk, that is left to plain PyTorch.

    That is KL's softmax at a chunk's start.
    """
    return [row for row, place in enumerate(places(state)) if place == 0] if maps(spec) else []


def maps(spec: Spec) -> bool:
    """Whether a chunk's first token takes a map of all weights."""
    return isinstance(spec.retention, KL)


class Launch(NamedTuple):
    """How a step is laid out: blocks of the prediction, blocks of a share, shares."""

    EB: int
    NE: int
    OB: int
    NO: int
    SHARES: int
    num_warps: int

    @classmethod
    def of(cls, pairs: int, hidden: int, channels: int, tensors: int) -> Launch:
        """For ``pairs`` of row and head: as many shares as fill the machine, each a whole number of blocks.

        A program of few takes all it can hold at once, so that its loads overlap; where they are many, two share a
        multiprocessor, and a step of more ``tensors`` than the plain one's six takes smaller blocks.
        """
        wide = triton.next_power_of_2(channels)
        whole = triton.next_power_of_2(hidden)
        room = 16384 // wide // (2 if pairs >= PROGRAMS else 1) // (2 if tensors > 6 else 1)
        big, small = min(whole, max(16, room)), min(whole, max(16, room // 4))
        own = triton.cdiv(hidden, min(max(1, PROGRAMS // pairs), max(1, whole // 16)))
        block = min(triton.next_power_of_2(own), small)
        blocks = triton.cdiv(own, block)
        return cls(big, triton.cdiv(hidden, big), block, blocks, triton.cdiv(hidden, blocks * block), 8)

    def halved(self, hidden: int) -> Launch:
        """The same shares, with half as many hidden channels at once before them: a norm needs registers for its powers."""
        half = max(16, self.EB // 2)
        return self._replace(EB=half, NE=triton.cdiv(hidden, half))


@operator("miras::decode_step")
def decode_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eta: Tensor,
    log_alpha: Tensor | None,
    delta: Tensor | None,
    mu: Tensor | None,
    start: list[Tensor],
    moved: list[Tensor],
    anchor: list[Tensor],
    momentum: list[Tensor],
    accumulated: list[Tensor],
    log_decay: Tensor | None,
    norm: list[Tensor],
    closes: Tensor | None,
    stays: bool,
    logarithm: bool,
    q_norm: float,
    floor: float,
    bias: str,
    p: float,
) -> list[Tensor]:
    """y ``[B,H,D]``, the weights, and, empty where there are none: sums, momentum, starting weights, log decay, accumulated.

    Tokens are ``[B,H,D]``, gates ``[B,H,D or 1]``, weights ``[B,H,E,D]``, log_decay ``[B,H,D or 1]``. Lists are empty where
    the chunk has not begun, or where the spec has no anchor, momentum or link; ``q_norm`` and ``floor`` are the link's.
    """
    rows, heads, channels = q.shape
    hidden = start[0].shape[2]
    launch = Launch.of(rows * heads, hidden, channels, 6 + len(anchor) + len(momentum))
    made = _outputs(v, log_alpha, start, momentum, accumulated, log_decay, closes, stays)
    y, weight1, weight2, moved1, moved2, momentum1, momentum2, start1, start2, new_decay, new1, new2 = made
    part = torch.empty(rows * heads, launch.SHARES, channels, device=q.device) if launch.SHARES > 1 else y
    wide = triton.next_power_of_2(channels)
    two: list[Tensor | None] = [None, None]
    gain, shift = norm or two
    maps = new1.numel() > 0
    step[(rows * heads, launch.SHARES)](
        q, k, v, eta, log_alpha, delta, mu,
        *start, *(moved or two), *(anchor or two), *(momentum or two), *(accumulated or two), log_decay, gain, shift, closes,
        y, weight1, weight2, moved1, moved2, momentum1, momentum2, start1, start2, new_decay, new1, new2, part,
        heads, channels, hidden, *_strides(eta), *_strides(log_alpha), *_strides(delta), *_strides(mu),
        BIAS=DEVICE[bias].gradient, P=p, FLOOR=floor, SLOPE_AT_FLOOR=floor ** (2 - q_norm),
        HAS_ALPHA=log_alpha is not None, HAS_DELTA=delta is not None, HAS_MU=mu is not None, HAS_NORM=bool(norm),
        DECAY_WIDE=log_decay is not None and log_decay.shape[2] > 1, NEW_DECAY_WIDE=new_decay.shape[-1] > 1,
        BEGUN=bool(moved), STAYS=stays, MIXED=closes is not None,
        ANCHORED=bool(anchor), LOGARITHM=logarithm, SLOPED=bool(accumulated), MAPS=maps, DP=wide, **launch._asdict(),
    )  # fmt: skip
    if maps:
        halves = launch.halved(hidden)
        close[(rows * heads, launch.SHARES)](
            q, new1, new2, gain, shift, closes, y, weight1, weight2, start1, start2, part, heads, channels, hidden,
            Q=q_norm, FLOOR=floor, HAS_NORM=bool(norm), MIXED=closes is not None, DP=wide, **halves._asdict(),
        )  # fmt: skip
    if launch.SHARES > 1:
        padded = triton.next_power_of_2(launch.SHARES)
        finish[(rows * heads,)](
            q, part, gain, shift, y, heads, channels,
            HAS_NORM=bool(norm), DP=wide, SP=padded, SHARES=launch.SHARES, num_warps=2,
        )  # fmt: skip
    return made


def _outputs(
    v: Tensor,
    log_alpha: Tensor | None,
    start: list[Tensor],
    momentum: list[Tensor],
    accumulated: list[Tensor],
    log_decay: Tensor | None,
    closes: Tensor | None,
    stays: bool,
) -> list[Tensor]:
    """Room for what a step gives, empty where it gives nothing."""

    def pair(there: bool) -> list[Tensor]:
        return [torch.empty_like(x) if there else x.new_empty(0) for x in start]

    width = max(1 if x is None else x.shape[2] for x in (log_alpha, log_decay))
    decays = stays and log_alpha is not None
    decay = start[0].new_empty(*v.shape[:2], width) if decays else start[0].new_empty(0)
    mixed = closes is not None
    maps = bool(accumulated) and (mixed or not stays)
    return [torch.empty_like(v), *pair(True), *pair(stays), *pair(bool(momentum)), *pair(mixed), decay, *pair(maps)]


@decode_step.register_fake
def _(q, k, v, eta, log_alpha, delta, mu, start, moved, anchor, momentum, accumulated, log_decay, norm, closes, stays, *rest):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
    return _outputs(v, log_alpha, start, momentum, accumulated, log_decay, closes, stays)


def _strides(gate: Tensor | None) -> tuple[int, int, int]:
    """Row, head and channel strides of a gate ``[B,H,D or 1]``; a scalar gate stands still along the channels."""
    if gate is None:
        return 0, 0, 0
    return gate.stride(0), gate.stride(1), 0 if gate.shape[2] == 1 else gate.stride(2)


def run(
    spec: Spec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    norm: Norm | None,
    state: State,
    size: int,
    led: Led | None = None,
) -> tuple[Tensor, State]:
    """One token ``[B,1,H,D]`` in its own dtype that ``why_not`` has nothing against; the rows that ``must_map`` names were led."""
    bias = fused(spec.bias)
    assert isinstance(bias, Fused) and gates.eta is not None and isinstance(state.weights, tuple)
    begun, closes, reached, some, every = Places.of(state, size)
    start = rows_of(state.weights if begun is None else begun.start)
    kept = spec.retention
    decays = gates.log_alpha is not None
    # rows that were led start anew as well: what they start with has to have room of its own
    mixed = led is not None or (some and not every)
    anchor, momentum = rows_of(state.anchor), rows_of(state.momentum)
    sloped = isinstance(kept, Lq)
    accumulated = rows_of(state.accumulated) if sloped else []
    given: list[Any] = [None if x is None else x[:, 0] for x in (gates.eta, gates.log_alpha, gates.delta, gates.mu)]
    y, *new = decode_step(
        *(x[:, 0].contiguous() for x in (q, k, v)),
        *given,
        start,
        [] if begun is None else rows_of(begun.moved),
        anchor,
        momentum,
        accumulated,
        None if begun is None or not decays else begun.log_decay[0][..., 0].contiguous(),
        [] if norm is None else [x.contiguous() for x in norm],
        closes.to(q.device, non_blocking=True) if mixed else None,
        not every,
        isinstance(kept, KL),
        *((kept.q, kept.floor) if isinstance(kept, Lq) else (2.0, 1.0)),
        bias.name,
        bias.p,
    )
    if led is not None:
        taken(led, y, new)
    weights, moved, momentum, later, log_decay = new[:2], new[2:4], new[4:6] if momentum else [], new[6:8], new[8]
    start = weights if every else later if mixed else start
    anew = some or led is not None
    if sloped:
        held = weights_of(new[9:] if some else accumulated)
    else:
        held = tuple(kept.hold(w).accumulated for w in weights_of(start)) if anew and kept.leads else weights_of(start)
        held = state.accumulated if kept.leads and not anew else held
    progress = None if every else progress_of(begun, start, moved, log_decay if decays else None, reached)
    return y[:, None], State(weights_of(weights), held, weights_of(anchor), weights_of(momentum), progress)
