"""The layer: projections, convolution, gates and output around a memory, ``[B,T,C] -> [B,T,C]``.

B batch, T time, C channels of the input, H heads, K key channels, V value channels of a head, R sequences, N tokens, P pairs
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import checks, presets
from ..algorithm import Descent
from ..forms.chunk import no_chunks
from ..memorize import Backend, Form, memorize
from ..memory import MLP
from ..spec import Spec
from ..types import AnyState, Gates, require, require_count
from .convolution import ShortConvolution, TokenShift
from .extras import Extras
from .functional import turned, turns
from .gates import Gate, gate_of
from .heads import each_treated, fuses, heads_of, parts_of
from .initial import InitialMemory
from .joined import alike, apart, bare, many, product, together, untouched
from .norm import RMSNorm, gated
from .packing import Packing, Places
from .recipes import Recipe, bounded, recipe_of
from .shared_steps import Recent, Sum, share


class MirasState(NamedTuple):
    """What a layer carries from one call to the next, a row for each sequence.

    ``window`` ``[B,W-1,...]`` is what the convolution still sees, ``memory`` the memory's own state, ``seen`` ``[B]`` the
    number of tokens read, ``recent`` the pairs that coming ones may share their steps with, or None.
    """

    window: Tensor
    memory: AnyState
    seen: Tensor
    recent: Recent | None = None


torch.serialization.add_safe_globals([MirasState])


class Prepared(NamedTuple):
    """What a layer hands to its memory, and keeps for after it.

    q ``[B,T,H,K]``, k ``[B,T P,H,K]`` (None where it is tied to the decay) and v ``[B,T P,H,V]``; the gates; the output gate's
    projection ``[B,T,H V]``, or None; the window, the number of tokens seen and the recent pairs, to go on with.
    """

    q: Tensor
    k: Tensor | None
    v: Tensor
    gates: Gates
    output: Tensor | None
    window: Tensor
    seen: Tensor
    recent: Recent | None = None


class Streams(NamedTuple):
    """The layer's input as each projection sees it: the same for all, unless it is shifted."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor
    output: Tensor


