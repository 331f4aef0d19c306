"""Decay ratios b_t / b_i inside a chunk, computed in log space so that nothing over- or underflows, whatever alpha.

A ratio never divides: pairs of tokens within a block of 8 take exp(L_t - L_i) one by one; pairs of different blocks split it
at the later block's start, exp(L_t - L_start) exp(L_start - L_i), where both exponents are <= 0.

C tokens of a chunk, D channels, S = 8 tokens of a block, N blocks
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..products import times
from ..types import looked_at

BLOCK = 8
# exp(-100) is 0 next to any weight in float32, and a total erasure (log alpha = -inf) has no finite difference
LOWEST = -100.0
# exp(60) is far from the largest float32
MILD = 60.0


def causal(size: int, device: torch.device) -> Tensor:
    """The lower triangle, diagonal included: which tokens a token has seen."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


def cumulative(log_decay: Tensor) -> Tensor:
    """L_t: the sum of a chunk's log decays up to each token, ``[...,C,D]``."""
    return log_decay.clamp_min(LOWEST).cumsum(-2)


def scalar_ratio(total: Tensor) -> Tensor:
    """exp(L_t - L_i) for i <= t and 0 above, ``[...,C,1] -> [...,C,C]``."""
    seen = causal(total.shape[-2], total.device)
    return torch.where(seen, total - total.mT, -torch.inf).exp()


def channel_ratio(total: Tensor) -> Tensor:
    """exp(L_t - L_i) for i <= t and 0 above, channel by channel: ``[...,C,D] -> [...,D,C,C]``."""
    return scalar_ratio(total.mT[..., None])


def products(factor: Tensor) -> Tensor:
    """prod_{i < j <= t} factor_j for i <= t and 0 above: ``[...,C,D] -> [...,D,C,C]``; factors may be 0."""
    size = factor.shape[-2]
    seen = causal(size, factor.device)
    each = torch.where(seen.tril(-1), factor.mT[..., None], 1.0)
    return torch.where(seen, each.cumprod(-2), 0.0)


class Dense:
    """Channel-wise pair factors that do not split, ``[...,D,C,C]``."""

    def __init__(self, pairs: Tensor) -> None:
        self.pairs = pairs

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """sum_d q_td k_id f_dti: ``[...,C,D] -> [...,C,C]``."""
        return (self.pairs * q.mT[..., None] * k.mT[..., None, :]).sum(-3)

    def values(self, scores: Tensor, u: Tensor) -> Tensor:
        """sum_i s_ti f_dti u_id: ``[...,C,C], [...,C,D] -> [...,C,D]``."""
        return ((self.pairs * scores[..., None, :, :]) @ u.mT[..., None]).squeeze(-1).mT


class Direct:
    """Channel-wise pair factors of decays so mild that exp(L_t - m) exp(m - L_i), m in the middle, is safe by itself."""

    def __init__(self, total: Tensor) -> None:
        middle = total[..., total.shape[-2] // 2, None, :].detach()
        self.left, self.right = (total - middle).exp(), (middle - total).exp()
        self.seen = causal(total.shape[-2], total.device)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """sum_d q_td k_id exp(L_td - L_id), i <= t: ``[...,C,D] -> [...,C,C]``."""
        return torch.where(self.seen, times(q * self.left, k * self.right), 0.0)

    def values(self, scores: Tensor, u: Tensor) -> Tensor:
        """sum_{i <= t} s_ti exp(L_td - L_id) u_id, for scores that are 0 above: ``[...,C,C], [...,C,D] -> [...,C,D]``."""
        return self.left * (scores @ (u * self.right))


class Blocks:
    """Channel-wise pair factors exp(L_t - L_i), i <= t, of any total ``[...,C,D]``."""

    def __init__(self, total: Tensor) -> None:
        self.size = total.shape[-2]
        block = min(BLOCK, self.size)
        self.fill = -self.size % block
        # filling up with the last total keeps every exponent <= 0; the filled tokens carry no key and no value
        filled = torch.cat([total, total[..., -1:, :].expand(*total.shape[:-2], self.fill, -1)], -2) if self.fill else total
        self.blocks = filled.shape[-2] // block
        blocked = _blocks(filled, self.blocks)
        seen = causal(block, total.device)[..., None]
        self.inside = torch.where(seen, blocked[..., :, None, :] - blocked[..., None, :, :], -torch.inf).exp()
        if self.blocks > 1:
            start = blocked[..., :-1, -1:, :]
            self.left = (blocked[..., 1:, :, :] - start).exp()
            before = torch.arange(filled.shape[-2], device=total.device) < block * torch.arange(
                1, self.blocks, device=total.device
            ).unsqueeze(-1)
            self.right = torch.where(before[..., None], start - filled[..., None, :, :], -torch.inf).exp()

    def _split(self, x: Tensor) -> Tensor:
        return _blocks(F.pad(x, (0, 0, 0, self.fill)), self.blocks)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """sum_d q_td k_id exp(L_td - L_id), i <= t: ``[...,C,D] -> [...,C,C]``."""
        query, key = self._split(q), self._split(k)
        near = (query[..., :, None, :] * key[..., None, :, :] * self.inside).sum(-1)
        if self.blocks == 1:
            return near[..., 0, : self.size, : self.size]
        eye = torch.eye(self.blocks, dtype=q.dtype, device=q.device)[:, None, :, None]
        near = (near[..., :, :, None, :] * eye).flatten(-2)
        far = (query[..., 1:, :, :] * self.left) @ (key.flatten(-3, -2)[..., None, :, :] * self.right).mT
        both = near + F.pad(far, (0, 0, 0, 0, 1, 0))
        return both.flatten(-3, -2)[..., : self.size, : self.size]

    def values(self, scores: Tensor, u: Tensor) -> Tensor:
        """sum_{i <= t} s_ti exp(L_td - L_id) u_id, for scores that are 0 above: ``[...,C,C], [...,C,D] -> [...,C,D]``."""
        share = _blocks(F.pad(scores, (0, self.fill, 0, self.fill)), self.blocks)
        value = self._split(u)
        own = share.reshape(*share.shape[:-1], self.blocks, -1).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        near = (own[..., None] * value[..., None, :, :] * self.inside).sum(-2)
        if self.blocks > 1:
            far = self.left * (share[..., 1:, :, :] @ (value.flatten(-3, -2)[..., None, :, :] * self.right))
            near = near + F.pad(far, (0, 0, 0, 0, 1, 0))
        return near.flatten(-3, -2)[..., : self.size, :]


def ratio(total: Tensor) -> Direct | Blocks:
    """Pair factors exp(L_t - L_i) of a total ``[...,C,D]``; on a CPU, where looking is free, mild decays take a shorter way."""
    looks = total.device.type == "cpu" and not torch.compiler.is_compiling()
    if looks and looked_at((total.detach() > -MILD).all()):
        return Direct(total)
    return Blocks(total)


def _blocks(x: Tensor, number: int) -> Tensor:
    """``[...,N*S,D] -> [...,N,S,D]``."""
    return x.reshape(*x.shape[:-2], number, -1, x.shape[-1])
