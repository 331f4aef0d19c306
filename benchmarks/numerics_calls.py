"""One call of ``kernel_numerics.py``: its leaves, and all that comes out of it.

B batch, T time, H heads, D channels of a head
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from numerics_cases import Case
from torch import Tensor

from miras import Gates, Spec, memorize, retention
from miras.forms.common import as_tuple
from miras.kernels.launch import INTERPRETED
from miras.lab.untrained import initial_weights, unit_step
from miras.retention.base import Dual
from miras.retention.kl import FLOOR
from miras.types import State

DECAY = 2e-3
# chunks that an incoming state has read: an anchored one is then as far from its anchor as a ragged length brings it
PAST = 4
KERNELS = "cpu" if INTERPRETED else "cuda"
Found = dict[str, Tensor]


class Inputs(NamedTuple):
    """The leaves of one call, in float64: the weights it starts from, or all that an incoming state holds."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: dict[str, Tensor]
    start: dict[str, tuple[Tensor, ...]]
    norm: tuple[Tensor, Tensor]


def draw(
    spec: Spec,
    B: int,
    T: int,
    H: int,
    D: int,
    *,
    channelwise: bool = True,
    decay: float = DECAY,
    late: bool = False,
    step: float = 0.02,
    delta: float = 1.0,
    spread: float = 1.0,
    mu: tuple[float, float] = (0.0, 0.5),
) -> Inputs:
    """Fresh random leaves whose tokens are exact in bfloat16, on the CPU; a ``late`` decay spares the first token.

    Initial weights, of a simplex their logits, are ``spread`` times those that a layer starts with.
    """
    width = (B, T, H, D) if channelwise else (B, T, H)
    weights = initial_weights(spec, H, D, seed=torch.initial_seed())
    assert weights is not None
    weights = tuple(spread * w for w in weights)
    step *= unit_step(spec, weights)
    vary = lambda value: value * (0.5 + torch.rand(width))  # noqa: E731
    speed = mu[0] + (mu[1] - mu[0]) * torch.rand(B, T, H)
    made = {"eta": vary(step), "log_alpha": vary(-decay), "delta": vary(delta), "mu": speed}
    if "mu" in {gate.name for gate in spec.gates}:
        made["log_alpha"] = made["log_alpha"].mean(-1) if channelwise else made["log_alpha"]
    if late:
        made["log_alpha"][:, 0] *= DECAY / decay
    tokens = [torch.randn(B, T, H, D) for _ in range(3)]
    q, k, v = F.normalize(tokens[0], dim=-1), F.normalize(tokens[1], dim=-1), tokens[2]
    norm = (1 + 0.1 * torch.randn(H, D).double(), 0.1 * torch.randn(H, D).double())
    wanted = {gate.name for gate in spec.gates}
    gates = {name: x.double() for name, x in made.items() if name in wanted}
    start = {"W": tuple(w.double() for w in weights)}
    return Inputs(*(x.bfloat16().double() for x in (q, k, v)), gates, start, norm)


def drawn(case: Case) -> Inputs:
    """A case's leaves: one row where it is packed or wide, else two. What comes in has read chunks of the usual kind."""
    rows = 1 if case.bounds or case.heads > 4 else 2
    given = draw(case.spec, rows, case.T, case.heads, case.D, **case.draws)
    if case.lean:
        given = given._replace(gates={n: x.to(case.dtype).double() if x.dim() == 4 else x for n, x in given.gates.items()})
    if not case.carried:
        return given
    before = draw(case.spec, rows, PAST * case.size, case.heads, case.D)
    with torch.no_grad():
        _, known = read(case.spec, before, case.size, "torch", None)
    return given._replace(start={"A": known.accumulated, "S": known.momentum, "A_0": known.anchor})


def read(spec: Spec, given: Inputs, size: int, backend: str, bounds: Tensor | None) -> tuple[Tensor, State]:
    """What a memory makes of leaves in a dtype and place."""
    several = lambda made: made if len(made) > 1 else made[0]  # noqa: E731
    start: dict[str, Any]
    if "W" in given.start:
        start = {"weights": several(given.start["W"])}
    else:
        held = given.start["A"]
        weights = several(tuple(read_as(spec.retention, a) for a in held))
        start = {"state": State(weights, held, given.start["A_0"], given.start["S"])}
    gates = Gates(**given.gates)
    y, state = memorize(
        spec, given.q, given.k, given.v, gates, norm=given.norm, chunk_size=size, backend=backend, cu_seqlens=bounds, **start
    )
    assert isinstance(state, State)
    return y, state


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In the digits of a dtype; its gradient passes as if nothing had been done."""
    return x + (x.detach().to(dtype).to(x.dtype) - x.detach())


def nudged(x: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Moved at random by at most what rounding to a dtype moves a number by."""
    noise = 2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype) - 1
    return x * (1 + torch.finfo(dtype).eps / 2 * noise)