class MirasLayer(nn.Module):
    """A memory with all that it needs to stand where attention stands.

    >>> import torch
    >>> from miras.nn import MirasLayer
    >>> layer = MirasLayer(dim=32, heads=2, spec="yaad")
    >>> x = torch.randn(1, 10, 32)
    >>> y, state = layer(x[:, :7])
    >>> rest, state = layer(x[:, 7:], state)
    >>> torch.allclose(torch.cat([y, rest], 1), layer(x)[0], atol=1e-5)
    True
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        spec: Spec | str = "yaad",
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        recipe: Recipe | None = None,
        chunk_size: int | None = None,
        norm_eps: float = 1e-6,
        backend: Backend = "auto",
        recompute: int | None = None,
    ) -> None:
        """Build the layer.

        Args:
            dim: channels of input and output.
            heads: number of memories side by side.
            spec: a preset's name, or the four choices.
            head_dim, value_dim: key and value channels of a head; ``dim / heads`` and ``head_dim`` when not given.
            recipe: what surrounds the memory; ``bounded(recipe_of(spec))`` when not given.
            chunk_size: tokens of a chunk; the spec's own when not given.
            norm_eps: of the output's RMSNorm.
            backend, recompute: as in :func:`miras.memorize`.
        """
        super().__init__()
        self.spec = presets.get(spec) if isinstance(spec, str) else spec
        checks.spec_of(self.spec)
        self.recipe = bounded(recipe_of(self.spec)) if recipe is None else recipe
        require(isinstance(self.recipe, Recipe), f"recipe must be a miras.nn.Recipe, got {recipe!r}")
        require(norm_eps > 0, f"norm_eps must be > 0, got {norm_eps}")
        require(dim >= 1 and heads >= 1, f"dim and heads must be >= 1, got dim={dim} and heads={heads}")
        require_count(head_dim=head_dim, value_dim=value_dim, chunk_size=chunk_size)
        require(head_dim is not None or dim % heads == 0, f"dim={dim} is not a multiple of heads={heads}: give head_dim")
        self.dim, self.heads, self.keys = dim, heads, head_dim or dim // heads
        self.values = value_dim or self.keys
        self._check_widths()
        # parts of a user's own that have no chunk form run token by token, as miras.explain says
        self.form: Form = "chunk" if no_chunks(self.spec) is None else "recurrent"
        self.chunk_size, self.backend = None if self.form == "recurrent" else chunk_size, backend
        self.recompute = recompute
        checks.how(self.spec, self.form, self.chunk_size, backend, recompute)
        self.pairs = self.spec.algorithm.pairs if isinstance(self.spec.algorithm, Descent) else 1
        tied = self.spec.tied
        require(
            not tied or self.recipe.step_sum is None, f"steps are shared along keys, and {self.spec} has none: step_sum=None"
        )
        self.parts = parts_of(self.recipe, heads, self.keys, self.values, self.pairs, tied)
        self.projected = sum(part.width for part in self.parts)
        self.q_proj = nn.Linear(dim, self.parts[0].width, bias=False)
        self.k_proj = None if tied else nn.Linear(dim, self.parts[1].width, bias=False)
        self.v_proj = nn.Linear(dim, self.parts[-1].width, bias=False)
        self.o_proj = nn.Linear(heads * self.values, dim, bias=False)
        self.g_proj = nn.Linear(dim, heads * self.values, bias=False) if self.recipe.output_gate else None
        self.convolution = ShortConvolution(self.projected, self.recipe.convolution) if self.recipe.convolution else None
        self.shift = TokenShift(dim, len(Streams._fields)) if self.recipe.shift else None
        self.memory = InitialMemory(self.spec, heads, self.keys, self.values, self.recipe.start)
        self.gates = self._gates()
        most = self.recipe.step_sum
        self.sum = None if most is None else Sum(most, self.memory.unit, (chunk_size or self.spec.chunk_size) - 1)
        self.norm = RMSNorm(self.values, eps=norm_eps) if self.recipe.output_norm else None
        self.extras = Extras(self.spec, self.recipe, heads, self.keys)

    def _check_widths(self) -> None:
        rope, keys = self.recipe.rope, self.keys
        require(rope is None or keys % 2 == 0, f"rotary positions turn pairs of channels, got head_dim={keys}")
        square = self.spec.memory.square
        require(
            not square or keys == self.values,
            f"{self.spec.memory.label} memory needs value_dim == head_dim, got {self.values} and {keys}",
        )

    def _gates(self) -> nn.ModuleDict:
        """The gates the spec asks for; a step is relative to the weights it moves."""
        made: dict[str, nn.Module] = {}
        needs = {need.name: need for need in self.spec.gates}
        for recipe in self.recipe.gates:
            require(recipe.name in needs, f"the recipe has a gate {recipe.name}, but {self.spec} takes {sorted(needs)}")
            wide = self.values if needs[recipe.name].width == "value" else self.keys
            unit, pairs = (self.memory.unit, self.pairs) if recipe.name == "eta" else (1.0, 1)
            lean = isinstance(self.spec.memory, MLP)
            made[recipe.name] = gate_of(recipe, self.dim, self.heads, wide, pairs=pairs, unit=unit, lean=lean)
        missing = [name for name, need in needs.items() if need.required and name not in made and name != "kappa"]
        require(not missing, f"{self.spec} needs the gates {missing}, which the recipe does not make")
        stepped = not self.recipe.time_step or "log_alpha" in made
        require(stepped, f"the recipe's time_step is what log_alpha is made of, and {self.spec} has no such gate")
        decay = self.recipe.gate("log_alpha")
        require(
            decay is None or not (self.recipe.time_step and decay.channelwise),
            "the recipe's time_step is one number a head, and its log_alpha one a channel: channelwise=False",
        )
        return nn.ModuleDict(made)

    def forward(
        self, x: Tensor, state: MirasState | None = None, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, MirasState]:
        """Read a stretch of every sequence, from where the state stands.

        Args:
            x: ``[B,T,C]``.
            state: where an earlier call ended; None at the start.
            mask: ``[B,T]``, true where there is a token; the others are left out, wherever they stand, and give zeros.
            cu_seqlens: ``[R+1]``, the bounds of sequences packed in a batch of 1; the state then has R rows.

        Returns:
            y ``[B,T,C]`` and the state after each row's last token.
        """
        require(x.dim() == 3 and x.shape[2] == self.dim, f"x must be [B,T,{self.dim}], got {list(x.shape)}")
        if mask is not None:
            require(cu_seqlens is None, "mask and cu_seqlens were both given: packed sequences have no padding")
            packing = Packing.of(mask)
            y, state = self(packing.pack(x), state, cu_seqlens=packing.cu_seqlens)
            return packing.unpack(y), state
        prepared = self.prepare(x, state, cu_seqlens=cu_seqlens)
        y, memory = self.remember(prepared, state, cu_seqlens=cu_seqlens)
        return self.finish(prepared, y), MirasState(prepared.window, memory, prepared.seen, prepared.recent)

    def prepare(self, x: Tensor, state: MirasState | None = None, *, cu_seqlens: Tensor | None = None) -> Prepared:
        """Everything before the memory: projections, convolution, treatment of q and k, gates."""
        places = None
        if cu_seqlens is not None:
            checks.packing(cu_seqlens, *x.shape[:2])
            places = Places.of(cu_seqlens)
        rows = x.shape[0] if places is None else len(places.lengths)
        window = self._window(x, rows)
        if state is not None:
            require(
                isinstance(state, MirasState), f"state must be what a call of this layer returned, got {type(state).__name__}"
            )
            fits = state.window.shape == window.shape
            require(fits, f"state must have a window {list(window.shape)}, got {list(state.window.shape)}")
            window = state.window
            require(state.seen.shape == (rows,), f"state must have seen tokens of {rows} rows, got {list(state.seen.shape)}")
        seen = torch.zeros(rows, dtype=torch.long, device=x.device) if state is None else state.seen
        streams, q, k, v, window = self._project(x, window, places)
        q, k = self._rotated(q, k, seen, places)
        output, met = self._first_products(streams)
        gates, step = self._gate_values(streams.gates, met)
        k, v, gates = self.extras.pairs(k, v, gates, step)
        gates, recent = self._shared(k, gates, state, places)
        read = x.shape[1] if places is None else places.lengths
        return Prepared(q, k, v, gates, output, window, seen + read, recent)

    def remember(
        self, prepared: Prepared, state: MirasState | None = None, *, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, AnyState]:
        """The memory alone: what it reads, ``[B,T,H,V]``, and its state."""
        return memorize(
            self.spec,
            prepared.q,
            prepared.k,
            prepared.v,
            prepared.gates,
            weights=self.memory.start() if state is None else None,
            norm=self.memory.norm(),
            state=None if state is None else state.memory,
            cu_seqlens=cu_seqlens,
            form=self.form,
            chunk_size=self.chunk_size,
            backend=self.backend,
            recompute=self.recompute,
            check_gates=False,
        )

    def finish(self, prepared: Prepared, y: Tensor) -> Tensor:
        """Everything after the memory: norm, gate, projection; ``[B,T,H,V] -> [B,T,C]``."""
        y = self.extras.output(y, prepared.q, prepared.k, prepared.v)
        out: Tensor = self.o_proj(gated(y, self.norm, prepared.output, self.recipe.output_gate))
        return out

    def _window(self, x: Tensor, rows: int) -> Tensor:
        """Nothing seen yet, ``[R,W-1,...]``."""
        if self.shift is not None:
            return x.new_zeros(rows, 1, self.dim)
        return x.new_zeros(rows, 0 if self.convolution is None else self.convolution.width - 1, self.projected)

    def _project(
        self, x: Tensor, window: Tensor, places: Places | None
    ) -> tuple[Streams, Tensor, Tensor | None, Tensor, Tensor]:
        """q ``[B,T,H,K]``, k ``[B,T P,H,K]`` and v ``[B,T P,H,V]``, and the window to go on with."""
        streams = Streams(*[x] * len(Streams._fields))
        if self.shift is not None:
            shifted, window = self.shift(x, window, places)
            streams = Streams(*shifted)
        made = ((self.q_proj, streams.q), (self.k_proj, streams.k), (self.v_proj, streams.v))
        each = [(proj, stream) for proj, stream in made if proj is not None]
        projections = [proj for proj, _ in each]
        if self.convolution is not None:
            joined, window = self.convolution(together(x, projections), window, places, silu=self.recipe.silu)
            q, *k, v = heads_of(joined, self.parts)
        elif self.shift is None and fuses(x, self.parts):
            joined = together(x, projections)
            q, *k, v = heads_of(F.silu(joined) if self.recipe.silu else joined, self.parts)
        else:
            alone = apart(x, projections) if self.shift is None else [proj(stream) for proj, stream in each]
            q, *k, v = each_treated(alone, self.parts, self.recipe.silu)
        shape = (x.shape[0], x.shape[1] * self.pairs, self.heads)
        return streams, q, k[0].reshape(*shape, self.keys) if k else None, v.reshape(*shape, self.values), window

    def _rotated(self, q: Tensor, k: Tensor | None, seen: Tensor, places: Places | None) -> tuple[Tensor, Tensor | None]:
        """q and k with their positions, where a recipe has any."""
        if self.recipe.rope is None:
            return q, k
        if places is None:
            positions = seen[:, None] + torch.arange(q.shape[1], device=q.device)
        else:
            positions = (seen[places.row] + places.position)[None]
        angles = turns(positions, self.keys, self.recipe.rope, q.dtype)
        each = [angle.repeat_interleave(self.pairs, 1) for angle in angles] if self.pairs > 1 else angles
        return turned(q, *angles), None if k is None else turned(k, *each)

    def _first_products(self, streams: Streams) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The output gate's projection, and what each gate's first matrix gives where all of them are one product."""
        if self.shift is None and many(streams.gates):
            gates = {name: gate for name, gate in self.gates.items() if isinstance(gate, Gate)}
            output = [] if self.g_proj is None else [self.g_proj]
            plain = all(map(bare, output)) and all(untouched(gate, Gate) for gate in gates.values())
            weights = [*(each.weight for each in output), *(gate.first for gate in gates.values())] if plain else []
            if alike(weights):
                made = product(streams.gates, weights)
                return made[0] if output else None, dict(zip(gates, made[len(output) :], strict=True))
        return self.g_proj(streams.output) if self.g_proj is not None else None, {}

    def _gate_values(self, x: Tensor, met: dict[str, Tensor]) -> tuple[Gates, Tensor | None]:
        """The gates, and for Mamba the time step that its decay is made of."""
        both = {name: gate(x, met[name]) if name in met else gate(x) for name, gate in self.gates.items()}
        made = {name: one.value for name, one in both.items()}
        step = -both["log_alpha"].unrated if self.recipe.time_step else None
        return Gates(**made), step

    def _shared(
        self, k: Tensor | None, gates: Gates, state: MirasState | None, places: Places | None
    ) -> tuple[Gates, Recent | None]:
        """The steps as the memory takes them: shared among keys alike, where a recipe says so, and before a momentum."""
        eta, mu, recent = gates.eta, gates.mu, None
        if self.sum is not None:
            assert k is not None and eta is not None
            if state is not None:
                recent = state.recent
                fits = recent is not None and recent.keys.shape[1] == self.sum.width
                require(
                    fits,
                    f"state must hold the last {self.sum.width} pairs, as a layer with step_sum and such chunks keeps them",
                )
            eta, recent = share(eta, k, self.sum, recent, places, self.pairs)
        if mu is not None and eta is not None:
            # what a step adds up to over time is then the same whatever the momentum
            eta = eta * (1 - (mu if mu.dim() == eta.dim() else mu[..., None]))
        return gates._replace(eta=eta), recent

    def extra_repr(self) -> str:
        return f"{self.spec}, heads={self.heads}, head_dim={self.keys}"
