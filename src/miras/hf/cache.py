"""The cache that ``generate`` carries: one state a block, of constant size.

B batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.cache_utils import Cache, CacheLayerMixin

from ..nn.block import BlockState
from ..types import require
from .configuration import MirasConfig
from .memory_file import differences, identity


class MirasCacheLayer(CacheLayerMixin):
    """The state of one block, and how many columns of tokens, padding among them, it has been given.

    ``keys`` and ``values``, where transformers' own layers keep theirs, are the window of recent tokens and the weights.
    """

    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.state: BlockState | None = None
        self.columns = 0

    def advance(self, state: BlockState, columns: int) -> None:
        """Keep the state after more tokens."""
        self._keep(state)
        self.columns += columns

    def _keep(self, state: BlockState) -> None:
        self.state, self.is_initialized = state, True
        leaves = tensors(state)
        self.keys, self.values = leaves[0], leaves[1]

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self._keep(pytree.tree_map_only(Tensor, change, self.state))

    @property
    def batch_size(self) -> int:
        """Rows of the state; -1 before the first token."""
        return -1 if self.state is None else len(self.state.seen)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The rows that a beam search goes on with."""
        self._each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """The rows to keep."""
        self._each(lambda x: x[indices.to(x.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row several times."""
        self._each(lambda x: x.repeat_interleave(repeats, 0))

    def reset(self) -> None:
        """Back to before the first token."""
        super().__init__()
        self.state, self.columns = None, 0

    def offload(self) -> None:
        """To the CPU."""
        self._each(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Nothing: a block brings its state to where it needs it."""

    def get_seq_length(self) -> int:
        """Columns of tokens so far, padding among them."""
        return self.columns

    def get_max_length(self) -> int:
        """-1: there is no maximum."""
        return -1

    def get_max_cache_shape(self) -> int:
        """-1: there is no maximum."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns of a mask over everything so far and the coming tokens, and where it starts."""
        return self.columns + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """A memory cannot go back."""
        raise ValueError("a MirasCache cannot be cropped: what a memory has read is not kept token by token")

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """There is nothing to prepare."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """A memory takes states, not keys and values."""
        raise ValueError("a MirasCache holds the states of memories: only a Miras model can advance it")


class MirasCache(Cache):
    """One :class:`MirasCacheLayer` a block. Its size does not depend on how much it has read (but for ``transformer``).

    ``done`` ``[B]`` are the rows that ``generate`` has ended, ``over`` those of them whose last token is padding already;
    None where it has ended none. ``model`` is the configuration of the model whose cache it is, None before the first token.
    """

    layers: list[MirasCacheLayer]

    def __init__(self, blocks: int) -> None:
        super().__init__(layers=[MirasCacheLayer() for _ in range(blocks)])
        self.model: MirasConfig | None = None
        self.begin()

    def begin(self) -> None:
        """No row has ended."""
        self.done: Tensor | None = None
        self.over: Tensor | None = None

    def end(self, rows: Tensor) -> None:
        """Rows ``[B]`` end with the token just written."""
        self.over, self.done = self.done, rows if self.done is None else self.done | rows

    def reset(self) -> None:
        """Back to before the first token, of whatever model."""
        super().reset()
        self.model = None
        self.begin()

    @property
    def batch_size(self) -> int:
        """Rows of the states; -1 before the first token. Earlier versions of transformers have no such property."""
        return self.layers[0].batch_size

    @property
    def states(self) -> tuple[BlockState, ...] | None:
        """The state of every block, or None before the first token."""
        states = tuple(layer.state for layer in self.layers if layer.state is not None)
        return states or None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors it holds."""
        return sum(x.numel() * x.element_size() for layer in self.layers for x in tensors(layer.state))


def tensors(state: BlockState | None) -> list[Tensor]:
    """Every tensor a state holds."""
    return [x for x in pytree.tree_leaves(state) if isinstance(x, torch.Tensor)]


def check_cache(cache: object, config: MirasConfig, blocks: int, batch: int) -> MirasCache:
    """The cache, refused unless it is one of this model and batch; one of no model yet becomes this one's."""
    require(isinstance(cache, MirasCache), f"past_key_values must be a MirasCache, got {type(cache).__name__}")
    assert isinstance(cache, MirasCache)
    require(len(cache.layers) == blocks, f"past_key_values has {len(cache.layers)} blocks, the model has {blocks}")
    if cache.model is not config:
        # states of two memories may have the same shapes
        other = "" if cache.model is None else differences(identity(cache.model), identity(config))
        require(not other, f"past_key_values was made by another model: {other}")
        cache.model = config
    rows = cache.batch_size
    require(
        rows in (-1, batch),
        f"past_key_values holds {rows} rows, the input has {batch}: its batch_repeat_interleave(n) makes n of each row, its "
        "batch_select_indices(rows) keeps some",
    )
    return cache
