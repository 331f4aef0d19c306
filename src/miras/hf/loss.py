"""Cross entropy in stretches of tokens, so that the logits of a long sequence never exist all at once.

B batch, T time, N tokens, C channels
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..nn import Packing
from ..torch_modes import again
from ..types import IGNORED


def next_labels(labels: Tensor, packing: Packing | None = None) -> Tensor:
    """The label of the next token that is there, ``[B,T]``; none for padding, nor after the last token of a sequence."""
    if packing is None:
        return F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    where, bounds = packing.where, packing.cu_seqlens
    labels = labels.to(where.device)
    own = labels.flatten()[where].index_fill(0, bounds[:-1][bounds.diff() > 0], IGNORED)
    following = F.pad(own, (0, 1), value=IGNORED)[1:]
    return torch.full_like(labels, IGNORED).flatten().index_put((where,), following).reshape(labels.shape)


def check_side(mask: Tensor) -> bool:
    """Whether a mask ``[B,T]`` has padding; a warning where a row begins with it: a Trainer counts its first token too."""
    padded = mask == 0
    if bool(padded[:, :1].any()):
        warnings.warn(
            "a row begins with padding: num_items_in_batch then counts first tokens, which no loss stands for, and the loss "
            'comes out too small; pad on the right, tokenizer.padding_side = "right"',
            stacklevel=2,
        )
    return bool(padded.any())


def chunked_cross_entropy(
    head: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor, size: int, items: Tensor | int | None = None
) -> Tensor:
    """-log p(label), the mean over tokens that have one (or the sum over ``items``); hidden ``[N,C]``, labels ``[N]``.

    ``head`` gives logits. Those of ``size`` tokens are made at a time, and made again in the backward pass; all once for 0.
    """

    def stretch(hidden: Tensor, labels: Tensor) -> Tensor:
        logits = head(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(logits, labels.to(logits.device), reduction="sum", ignore_index=IGNORED)

    if size == 0:
        total = stretch(hidden, labels)
    else:
        pairs = zip(torch.split(hidden, size), torch.split(labels, size), strict=True)
        total = torch.stack([again(stretch, *pair) for pair in pairs]).sum()
    if items is None:
        items = (labels != IGNORED).sum().clamp_min(1)
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)
