"""Softmax attention over a cache that grows: torch's scaled_dot_product_attention.

B batch, T time, S cached pairs, H heads
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithm import NonParametric
from ..types import CacheState
from .common import cached, seen


def attention(
    algorithm: NonParametric, q: Tensor, k: Tensor, v: Tensor, state: CacheState, lengths: list[int] | None = None
) -> tuple[Tensor, CacheState]:
    """y_t = sum_{i<=t} softmax_i(scale q_t.k_i) v_i, and the cache with the new pairs.

    Rows filled up on the right (``lengths``) are shifted so that the cache is filled up on the left, as it is kept. Without a
    past the tokens are read in their own dtype, for which a GPU has fused kernels that sum in float32; the cache is float32.
    """
    past, time = state.keys.shape[1], q.shape[1]
    end = cached(state, k, v)
    scale = algorithm.scale_for(k.shape[-1])
    if past == 0:
        query, keys, values = (x.transpose(1, 2) for x in (q, k, v))
        y = F.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale)
    else:
        own = seen(end)
        query, keys, values = (x.transpose(1, 2) for x in (q.to(end.keys.dtype), end.keys, end.values))
        causal = torch.ones(time, past + time, dtype=torch.bool, device=q.device).tril(past)
        mask = causal & own[:, None, None, :]
        y = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    if lengths is not None:
        end = _shifted(end, time, lengths)
    return y.transpose(1, 2), end


def _shifted(state: CacheState, time: int, lengths: list[int]) -> CacheState:
    """The cache without the filled-up pairs at its right end."""
    filled = torch.tensor([time - length for length in lengths], device=state.keys.device)
    size = state.keys.shape[1]
    index = (torch.arange(size, device=state.keys.device) - filled[:, None]) % size

    def moved(x: Tensor) -> Tensor:
        return x.gather(1, index[:, :, None, None].expand_as(x))

    longest = int((state.lengths - filled).max())
    keys, values = moved(state.keys)[:, size - longest :], moved(state.values)[:, size - longest :]
    return CacheState(keys, values, state.lengths - filled)
