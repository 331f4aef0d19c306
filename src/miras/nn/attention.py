"""Attention over a sliding window, with a cache of the window's size: what hybrids put beside a memory.

B batch, T time, C channels of the input, H heads, D channels of a head, S the window, R sequences, N blocks of L queries
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import checks
from ..forms.common import split
from ..types import require, whole
from .functional import turned, turns
from .joined import apart
from .packing import Packing, Places


class WindowState(NamedTuple):
    """The last S keys and values of every row, ``[B,S,H,D]``, zeros before its first token; ``seen`` ``[B]`` tokens so far."""

    keys: Tensor
    values: Tensor
    seen: Tensor


torch.serialization.add_safe_globals([WindowState])


def windowed(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """y_t = softmax attention of q_t over the last S pairs up to t, in blocks of at most S queries.

    q ``[B,T,H,D]``; keys and values ``[B,S+T,H,D]``, the S pairs before the first query first, of which ``seen`` are there.
    """
    time, window = q.shape[1], keys.shape[1] - q.shape[1]
    block = min(window, time)
    blocks, fill = -(-time // block), -time % block
    q = split(F.pad(q, (0, 0, 0, 0, 0, fill)), 1, blocks).transpose(2, 3)  # [B,N,H,L,D]
    keys, values = (
        F.pad(x, (0, 0, 0, 0, 0, fill)).unfold(1, window + block, block).mT for x in (keys, values)
    )  # [B,N,H,S+L,D]
    query, pair = torch.arange(block, device=q.device)[:, None], torch.arange(window + block, device=q.device)
    near = (pair > query) & (pair <= query + window)
    start = torch.arange(blocks, device=q.device)[:, None] * block
    there = (start + pair) >= window - seen.clamp(max=window)[:, None, None]  # [B,N,S+L]
    mask = near & there[:, :, None, None, :]
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
    return y.transpose(2, 3).flatten(1, 2)[:, :time]


class SlidingWindowAttention(nn.Module):
    """Causal softmax attention over the last ``window`` tokens, with rotary positions: ``[B,T,C] -> [B,T,C]``."""

    def __init__(self, dim: int, heads: int, *, window: int, head_dim: int | None = None, rope: float = 1e4) -> None:
        super().__init__()
        require(whole(window, 1), f"window must be an integer of 1 or more, got {window!r}")
        require(head_dim is not None or dim % heads == 0, f"dim={dim} is not a multiple of heads={heads}: give head_dim")
        self.dim, self.heads, self.width, self.window, self.rope = dim, heads, head_dim or dim // heads, window, rope
        require(self.width % 2 == 0, f"rotary positions turn pairs of channels, got head_dim={self.width}")
        self.q_proj = nn.Linear(dim, heads * self.width, bias=False)
        self.k_proj = nn.Linear(dim, heads * self.width, bias=False)
        self.v_proj = nn.Linear(dim, heads * self.width, bias=False)
        self.o_proj = nn.Linear(heads * self.width, dim, bias=False)

    def forward(
        self, x: Tensor, state: WindowState | None = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, WindowState]:
        """As :meth:`MirasLayer.forward`."""
        require(x.dim() == 3 and x.shape[2] == self.dim, f"x must be [B,T,{self.dim}], got {list(x.shape)}")
        if mask is not None:
            require(cu_seqlens is None, "mask and cu_seqlens were both given: packed sequences have no padding")
            packing = Packing.of(mask)
            y, state = self(packing.pack(x), state, cu_seqlens=packing.cu_seqlens)
            return packing.unpack(y), state
        q, k, v = (split(part, -1, self.heads) for part in apart(x, [self.q_proj, self.k_proj, self.v_proj]))
        if cu_seqlens is None:
            y, state = self._attend(q, k, v, state, None)
        else:
            checks.packing(cu_seqlens, *x.shape[:2])
            # rows filled up on the right; each sees its own tokens alone
            lengths = Places.of(cu_seqlens).lengths
            rows = Packing.of(torch.arange(int(lengths.max()), device=x.device) < lengths[:, None])
            q, k, v = (rows.unpack(part) for part in (q, k, v))
            y, state = self._attend(q, k, v, state, lengths)
            y = rows.pack(y)
        out: Tensor = self.o_proj(y.flatten(2))
        return out, state

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, state: WindowState | None, lengths: Tensor | None
    ) -> tuple[Tensor, WindowState]:
        batch, time = q.shape[:2]
        if state is None:
            empty = k.new_zeros(batch, self.window, self.heads, self.width)
            state = WindowState(empty, empty, torch.zeros(batch, dtype=torch.long, device=q.device))
        said = f"state must be what a call of this layer returned, got {type(state).__name__}"
        require(isinstance(state, WindowState), said)
        wanted, got = [batch, self.window, self.heads, self.width], list(state.keys.shape)
        require(got == wanted, f"state must hold keys {wanted}, got {got}: another window, batch or layer")
        positions = state.seen[:, None] + torch.arange(time, device=q.device)
        angles = turns(positions, self.width, self.rope, q.dtype)
        q, k = turned(q, *angles), turned(k, *angles)
        keys, values = torch.cat([state.keys.to(k.dtype), k], 1), torch.cat([state.values.to(v.dtype), v], 1)
        y = windowed(q, keys, values, state.seen) if time else q
        if lengths is None:
            # copies: what stays must not hold the whole call's tokens
            return y, WindowState(keys[:, time:].clone(), values[:, time:].clone(), state.seen + time)
        last = lengths[:, None] + torch.arange(self.window, device=q.device)
        kept = [x.gather(1, last[:, :, None, None].expand(-1, -1, *x.shape[2:])) for x in (keys, values)]
        return y, WindowState(kept[0], kept[1], state.seen + lengths)
