"""The delta rule in chunks, exact: every error of a chunk from one triangular system (the WY/UT transform).

With D = W - W_0 (W_0 = 0 unless anchored), the steps of a chunk are rank one, D_t = b_t D - sum_{i<=t} (b_t/b_i) e_i r_i',
and the error e_t of token t looks up what the earlier ones have left behind:

    e_t = eta_t (W_0 k_t + D (b_t k_t) - v_t - sum_{i<t} [k_t . (b_t/b_i) r_i] e_i),

so (I + eta M) e = eta (lookup - v) with M strictly lower triangular. For RWKV-7 the key looked up is kappa, r = eta * kappa,
the system's eta is 1, and the writes v_i k_i' stand on their own. ``at="previous"`` looks up with b_(t-1) for b_t.

B batch, H heads, N chunks, C pairs of a chunk, K key channels, V value channels, R systems: one, or one for each of V rows
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithm import Descent
from ..retention import L2
from ..spec import Spec
from ..types import Held, State
from .chunk_scan import Tokens
from .common import split, state_of
from .ratio import Dense, channel_ratio, cumulative, ratio, scalar_ratio


class Decays(NamedTuple):
    """Cumulative log decays ``[B,H,N,C,D]``: of the whole, of the key side, of the value side."""

    scalar: Tensor | None
    key: Tensor | None
    value: Tensor | None


class Ratios:
    """What the decays mean for pairs of tokens of a chunk."""

    def __init__(self, decays: Decays, like: Tensor) -> None:
        size = like.shape[-2]
        self.decays = decays
        self.whole = like.new_ones(size, size).tril() if decays.scalar is None else scalar_ratio(decays.scalar)
        self.key = None if decays.key is None else ratio(decays.key)
        self.value = None if decays.value is None else Dense(channel_ratio(decays.value))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q_t . (b_t/b_i) k_i for i <= t, the value side left out: ``[...,C,C]``."""
        return (q @ k.mT if self.key is None else self.key.scores(q, k)) * self.whole

    def values(self, scores: Tensor, u: Tensor) -> Tensor:
        """sum_i s_ti (b_t/b_i) u_i over the value side."""
        return scores @ u if self.value is None else self.value.values(scores, u)

    def kept(self, x: Tensor) -> Tensor:
        """b_t x_t on the key side and as a whole."""
        for total in (self.decays.scalar, self.decays.key):
            x = x if total is None else x * total.exp()
        return x

    def kept_values(self, y: Tensor) -> Tensor:
        """b_t y_t on the value side."""
        return y if self.decays.value is None else y * self.decays.value.exp()

    def to_end(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """(b_end/b_i) on a pair's two sides."""
        for total in (self.decays.scalar, self.decays.key):
            key = key if total is None else key * (total[..., -1:, :] - total).exp()
        total = self.decays.value
        return key, value if total is None else value * (total[..., -1:, :] - total).exp()

    def ends(self) -> tuple[Tensor, ...] | None:
        """b_end of each chunk, shaped for the weight."""
        axes = zip(self.decays, (-1, -2, -1), strict=True)
        each = [total[..., -1, :].unsqueeze(axis) for total, axis in axes if total is not None]
        return sum(each[1:], each[0]).exp().unbind(2) if each else None


def chunk_delta(
    spec: Spec, tokens: Tokens, kappa: Tensor | None, state: State, size: int, valid: Tensor | None
) -> tuple[Tensor, State]:
    """Matrix memory, l2 bias, Keep or L2, by gradient descent, implicit or several steps: equal to the recurrent form.

    Pairs and removal keys come as ``[B,H,T,D]``, ``valid`` as ``[B,T]``; y is read after every pair, ``[B,H,T,V]``.
    """
    assert isinstance(spec.algorithm, Descent) and isinstance(state.weights, Tensor)
    time = tokens.q.shape[2]
    if time == 0:
        return tokens.v, state
    size = min(size, time)
    chunks, fill = -(-time // size), -time % size

    def chunked(x: Tensor) -> Tensor:
        """``[B,H,T,D] -> [B,H,N,C,D]``, filled up with zeros, which neither decay nor learn."""
        return split(F.pad(x if valid is None else x * valid[:, None, :, None], (0, 0, 0, fill)), 2, chunks)

    query, keys, values, eta = map(chunked, tokens[:4])
    kappa, log_alpha, log_beta = (None if x is None else chunked(x) for x in (kappa, tokens.log_alpha, tokens.log_beta))
    eta = spec.algorithm.rate(eta, spec.memory.curvature(keys))
    ratios = Ratios(_decays(spec, log_alpha, log_beta), keys)
    anchor = state.anchor[0] if state.anchor else None
    writes: tuple[Tensor, Tensor] | None = None
    if kappa is None:
        lookup, removed, constant = keys, keys, -values
    else:
        # the write is a second stream of pairs, of value v and key k
        lookup, removed, writes = kappa, eta * kappa, (values, keys)
        eta, constant = torch.ones_like(eta[..., :1]), _written(spec, ratios, kappa, *writes)
    base = None if anchor is None else lookup @ anchor.mT[:, :, None]
    solution = _solve(_system(spec, ratios, lookup, removed, eta), constant, _lookup_keys(spec, ratios, lookup), base)
    start = state.weights if anchor is None else state.weights - anchor
    starts, errors, away = _scan(ratios, solution, removed, writes, start)
    y = ratios.kept_values(ratios.kept(query) @ starts.mT) - ratios.values(ratios.scores(query, removed), errors)
    if writes is not None:
        y = y + ratios.values(ratios.scores(query, writes[1]), writes[0])
    if anchor is not None:
        y = y + query @ anchor.mT[:, :, None]
    weight = away if anchor is None else away + anchor
    return y.flatten(2, 3)[:, :, :time], state_of([Held(weight, weight)], state.anchor, ())


def _decays(spec: Spec, log_alpha: Tensor | None, log_beta: Tensor | None) -> Decays:
    if log_alpha is None:
        return Decays(None, None, None)
    assert isinstance(spec.retention, L2)
    total = cumulative(log_alpha)
    beta = None if log_beta is None else cumulative(log_beta)
    if spec.retention.side == "value":
        return Decays(total, None, None) if total.shape[-1] == 1 else Decays(None, None, total)
    whole = [x for x in (total, beta) if x is not None and x.shape[-1] == 1]
    return Decays(
        sum(whole[1:], whole[0]) if whole else None,
        total if total.shape[-1] > 1 else None,
        beta if beta is not None and beta.shape[-1] > 1 else None,
    )


def _previous(spec: Spec) -> bool:
    return isinstance(spec.retention, L2) and spec.retention.at == "previous"


def _back(x: Tensor) -> Tensor:
    """Each token's row moved to the token before."""
    return F.pad(x[..., 1:, :], (0, 0, 0, 1))


def _forth(x: Tensor) -> Tensor:
    """Each token's row moved to the token after."""
    return F.pad(x[..., :-1, :], (0, 0, 1, 0))


def _looked_up(spec: Spec, ratios: Ratios, lookup: Tensor, key: Tensor) -> Tensor:
    """M: what token t's key finds of the pairs i < t, after t's decay or before it."""
    if _previous(spec):
        return _forth(ratios.scores(_back(lookup), key))
    return ratios.scores(lookup, key).tril(-1)


def _written(spec: Spec, ratios: Ratios, lookup: Tensor, values: Tensor, keys: Tensor) -> Tensor:
    """What token t's key finds of the writes v_i k_i' of i < t, after t's decay or before it."""
    if _previous(spec):
        return _forth(ratios.values(ratios.scores(_back(lookup), keys), values))
    return ratios.values(ratios.scores(lookup, keys).tril(-1), values)


def _lookup_keys(spec: Spec, ratios: Ratios, lookup: Tensor) -> tuple[Tensor, Tensor | None]:
    """The key side of b_t k_t (b_(t-1) k_t), and the value side's factor."""
    value = ratios.decays.value
    if not _previous(spec):
        return ratios.kept(lookup), None if value is None else value.exp()
    kept = torch.cat([lookup[..., :1, :], ratios.kept(_back(lookup))[..., :-1, :]], -2)
    return kept, None if value is None else _forth(value).exp()


class System(NamedTuple):
    """I + eta M, ``[...,R,C,C]``, and eta ``[...,C,R]``, R = 1 or V."""

    matrix: Tensor
    eta: Tensor


def _system(spec: Spec, ratios: Ratios, lookup: Tensor, removed: Tensor, eta: Tensor) -> System:
    found = _looked_up(spec, ratios, lookup, removed)
    eye = torch.eye(found.shape[-1], dtype=found.dtype, device=found.device)
    found = found[..., None, :, :]
    if ratios.value is not None:
        found = found * (_forth(ratios.value.pairs) if _previous(spec) else ratios.value.pairs)
    return System(eye + eta.mT[..., None] * found, eta)


class Solution(NamedTuple):
    """e = Y D' + u for any incoming D: Y ``[...,R,C,K]``, u ``[...,C,V]``."""

    keys: Tensor
    constant: Tensor


def _solve(system: System, constant: Tensor, lookup: tuple[Tensor, Tensor | None], base: Tensor | None) -> Solution:
    """The system's answer to eta (W_0 k + constant) and to eta times the key that the incoming weights will meet."""
    matrix, eta = system
    key, outside = lookup
    right = eta * (constant if base is None else constant + base)
    rows = matrix.shape[-3]
    lookups = (eta if outside is None else eta * outside).mT[..., None] * key[..., None, :, :]  # [...,R or V,C,K]
    if rows == 1 and lookups.shape[-3] == 1:
        both = torch.cat([right, lookups[..., 0, :, :]], -1)
        answer = torch.linalg.solve_triangular(matrix[..., 0, :, :], both, upper=False, unitriangular=True)
        return Solution(answer[..., right.shape[-1] :][..., None, :, :], answer[..., : right.shape[-1]])
    width = right.shape[-1]
    matrix = matrix.expand(*matrix.shape[:-3], width, -1, -1)
    lookups = lookups.expand(*lookups.shape[:-3], width, -1, -1)
    both = torch.cat([right.mT[..., None], lookups], -1)
    answer = torch.linalg.solve_triangular(matrix, both, upper=False, unitriangular=True)
    return Solution(answer[..., 1:], answer[..., 0].mT)


def _scan(
    ratios: Ratios, solution: Solution, removed: Tensor, writes: tuple[Tensor, Tensor] | None, away: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """D at every chunk's start, the errors of every chunk, and D at the end, from ``away``, D before the first."""
    starts, errors = [], []
    fresh = None
    if writes is not None:
        late_keys, late_values = ratios.to_end(writes[1], writes[0])
        fresh = (late_values.mT @ late_keys).unbind(2)
    ends = ratios.ends()
    # taken apart once, so that the backward pass puts it together once
    late_removed, late_side = ratios.to_end(removed, torch.ones_like(solution.constant))
    apart = zip(*(x.unbind(2) for x in (solution.keys, solution.constant, late_removed, late_side)), strict=True)
    for n, (keys, constant, late_key, late) in enumerate(apart):
        starts.append(away)
        found = keys[:, :, 0] @ away.mT if keys.shape[2] == 1 else (keys @ away[..., None]).squeeze(-1).mT
        error = found + constant
        errors.append(error)
        away = (away if ends is None else ends[n] * away) - (late * error).mT @ late_key
        away = away if fresh is None else away + fresh[n]
    return torch.stack(starts, 2), torch.stack(errors, 2), away
