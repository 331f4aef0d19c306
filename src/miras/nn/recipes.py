"""What surrounds each memory: its projections, convolution, treatment of q and k, gates and output, as one table.

Published models get what their own papers give them; docs/layer.md lists what is left out. A spec without a name in the table
is surrounded by what its parts ask for.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from ..algorithm import Momentum, NonParametric
from ..bias import DotProduct, Lp
from ..forms.chunk import family, no_chunks
from ..memory import Vector
from ..spec import Spec
from ..types import Gate as GateNeed
from ..types import require, require_kinds
from .gates import GateRecipe
from .initial import learns_start

Treatment = Literal["unit length", "positive", "plain"]
OutputGate = Literal["silu", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a layer is built around its memory.

    Attributes:
        gates: how each gate is made.
        convolution: taps of the causal convolution on q, k and v, or None.
        shift: whether projections see a mixture of each token and the one before it (RWKV).
        silu: whether q, k and v pass through SiLU.
        treatment: of q and k: scaled to unit length, through elu + 1, or left as they are.
        scaled: whether q is divided by sqrt(K).
        rope: the base of rotary positions on q and k, or None.
        value_norm: whether each head's value is scaled to unit RMS.
        step_sum: what the steps of keys alike, among as many tokens as a chunk has, add up to at most (``nn.shared_steps``):
            one whole step for a deep memory, less of it for a bias whose gradient is larger than that of l2; None: each keeps
            its own. See ``bounded``.
        start: standard deviation of a memory's learned initial weights (of their logits' spread, on a simplex).
        output_norm: whether each head's output is RMS-normalised.
        output_gate: the function of the gate on the output, or None. A SiLU starts near zero with either sign, which holds
            up the learning of recall (docs/training_deep_memories.md); it is there where a paper has it.
        time_step: whether v is multiplied by the step that its decay was made of (Mamba).
        skip: whether v is added to the output, times a learned number a head (Mamba).
        bonus: whether a token's own pair is read once more, at a learned weight a channel (RWKV).
    """

    gates: tuple[GateRecipe, ...] = ()
    convolution: int | None = 4
    shift: bool = False
    silu: bool = True
    treatment: Treatment = "unit length"
    scaled: bool = False
    rope: float | None = None
    value_norm: bool = False
    step_sum: float | None = None
    start: float = 1.0
    output_norm: bool = True
    output_gate: OutputGate | None = "sigmoid"
    time_step: bool = False
    skip: bool = False
    bonus: bool = False

    def __post_init__(self) -> None:
        require_kinds(self)
        width = self.convolution
        require(width is None or width >= 2, f"Recipe's convolution has 2 taps or more, or is None, got {width}")
        known = get_args(Treatment)
        require(self.treatment in known, f"Recipe's treatment is one of {known}, got {self.treatment!r}")
        gates = (None, *get_args(OutputGate))
        require(self.output_gate in gates, f"Recipe's output_gate is one of {gates}, got {self.output_gate!r}")
        most, shares = self.step_sum, self.gate("eta") is not None and self.treatment == "unit length"
        require(most is None or most > 0, f"Recipe's step_sum is a number > 0 or None, got {most}")
        require(most is None or shares, "Recipe's step_sum is that of a gate eta, along keys of unit length")
        require(self.start > 0, f"Recipe's start must be > 0, got {self.start}")
        require(self.rope is None or self.rope > 1, f"Recipe's rope is a base > 1 or None, got {self.rope}")
        require(not (self.shift and self.convolution), "Recipe's shift and convolution are alternatives: give one of them")

    def gate(self, name: str) -> GateRecipe | None:
        """The recipe of a gate, or None."""
        return next((gate for gate in self.gates if gate.name == name), None)