def read_rounded(spec: Spec, given: Inputs, size: int, dtype: torch.dtype) -> tuple[Tensor, State]:
    """As plain PyTorch reads, of tokens nudged by a rounding and of weights rounded wherever a chunk starts."""
    q, k, v = (nudged(x, dtype, seed) for seed, x in enumerate(given[:3]))
    kept, start, outputs = spec.retention, given.start, []
    for left in range(0, q.shape[1], size):
        part = slice(left, left + size)
        coarse = start | {n: tuple(coarser(kept, n, x, dtype) for x in start[n]) for n in ("W", "A") if n in start}
        gates = {n: x[:, part] for n, x in given.gates.items()}
        y, state = read(spec, Inputs(q[:, part], k[:, part], v[:, part], gates, coarse, given.norm), size, "torch", None)
        outputs.append(y)
        start = {"A": state.accumulated, "S": state.momentum, "A_0": state.anchor}
    return torch.cat(outputs, 1), state


def coarser(kept: retention.Retention, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight, or what a state holds of it, in the digits of a dtype: of a logarithm, those of what is read."""
    if name == "A" and isinstance(kept, retention.KL):
        return rounded(x.exp(), dtype).clamp_min(FLOOR).log()
    return rounded(x, dtype)


def read_as(kept: retention.Retention, accumulated: Tensor) -> Tensor:
    """What a memory reads of what its retention accumulates in."""
    if isinstance(kept, retention.KL):
        return accumulated.exp()
    return kept.to_weight(accumulated) if isinstance(kept, Dual) else accumulated


def parts(kept: retention.Retention, state: State) -> Found:
    """The parts of a state that a loss is of; of an open chunk the weights that it started with, and these with what has moved.

    But for what KL accumulates: a logarithm's derivative at weights that are nearly zero would drown all else.
    """
    named = {"W": as_tuple(state.weights), "S": state.momentum}
    named |= {} if isinstance(kept, retention.KL) else {"A": state.accumulated}
    if state.chunk is not None:
        start, moved, *_ = state.chunk
        named |= {"start": start, "moved": tuple(a + b for a, b in zip(start, moved, strict=True))}
    return {f"{name}{i + 1}_T": x for name, pair in named.items() for i, x in enumerate(pair)}


def call(
    spec: Spec,
    given: Inputs,
    dtype: torch.dtype,
    backend: str,
    size: int,
    bounds: Tensor | None,
    scale: float = 1.0,
    lean: bool = False,
    nudge: torch.dtype | None = None,
) -> Found:
    """y, the parts of the outgoing state and the gradients of everything, from a loss of all outputs.

    The kernels run on the GPU, what they are compared with on the CPU, which many processes share better. ``lean`` gates have
    the tokens' dtype. With ``nudge`` the operands are moved as rounding them to that dtype moves them.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    device = KERNELS if backend == "triton" else "cpu"
    leaf = lambda x, kind: x.detach().to(device, kind).requires_grad_()  # noqa: E731
    q, k, v = (leaf(x, dtype) for x in given[:3])
    gates = {n: leaf(x, dtype if lean and x.dim() == 4 else wide) for n, x in given.gates.items()}
    start = {n: tuple(leaf(x, wide) for x in pair) for n, pair in given.start.items()}
    gain, shift = (leaf(x, wide) for x in given.norm)
    named = {"q": q, "k": k, "v": v} | gates | {f"{n}{i + 1}": x for n, pair in start.items() for i, x in enumerate(pair)}
    named |= {"gain": gain, "shift": shift}
    leaves = Inputs(q, k, v, gates, start, (gain, shift))
    y, state = read(spec, leaves, size, backend, bounds) if nudge is None else read_rounded(spec, leaves, size, nudge)
    outputs = {"y": y} | parts(spec.retention, state)
    mark = torch.Generator().manual_seed(1)
    # a momentum is as large as what it adds to
    sizes = {name: outputs[name.replace("S", "W")].detach().norm().cpu() for name in outputs}
    marks = {name: (torch.randn(x.shape, generator=mark) / sizes[name]).to(device) for name, x in outputs.items()}
    loss = scale * sum((x.double() * marks[name]).sum() for name, x in outputs.items())
    grads = torch.autograd.grad(loss, list(named.values()))
    found = outputs | {f"d{n}": g / scale for n, g in zip(named, grads, strict=True)}
    return {name: x.detach().cpu() for name, x in found.items()}
