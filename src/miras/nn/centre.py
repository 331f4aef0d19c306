"""Queries and keys less the mean of the keys so far: what all keys share says nothing about any of them.

B batch, T time, H heads, K key channels, R sequences
"""

from __future__ import annotations

import torch
from torch import Tensor

from .functional import EPS, unit_length, worth_fusing
from .packing import Places

# no GPU has run the kernels yet: Triton's interpreter has
COMPARED = False


def centred(q: Tensor, k: Tensor, before: Tensor, seen: Tensor, places: Places | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """q and k ``[B,T,H,K]`` less m_t, scaled to unit length again, and the sum of all keys read, ``[R,H,K]``.

    m_t = (k_1 + ... + k_t) / (t + 1): a zero counts as a key too, so the first key keeps its direction. ``before`` ``[R,H,K]``
    is the sum of the keys that earlier calls have read, ``seen`` ``[R]`` their number.
    """
    if places is None and fuses(k):
        from ..kernels import centre

        if centre.takes(q, k):
            return centre.centred(q, k, before, seen, EPS)
    if places is not None:
        # a sequence a row: sums over a whole batch, taken apart by differences, would leave a trace of one in the next
        rows = k.new_zeros(len(before), int(places.lengths.max()), *k.shape[2:])
        apart = rows.index_put((places.row, places.position), k[0])
        total = (apart.to(before.dtype).cumsum(1) + before[:, None])[places.row, places.position][None]
        count = (seen[places.row] + places.position + 1)[None]
        after = before + apart.sum(1, dtype=before.dtype)
    else:
        total = k.to(before.dtype).cumsum(1) + before[:, None]
        count = seen[:, None] + torch.arange(1, k.shape[1] + 1, device=k.device)
        after = total[:, -1] if k.shape[1] else before
    mean = total / (count + 1)[..., None, None]
    q, k = (unit_length(x.to(mean.dtype) - mean).to(x.dtype) for x in (q, k))
    return q, k, after


def fuses(k: Tensor) -> bool:
    """Whether a kernel may centre the keys."""
    return COMPARED and worth_fusing(k)


def none_read(rows: int, k: Tensor) -> Tensor:
    """The sum of no keys, ``[R,H,K]``, in float32 at least."""
    return k.new_zeros(rows, *k.shape[2:], dtype=torch.promote_types(k.dtype, torch.float32))
