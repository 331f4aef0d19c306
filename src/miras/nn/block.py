"""The block and the stack: Llama's macro architecture with a memory where attention stands.

B batch, T time, C channels, I inner channels
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from ..spec import Spec
from ..types import require, require_count
from .attention import SlidingWindowAttention, WindowState
from .functional import worth_fusing
from .joined import apart, together
from .layer import MirasLayer, MirasState
from .norm import ResidualNorm, RMSNorm
from .recipes import Recipe

BlockState = MirasState | WindowState


class SwiGLU(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, inner, bias=False)
        self.up_proj = nn.Linear(dim, inner, bias=False)
        self.down_proj = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(self._inner(x))
        return y

    def _inner(self, x: Tensor) -> Tensor:
        """silu(gate x) * up x, ``[B,T,I]``."""
        projections = [self.gate_proj, self.up_proj]
        if worth_fusing(x):
            from ..kernels import swiglu

            both = together(x, projections)
            if swiglu.takes(both):
                return swiglu.swiglu(both)
            gate, up = both.chunk(2, -1)
        else:
            gate, up = apart(x, projections)
        return F.silu(gate) * up


class Block(nn.Module):
    """x + mixer(norm x), then x + mlp(norm x); the mixer is a :class:`MirasLayer` or a :class:`SlidingWindowAttention`."""

    def __init__(self, mixer: MirasLayer | SlidingWindowAttention, inner: int, *, norm_eps: float = 1e-6) -> None:
        super().__init__()
        require_count(inner=inner)
        self.mixer_norm = ResidualNorm(mixer.dim, eps=norm_eps)
        self.mixer = mixer
        self.mlp_norm = ResidualNorm(mixer.dim, eps=norm_eps)
        self.mlp = SwiGLU(mixer.dim, inner)

    def forward(
        self, x: Tensor, state: BlockState | None = None, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, BlockState]:
        """``[B,T,C] -> [B,T,C]`` and the mixer's state; arguments as in :meth:`MirasLayer.forward`."""
        x, normed = self.mixer_norm(x)
        y, end = self.mixer(normed, state, mask=mask, cu_seqlens=cu_seqlens)
        x, normed = self.mlp_norm(x, y)
        return x + self.mlp(normed), end


class Stack(nn.Module):
    """Blocks one above the other and a last norm: ``[B,T,C] -> [B,T,C]``.

    ``window`` makes it a hybrid: every second block is sliding-window attention over that many tokens (Samba's order).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        spec: Spec | str = "yaad",
        *,
        depth: int,
        inner: int | None = None,
        window: int | None = None,
        recipe: Recipe | None = None,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        require(depth >= 1, f"depth must be 1 or more, got {depth}")

        def mixer(number: int) -> MirasLayer | SlidingWindowAttention:
            if window is not None and number % 2:
                return SlidingWindowAttention(dim, heads, window=window)
            return MirasLayer(dim, heads, spec, recipe=recipe, chunk_size=chunk_size)

        self.blocks = nn.ModuleList(Block(mixer(number), inner or 8 * dim // 3) for number in range(depth))
        self.norm = RMSNorm(dim, eps=1e-6)

    def forward(
        self,
        x: Tensor,
        states: Sequence[BlockState] | None = None,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, tuple[BlockState, ...]]:
        """The blocks in turn; states are one a block."""
        require(states is None or len(states) == len(self.blocks), f"states must be {len(self.blocks)}, one a block")
        ends = []
        for number, block in enumerate(self.blocks):
            x, end = block(x, None if states is None else states[number], mask, cu_seqlens)
            ends.append(end)
        return self.norm(x), tuple(ends)