RANK = 32
STEP = GateRecipe(name="eta", link="sigmoid", channelwise=True, rank=RANK, start=0.1)
# what a step along a gradient p |e|^(p-1) starts with, times p: 0.03 for Moneta's p = 3
STEEP_START = 0.09
DECAY = GateRecipe(name="log_alpha", link="decay", channelwise=True, rank=RANK, start=1e-3)
# weights that shrink take ever larger relative steps: at 1e-3 the gradients of a deep memory explode within 4096 tokens of text
DEEP_DECAY = dataclasses.replace(DECAY, start=1e-4)
THRESHOLD = GateRecipe(name="delta", link="softplus", channelwise=True, rank=RANK, start=4.0)
MOMENTUM = GateRecipe(name="mu", link="sigmoid", start=0.5)
RATE = GateRecipe(name="eta", link="sigmoid")
TIME_STEP = GateRecipe(name="log_alpha", link="decay", start=(1e-3, 1e-1), rate=True)
RIDGE = GateRecipe(name="ridge", link="ridge", start=1.0, limit=0.25)


def one_a_head(gate: GateRecipe) -> GateRecipe:
    """The gate with one value a head."""
    return dataclasses.replace(gate, channelwise=False, rank=None)


# with the convolution and gate of its paper's Mamba backbone; its rotary positions turn within a mini-batch alone, and over a
# whole sequence they are in the way
TTT = Recipe(gates=(one_a_head(STEP),), silu=False, output_gate="silu")

RECIPES: dict[str, Recipe] = {
    "retnet": Recipe(convolution=None, silu=False, treatment="plain", scaled=True, rope=1e4, output_gate="silu"),
    "transformer": Recipe(convolution=None, silu=False, treatment="plain", rope=1e4, output_norm=False, output_gate=None),
    "linear_attention": Recipe(convolution=None, silu=False, treatment="positive", scaled=True, output_gate=None),
    "dfw": Recipe(
        gates=(
            GateRecipe(name="log_alpha", link="soft_decay", channelwise=True, rank=RANK, start=0.03),
            GateRecipe(name="log_beta", link="soft_decay", channelwise=True, rank=RANK, start=0.03),
        ),
        convolution=None,
        silu=False,
        treatment="positive",
        scaled=True,
        output_gate=None,
    ),
    "lightning_attention": Recipe(gates=(GateRecipe(name="log_alpha", link="slopes"),), convolution=None, treatment="plain"),
    "gla": Recipe(
        gates=(GateRecipe(name="log_alpha", link="soft_decay", channelwise=True, rank=16, start=math.log(2) / 16, limit=16.0),),
        convolution=None,
        silu=False,
        treatment="plain",
        scaled=True,
        output_gate="silu",
    ),
    "mamba2": Recipe(gates=(TIME_STEP,), treatment="plain", time_step=True, skip=True, output_gate="silu"),
    "hgrn2": Recipe(
        gates=(GateRecipe(name="log_alpha", link="soft_decay", channelwise=True, start=0.1),),
        convolution=None,
        treatment="plain",
        scaled=True,
        output_gate=None,
    ),
    "deltanet": Recipe(gates=(RATE,), scaled=True, output_gate=None),
    "longhorn": Recipe(gates=(dataclasses.replace(RATE, channelwise=True, rank=RANK),), scaled=True, output_gate="silu"),
    "ttt_linear": TTT,
    "gated_deltanet": Recipe(gates=(RATE, TIME_STEP), scaled=True, output_gate="silu"),
    "rwkv7": Recipe(
        gates=(
            dataclasses.replace(RATE, channelwise=True, rank=RANK),
            GateRecipe(name="log_alpha", link="bounded_decay", channelwise=True, rank=RANK, start=0.05, limit=math.exp(-0.5)),
        ),
        convolution=None,
        shift=True,
        silu=False,
        treatment="plain",
        bonus=True,
    ),
    "delta_product": Recipe(
        gates=(dataclasses.replace(RATE, start=1.0, limit=2.0), TIME_STEP), scaled=True, output_gate="silu"
    ),
    "mesa": Recipe(gates=(RATE, RIDGE, one_a_head(DECAY)), output_gate=None),
    "ttt_mlp": TTT,
    "titans_lmm": Recipe(gates=(STEP, MOMENTUM, one_a_head(DEEP_DECAY)), step_sum=1.0),
    # the gradient 3 e^2 of its l3 bias is about three times that of l2, so its step starts at a third; a whole one is a third
    "moneta": Recipe(gates=(dataclasses.replace(STEP, start=STEEP_START / 3), DEEP_DECAY), step_sum=1 / 3),
    "yaad": Recipe(gates=(STEP, DEEP_DECAY, THRESHOLD), step_sum=1.0),
    "memora": Recipe(gates=(STEP, DEEP_DECAY), step_sum=1.0),
    # TTT-Linear's surroundings, with steps and decays of every channel
    "hafiza": Recipe(gates=(STEP, DECAY), silu=False, output_gate="silu", step_sum=1.0),
}

