"""The checked arguments of a call, whole or in stretches.

B batch, T time, H heads, D channels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .rows import on_device
from .spec import Spec
from .types import AnyState, Gates, Norm, State


class Call(NamedTuple):
    """Tokens and gates ``[B,T,H,D or 1]`` as they came, the state as the memory works."""

    spec: Spec
    q: Tensor
    k: Tensor
    v: Tensor
    gates: Gates
    norm: Norm | None
    state: AnyState

    def to(self, dtype: torch.dtype) -> Call:
        """The call with its tokens and gates in a dtype."""
        return self._replace(q=self.q.to(dtype), k=self.k.to(dtype), v=self.v.to(dtype), gates=self.gates.to(dtype))

    @property
    def backward(self) -> bool:
        """Whether gradients will be asked for."""
        if not torch.is_grad_enabled():
            return False
        return any(x.requires_grad for x in pytree.tree_leaves(tuple(self)) if isinstance(x, Tensor))

    def cut(self, lengths: list[int]) -> list[Call]:
        """Stretches of so many tokens, each with the state of the whole.

        All are cut at once, so that the backward pass puts their gradients together once.
        """
        pairs = self.k.shape[1] // self.q.shape[1]
        each = [pairs * length for length in lengths]

        def apart(x: Tensor, sizes: list[int]) -> list[Tensor]:
            return list(x.split(sizes, 1))  # type: ignore[no-untyped-call]

        moving = {name: x for name, x in self.gates._asdict().items() if x is not None and name != "ridge"}
        gates = {name: apart(x, each if name == "eta" else lengths) for name, x in moving.items()}
        tokens = zip(apart(self.q, lengths), apart(self.k, each), apart(self.v, each), strict=True)
        return [
            self._replace(q=q, k=k, v=v, gates=Gates(ridge=self.gates.ridge, **{name: x[i] for name, x in gates.items()}))
            for i, (q, k, v) in enumerate(tokens)
        ]

    def flat(self) -> Call:
        """The tokens of all rows one behind the other, in a batch of 1."""
        assert self.gates.ridge is None
        return self._replace(**_tokens(lambda x: x.flatten(0, 1)[None], self))

    def begun(self, rows: list[int]) -> Call:
        """Some of the rows, which stand at a chunk's start."""
        assert isinstance(self.state, State)
        index = on_device(rows, self.q.device)
        own = pytree.tree_map_only(Tensor, lambda x: x.index_select(0, index), self.state._replace(chunk=None))
        return self._replace(state=own, **_tokens(lambda x: x.index_select(0, index), self))


def behind(calls: Sequence[Call], state: AnyState) -> Call:
    """The tokens of calls in batches of 1 one behind the other, from a state with a row for each."""
    return calls[0]._replace(state=state, **_tokens(lambda *x: torch.cat(x, 1), *calls))


def _tokens(change: Callable[..., Tensor], *calls: Call) -> dict[str, Any]:
    """What ``change`` makes of the tokens and gates of calls."""
    given = ({"q": call.q, "k": call.k, "v": call.v, "gates": call.gates} for call in calls)
    made: dict[str, Any] = pytree.tree_map(lambda *x: None if x[0] is None else change(*x), *given)
    return made
