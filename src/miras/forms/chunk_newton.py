"""Newton in chunks: exact, the linear systems of all tokens of a stretch solved at once.

B batch, T time, H heads, K key channels, V value channels, C tokens of a chunk
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..algorithm.newton import solve
from ..torch_modes import again
from ..types import Gates, NewtonState
from .common import split
from .ratio import cumulative, scalar_ratio


def chunk_newton(
    q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: NewtonState, size: int, valid: Tensor | None
) -> tuple[Tensor, NewtonState]:
    """y_t = W_t q_t with W_t the decayed ridge regression of all pairs so far, chunk by chunk."""
    assert gates.eta is not None and gates.ridge is not None
    eta = gates.eta if valid is None else gates.eta * valid[:, :, None, None]
    log_alpha = torch.zeros_like(eta) if gates.log_alpha is None else gates.log_alpha
    log_alpha = log_alpha if valid is None else log_alpha * valid[:, :, None, None]
    by_head = [x.transpose(1, 2) for x in (q, k, v, eta, log_alpha)]
    key_key, value_key = state.key_key, state.value_key
    outputs = [v.new_zeros(*by_head[2].shape[:2], 0, v.shape[3])]
    recompute = q.shape[1] > size
    for left in range(0, q.shape[1], size):
        piece = [x[:, :, left : left + size] for x in by_head]
        arguments = (*piece, gates.ridge, state.anchor, key_key, value_key)
        if recompute:  # a chunk's C systems of K x K are not kept for the backward pass
            y, key_key, value_key = again(_chunk, *arguments)
        else:
            y, key_key, value_key = _chunk(*arguments)
        outputs.append(y)
    weights = solve(key_key, value_key, gates.ridge, state.anchor) if q.shape[1] else state.weights
    return torch.cat(outputs, 2).transpose(1, 2), NewtonState(weights, key_key, value_key, state.anchor)


def _chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eta: Tensor,
    log_alpha: Tensor,
    ridge: Tensor,
    anchor: Tensor,
    key_key: Tensor,
    value_key: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One chunk ``[B,H,C,D]``: x_t = (sum k k' + ridge)^-1 q_t for all its tokens, then y_t = (sum v k' + W_0 ridge) x_t."""
    total = cumulative(log_alpha)
    share = scalar_ratio(total) * eta.mT  # [B,H,C,C]: what token t keeps of pair i
    kept = total.exp()
    outer = (k[..., :, None] * k[..., None, :]).flatten(-2)
    normal = kept[..., None] * key_key[:, :, None] + split(share @ outer, 3, k.shape[-1])
    normal = normal + torch.diag_embed(ridge)[:, None]
    x: Tensor = torch.linalg.solve(normal, q)
    y = kept * (x @ value_key.mT) + (x @ k.mT * share) @ v + (x * ridge[:, None]) @ anchor.mT
    end, last = share[..., -1:, :].mT, kept[..., -1:, :]
    return y, last * key_key + (end * k).mT @ k, last * value_key + (end * v).mT @ k