DEFAULTS = {gate.name: gate for gate in (STEP, DECAY, dataclasses.replace(DECAY, name="log_beta"), THRESHOLD, MOMENTUM, RIDGE)}


def recipe_of(spec: Spec) -> Recipe:
    """The recipe of a preset's name with the gates that the spec itself asks for; made of its parts where it has none."""
    base = RECIPES.get(spec.name)
    if base is None:
        base = RECIPES["transformer"] if isinstance(spec.algorithm, NonParametric) else Recipe()
    needs = [need for need in spec.gates if need.name != "kappa" and (need.required or base.gate(need.name))]
    gates = tuple(_fitting(base.gate(need.name) or _default(spec, need), need) for need in needs)
    recipe = dataclasses.replace(base, gates=tuple(_tame(spec, gate) for gate in gates))
    shares = _descends(spec, recipe) if spec.name not in RECIPES else recipe.step_sum is not None
    return dataclasses.replace(recipe, step_sum=1.0 / _steepness(spec) if shares else None)


def bounded(recipe: Recipe) -> Recipe:
    """The recipe whose steps are no longer than ``step_sum``: longer ones would be cut to it, and their gate learn nothing."""
    most = recipe.step_sum
    if most is None:
        return recipe
    limited = (dataclasses.replace(g, limit=min(g.limit, most)) if g.name == "eta" else g for g in recipe.gates)
    return dataclasses.replace(recipe, gates=tuple(limited))


def _descends(spec: Spec, recipe: Recipe) -> bool:
    """Whether a memory takes steps towards a value, all of a chunk from its start: a matrix with exact chunks does not."""
    if recipe.gate("eta") is None or isinstance(spec.bias, DotProduct) or spec.tied:
        return False
    if not spec.memory.linear:
        return True
    return _like_a_matrix(spec) and no_chunks(spec) is None and family(spec) == "scan"


def _like_a_matrix(spec: Spec) -> bool:
    """Whether a memory is linear and mixes channels, as a matrix and most linear ones of a user's own do."""
    return spec.memory.linear and not isinstance(spec.memory, Vector)


def _steepness(spec: Spec) -> float:
    """The gradient of a bias where errors are 1: p for l_p, whose gradient is p |e|^(p-1), and about 1 for the others."""
    return spec.bias.p if isinstance(spec.bias, Lp) else 1.0


def _tame(spec: Spec, gate: GateRecipe) -> GateRecipe:
    """A gate that starts as its memory bears it.

    Steps along a steeper gradient start shorter. A deep memory that is drawn back to its first weights does not shrink, and may
    forget from the start.
    """
    if gate.name == "eta" and isinstance(spec.bias, Lp) and not isinstance(gate.start, tuple):
        whole = gate.start if spec.memory.linear else STEEP_START
        return dataclasses.replace(gate, start=whole / _steepness(spec))
    return dataclasses.replace(gate, start=DECAY.start) if gate.start == DEEP_DECAY.start and spec.retention.anchored else gate


def _default(spec: Spec, need: GateNeed) -> GateRecipe:
    """What a gate is made of when no paper says so: relative steps for weights that are learned, rates up to 1 from zero."""
    if need.name == "eta" and _like_a_matrix(spec) and not learns_start(spec):
        return RATE
    gate = DEEP_DECAY if need.name == "log_alpha" and not spec.memory.linear else DEFAULTS[need.name]  # type: ignore[index]
    # beside a momentum a channel-wise decay is a matrix of pairs a channel: many times the work, and no kernel takes it
    alone = isinstance(spec.algorithm, Momentum) and gate.name in ("log_alpha", "log_beta")
    return one_a_head(gate) if alone else gate


def _fitting(gate: GateRecipe, need: GateNeed) -> GateRecipe:
    """The gate in a width that the memory takes."""
    if need.width == "scalar":
        return one_a_head(gate)
    return dataclasses.replace(gate, channelwise=True) if need.width == "keys only" else gate
