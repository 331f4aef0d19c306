"""Keys alike share their steps, so that a chunk of descent does not overshoot.

The chunk form takes all gradients of a chunk at its start, so n keys alike take n steps for one, and descent that steps more
than twice too far overshoots. With beta_i = eta_i / unit, the step relative to the weights, and C tokens of a chunk

    eta_t  becomes  eta_t min(1, m / c_t),    c_t = sum_(t-C < i <= t) beta_i (k_i . k_t)^2.

What steps along a key add up to is no more than m then, and with m = 2 they do not overshoot where the gradient is that of l2.
Nothing changes where it never was more: for keys that differ, and in chunks of one token, as long as no single step is more
than m, which a layer's gate sees to. The last C - 1 pairs are carried from call to call, as a convolution carries its window:
it does not matter where chunks begin.

B batch, T tokens of a call, S tokens behind each other, H heads, K key channels, D channels of a step, R sequences, W = C - 1
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch_modes import uncast
from .functional import worth_fusing
from .packing import Places


class Sum(NamedTuple):
    """What steps add up to: at most ``most``, relative to ``unit``, over a token and the ``width`` pairs before it."""

    most: float
    unit: float
    width: int


class Recent(NamedTuple):
    """The keys ``[R,W,H,K]`` and steps ``[R,W,H,D or 1]`` of the last pairs, steps of 0 where there were none."""

    keys: Tensor
    steps: Tensor


torch.serialization.add_safe_globals([Recent])


def crowding(keys: Tensor, steps: Tensor, width: int) -> Tensor:
    """c_t, over each token and the ``width`` pairs before it, of all but the first ``width``: ``[B,S-W,H,D]``."""
    time = keys.shape[1] - width
    block = max(1, min(width + 1, time))
    whole = (0, 0, 0, 0, 0, -time % block if time else block)
    # [B,N,H,D,block+W]
    seen, moved = (F.pad(x, whole).unfold(1, block + width, block) for x in (keys, steps))
    token = torch.arange(block, device=keys.device)[:, None]
    slot = torch.arange(block + width, device=keys.device)
    within = (slot >= token) & (slot <= token + width)
    alike = torch.where(within, (seen[..., width:].transpose(-1, -2) @ seen).square(), 0.0)
    # 0 times what is no number is none either: one sequence's must not reach those behind it
    found = alike @ moved.nan_to_num(0.0, 0.0, 0.0).transpose(-1, -2)
    return found.transpose(2, 3).flatten(1, 2)[:, :time]


def shared(pairs: Recent, over: Sum, lead: int) -> Tensor:
    """The steps ``[B,S-L,H,D]`` of pairs ``[B,S,H,...]`` but the first ``lead``, 0 or the width, which are only seen."""
    (keys, steps), (most, unit, width) = pairs, over
    if worth_fusing(keys):
        from ..kernels import shared_steps

        if shared_steps.takes(keys, steps, width):
            return shared_steps.shared_steps(keys, steps, *over, lead)
    with uncast(keys.device):
        if keys.shape[1] == lead + 1 and lead == width:
            # one token, as in decoding: a sum instead of products of blocks
            alike = (keys[:, -1:].to(steps.dtype) * keys).sum(-1, keepdim=True).square()
            return steps[:, lead:] * (most / ((alike * steps).sum(1, keepdim=True) / unit).clamp_min(most))
        before = (0, 0, 0, 0, width - lead, 0)
        found = crowding(F.pad(keys.to(steps.dtype), before), F.pad(steps / unit, before), width)
    return steps[:, lead:] * (most / found.clamp_min(most))


def share(
    eta: Tensor, k: Tensor, over: Sum, recent: Recent | None, places: Places | None, per_token: int = 1
) -> tuple[Tensor, Recent]:
    """The steps ``[B,T,H]`` or ``[B,T,H,D]`` that keys ``[B,T,H,K]`` share, and the pairs to go on with.

    Packed tokens ``[1,N,...]`` have one row of ``recent`` a sequence; a token has ``per_token`` pairs.
    """
    width = over.width
    new = Recent(k, eta if eta.dim() == 4 else eta[..., None])
    if places is None:
        # no copy of all tokens where a sequence starts, as it does in training
        seen = new if recent is None else _joined(recent, new, 1)
        y = shared(seen, over, 0 if recent is None else width)
        return y.reshape(eta.shape), Recent(*(_last(x, width) for x in seen))
    if recent is None:
        recent = Recent(*(x.new_zeros(len(places.lengths), width, *x.shape[2:]) for x in new))
    order, own, last = _line(places, width, per_token)
    seen = Recent(
        *(
            x.index_select(0, order)[None]
            for x in _joined(Recent(*(x.flatten(0, 1) for x in recent)), Recent(*(x[0] for x in new)), 0)
        )
    )
    y = shared(seen, over, width)[:, own - width]
    return y.reshape(eta.shape), Recent(*(x[0, last] for x in seen))


def _last(x: Tensor, width: int) -> Tensor:
    """The last ``width`` tokens, zeros before them where there are fewer."""
    # a copy, so that a state does not keep all tokens
    return F.pad(x[:, max(0, x.shape[1] - width) :], (0, 0, 0, 0, max(0, width - x.shape[1]), 0))


def _joined(old: Recent, new: Recent, dim: int) -> Recent:
    return Recent(*(torch.cat([was.to(now.dtype), now], dim) for was, now in zip(old, new, strict=True)))


def _line(places: Places, width: int, per_token: int) -> tuple[Tensor, Tensor, Tensor]:
    """Every sequence behind its own window, which is as far as a token sees.

    Which of all windows and tokens, in this order, stands at each place ``[S]``, where the tokens are ``[N]``, and where the
    last ``width`` of every sequence ``[R,W]``.
    """
    device = places.row.device
    row, back = torch.arange(len(places.lengths), device=device)[:, None], torch.arange(-width, 0, device=device)
    window, last = (width * (row + 1) + per_token * bound[:, None] + back for bound in (places.bounds[:-1], places.bounds[1:]))
    own = torch.arange(len(places.row) * per_token, device=device) + width * (places.row.repeat_interleave(per_token) + 1)
    return torch.cat([window.flatten(), own]).argsort(), own, last
