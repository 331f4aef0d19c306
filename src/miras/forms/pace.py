"""How one weight moves inside chunks: decays, momentum and steps, as matrices and masks.

With L the cumulative log decay since the chunk's start and f_i = step_i u_i x_i' the step of token i, without momentum

    W_t = b_t W - sum_{i<=t} kappa(t,i) f_i,    b_t = exp(L_t),  kappa(t,i) = exp(L_t - L_i);

with momentum P_t = mu_t P_(t-1) + f_t, which every token subtracts,

    W_t = b_t W - sigma_t P - sum_{i<=t} kappa(t,i) f_i,
    kappa(t,i) = sum_{i<=j<=t} exp(L_t - L_j) mu_(i+1)...mu_j,    sigma_t = sum_{j<=t} exp(L_t - L_j) mu_1...mu_j.

Everything is built once, for all chunks of a stretch.

B batch, H heads, N chunks of a stretch, C tokens of a chunk, D channels
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..memory import Factor, Side
from ..products import outer, times
from .ratio import Blocks, Dense, Direct, channel_ratio, cumulative, products, ratio, scalar_ratio

Axis = Literal["scalar", "out", "in"]
Pairs = Blocks | Dense | Direct


class Memo:
    """What several weights of a memory share: their gates are the same tensors, so a result is made once for each."""

    def __init__(self) -> None:
        self.made: dict[tuple[Any, int], tuple[Tensor, Any]] = {}

    def once(self, make: Callable[[Tensor], Any], x: Tensor) -> Any:
        """``make(x)``, the one made before where x is the same tensor."""
        key = (make, id(x))
        if key not in self.made:
            self.made[key] = (x, make(x))  # x is held, so that its id stays its own
        return self.made[key][1]


def by_chunk(x: Tensor) -> tuple[Tensor, ...]:
    """``[B,H,N,...]`` chunk by chunk: taken apart once, so that the backward pass puts it together once."""
    return x.unbind(2)


def by_chunk_end(x: Tensor) -> tuple[Tensor, ...]:
    """The last token of each chunk, ``[B,H,N,C,D] -> N x [B,H,D]``."""
    return x[..., -1, :].unbind(2)


class Along(NamedTuple):
    """A gate in token layout ``[...,C,D or 1]`` and the side of the weight it acts on."""

    axis: Axis
    value: Tensor


def along(side: Side, gate: Tensor) -> Along:
    """A gate on its side: one number a head is a scalar, and so is the mean that middle weights take."""
    if side == "mean" or gate.shape[-1] == 1:
        return Along("scalar", gate.mean(-1, keepdim=True))
    return Along("in" if side == "in" else "out", gate)


def scaled(factor: Factor, gate: Along) -> Factor:
    """A factor times a gate on one of its sides."""
    if gate.axis == "in":
        return Factor(factor.error, factor.input * gate.value)
    return Factor(factor.error * gate.value, factor.input)


def shaped(gate: Along, vector: bool) -> Tensor:
    """A gate ``[...,D or 1]`` shaped to act on a weight ``[...,out,in]`` (or, for a vector memory, ``[...,D]``)."""
    if vector:
        return gate.value
    return gate.value[..., None, :] if gate.axis == "in" else gate.value[..., :, None]


class Pace:
    """The decays b_t, pair factors kappa(t,i) and carries sigma_t of one weight; ``valid`` marks the tokens that are there."""

    def __init__(
        self, decays: list[Along], mu: Along | None, valid: Tensor | None, like: Tensor, vector: bool, memo: Memo
    ) -> None:
        self.vector = vector
        self.like = like
        self.memo = memo
        self.totals = [Along(gate.axis, memo.once(cumulative, gate.value)) for gate in decays]
        self.kept = [Along(total.axis, total.value.exp()) for total in self.totals]
        self.kept_to_end = [Along(t.axis, (t.value[..., -1:, :] - t.value).exp()) for t in self.totals]
        self.carried: Along | None = None
        if mu is None:
            self._without_momentum()
        else:
            self._with_momentum(mu, valid)

    def _without_momentum(self) -> None:
        summed = {axis: [t.value for t in self.totals if t.axis == axis] for axis in ("scalar", "out", "in")}
        size = self.like.shape[-2]
        self.scalar = (
            scalar_ratio(sum(summed["scalar"][1:], summed["scalar"][0]))
            if summed["scalar"]
            else self.like.new_ones(size, size).tril()
        )
        self.out: Pairs | None = self.memo.once(ratio, summed["out"][0]) if summed["out"] else None
        self.inner: Pairs | None = self.memo.once(ratio, summed["in"][0]) if summed["in"] else None
        self.to_end = self.kept_to_end

    def _with_momentum(self, mu: Along, valid: Tensor | None) -> None:
        axes: set[Axis] = {gate.axis for gate in (*self.totals, mu)} - {"scalar"}
        if len(axes) > 1:
            raise ValueError(
                "the chunk form cannot split a momentum and decays that are channel-wise on both sides of a matrix: "
                "give mu (or log_alpha) as one number a head, or use form='recurrent'"
            )
        axis: Axis = axes.pop() if axes else "scalar"
        factor = mu.value if valid is None else torch.where(valid, mu.value, 1.0)
        seen = factor.new_ones(1) if valid is None else valid.to(factor.dtype).mT[..., None, :]
        total = sum((t.value for t in self.totals), torch.zeros_like(factor))
        past = channel_ratio(total) * seen  # [...,D,C,C]: what is left at t of what j subtracts
        carried_on = products(factor)
        pairs = past @ carried_on
        grown = factor.cumprod(-2)
        self.carried = Along(axis, (past @ grown.mT[..., None]).squeeze(-1).mT)
        self.grown_end = Along(axis, grown[..., -1, :])
        self.grown_to_end = Along(axis, carried_on[..., -1, :].mT)
        self.to_end = [Along(axis, pairs[..., -1, :].mT)]
        size = self.like.shape[-2]
        self.scalar = pairs.squeeze(-3) if axis == "scalar" else self.like.new_ones(size, size).tril()
        self.out = Dense(pairs) if axis == "out" else None
        self.inner = Dense(pairs) if axis == "in" else None

    def at(self, gate: Along, chunk: int) -> Along:
        """One chunk of a gate."""
        return Along(gate.axis, self.memo.once(by_chunk, gate.value)[chunk])

    def keep_in(self, x: Tensor) -> Tensor:
        """An input times the decays of the input side."""
        for gate in self.kept:
            x = x * gate.value if gate.axis == "in" else x
        return x

    def keep_out(self, y: Tensor) -> Tensor:
        """An output times the decays of the output side and of the whole."""
        for gate in self.kept:
            y = y * gate.value if gate.axis != "in" else y
        return y

    def mix(self, queries: Tensor, factor: Factor) -> Tensor:
        """sum_{i<=t} kappa(t,i) f_i applied to each token's query: a masked gated linear attention."""
        if self.vector:
            ones = self.like.new_ones(queries.shape[-2], queries.shape[-2])
            return queries * self._values(ones * self.scalar, factor.error * factor.input)
        scores = times(queries, factor.input) if self.inner is None else self.inner.scores(queries, factor.input)
        return self._values(scores * self.scalar, factor.error)

    def _values(self, scores: Tensor, errors: Tensor) -> Tensor:
        return scores @ errors if self.out is None else self.out.values(scores, errors)

    def end_decay(self, chunk: int) -> Tensor | None:
        """L at the end of a chunk, shaped for the weight."""
        each = [shaped(Along(t.axis, self.memo.once(by_chunk_end, t.value)[chunk]), self.vector) for t in self.totals]
        return sum(each[1:], each[0]) if each else None

    def end_sum(self, factor: Factor, chunk: int) -> Tensor:
        """sum_i kappa(end,i) f_i of a chunk: what it adds to the weight's update."""
        for gate in self.to_end:
            factor = scaled(factor, self.at(gate, chunk))
        return self._outer(factor)

    def end_carry(self, momentum: Tensor, chunk: int) -> Tensor:
        """sigma_end P."""
        assert self.carried is not None
        return shaped(Along(self.carried.axis, self.memo.once(by_chunk_end, self.carried.value)[chunk]), self.vector) * momentum

    def end_momentum(self, momentum: Tensor, factor: Factor, chunk: int) -> Tensor:
        """P at the end of a chunk."""
        grown = shaped(self.at(self.grown_end, chunk), self.vector)
        late = scaled(factor, self.at(self.grown_to_end, chunk))
        return grown * momentum + self._outer(late)

    def _outer(self, factor: Factor) -> Tensor:
        return (factor.error * factor.input).sum(-2) if self.vector else outer(factor.error, factor.input)
