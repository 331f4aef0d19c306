"""What ``kernel_numerics.py`` looks at: memories, shapes, gates at their ends, states that come in.

Heads and channels are constants of the kernels, so memories are compared with 16, 4 and 2 heads, a number a dtype: that takes
no more compilations. What lasts one chunk, or goes on from a state, shares its kernels with a longer call of the same memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from miras import Spec, algorithm, bias, memory, presets, retention
from miras.kernels import biases, linear_op
from miras.kernels.deep_op import PROVEN
from miras.types import Rule

HEADS = {torch.bfloat16: 16, torch.float16: 4, torch.float32: 2}
# a length that is no multiple of anything, and one of many chunks
RAGGED, LONG = 211, 1000
PACKED = {"T": 300, "bounds": [0, 1, 65, 129, 300]}
TINY, TINY_HEADS, FEW = 16, 2, 5
# of gates, how they are drawn; together over one chunk, where no dynamics magnify anything
ENDS: dict[str, dict[str, Any]] = {
    "alpha 1e-6 to 1e-2": {"decay": 9.2},
    "alpha 0.01": {"decay": 4.6},
    "alpha 1": {"decay": 0.0},
    "eta 0": {"step": 0.0},
}
MOST = {name: ends for name, ends in ENDS.items() if name != "alpha 0.01"}
THRESHOLDS: dict[str, dict[str, Any]] = {"delta 0": {"delta": 0.0}, "delta inf": {"delta": math.inf}}
SPEEDS: dict[str, dict[str, Any]] = {"mu 0": {"mu": (0.0, 0.0)}, "mu 0.999": {"mu": (0.999, 0.999)}}
# logits as far apart as others' give a whole matrix some weights of 1000, whose products leave float16's range
NARROW: dict[str, dict[str, Any]] = {"kl matrix": {"spread": 0.5}}

Check = Literal["compared", "finite", "same bits twice"]


class Case(NamedTuple):
    """A call, and what is asked of it; ``draws`` is how its numbers are drawn."""

    name: str
    spec: Spec
    dtype: torch.dtype
    D: int
    size: int
    T: int = RAGGED
    heads: int = 2
    bounds: list[int] | None = None
    lean: bool = False
    carried: bool = False
    check: Check = "compared"
    draws: dict[str, Any] = {}  # noqa: RUF012

    @property
    def label(self) -> str:
        """The case in words."""
        own = f"{self.name} {str(self.dtype)[6:]} D={self.D} C={self.size} H={self.heads}"
        return own if self.check == "compared" else f"{own} {self.check}"

    @property
    def tiny(self) -> Case:
        """The case as Triton's interpreter has patience for it: as many chunks and as much of the last one, of 16 tokens; few.

        It multiplies no bfloat16, which has few digits, as float16, and the range of float32.
        """
        scaled = lambda tokens: -(-tokens * TINY // self.size)  # noqa: E731
        bounds = None if self.bounds is None else [scaled(bound) for bound in self.bounds]
        stand_in = torch.float32 if self.check == "finite" else torch.float16
        dtype = stand_in if self.dtype == torch.bfloat16 else self.dtype
        T = min(scaled(self.T), FEW * TINY) if bounds is None else bounds[-1]
        return self._replace(dtype=dtype, D=TINY, size=TINY, T=T, heads=min(self.heads, TINY_HEADS), bounds=bounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLogCosh(bias.Bias):
    """A coordinate-wise bias of a user's own, log cosh of the error: what docs/kernels.md shows."""

    def loss(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return torch.cosh(prediction - value).log().sum(-1)

    def gradient(self, prediction: Tensor, value: Tensor, delta: Tensor | None) -> Tensor:
        return torch.tanh(prediction - value)

    def rule(self) -> Rule:
        return Rule("tanh(e_t)", r"\tanh(e_t)")


@triton.jit
def log_cosh(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """tanh e."""
    return 2 * tl.sigmoid(2 * error) - 1


@triton.jit
def log_cosh_slope(error, delta, p: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """1 - tanh^2 e."""
    tanh = 2 * tl.sigmoid(2 * error) - 1
    return 1 - tanh * tanh


biases.register(OwnLogCosh(), log_cosh, log_cosh_slope)


def squared(anchor: bool = False) -> Spec:
    """Titans' memory without momentum: no kink anywhere."""
    kept = retention.L2(at="previous", anchor=anchor)
    return Spec(memory=memory.MLP(), bias=bias.L2(), retention=kept, algorithm=algorithm.GradientDescent())


def with_bias(own: bias.Bias, spec: Spec) -> Spec:
    """A spec with another bias."""
    return dataclasses.replace(spec, bias=own, name="")


NAMED = {
    "yaad": presets.yaad(),
    "yaad anchored": presets.yaad(anchor=True),
    "l_p": with_bias(bias.Lp(p=3), squared()),
    "log cosh, a bias of one's own": with_bias(OwnLogCosh(), squared()),
    "ttt_mlp": presets.ttt_mlp(),
    "titans_lmm": presets.titans_lmm(),
    "titans_lmm anchored": presets.titans_lmm(anchor=True),
    "moneta": presets.moneta(),
    "moneta anchored": presets.moneta(anchor=True),
    "memora": presets.memora(),
    "memora anchored": presets.memora(anchor=True),
}
MOVED = {name: spec for name, spec in NAMED.items() if name.split()[0] in ("titans_lmm", "moneta", "memora")}
# the ends that are looked at beside ``squared``'s, which has all of decay and step
ENDED = {
    "yaad": THRESHOLDS,
    "yaad anchored": MOST | THRESHOLDS,
    "titans_lmm": MOST | SPEEDS,
    "moneta": MOST,
    # a first token that lets go of all leaves uniform weights, of which LayerNorm magnifies the rounding
    "memora": {f"{name}, but for the first": draws | {"late": True} for name, draws in MOST.items() if draws.get("decay")}
    | {name: draws for name, draws in MOST.items() if not draws.get("decay")},
}


def cases() -> list[Case]:
    """All of them; first those that compile kernels, so that no two processes compile the same."""
    found = [*shapes(), *families(), *ends(), *own_step_cases(), *linear_cases()]
    return sorted(found, key=lambda own: own.carried or own.check != "compared" or own.T < RAGGED)


def shapes() -> Iterable[Case]:
    """Every dtype, width and chunk size, plain and anchored; what else memories have, at the shapes that differ most."""
    for dtype, (sizes, widths) in PROVEN.items():
        for D, size, anchor in itertools.product(widths[::-1], sizes[::-1], (True, False)):
            yield Case("anchored" if anchor else "plain", squared(anchor), dtype, D, size)
    for D, size in ((128, 64), (96, 64), (48, 64), (64, 32), (64, 16)):
        for name, spec in MOVED.items():
            if D <= 64 or name != "titans_lmm anchored":
                yield Case(name, spec, torch.bfloat16, D, size)


def families() -> Iterable[Case]:
    """Every memory: from its initial weights, going on from a state, twice, with its gates at their ends over many chunks."""
    for name, spec in NAMED.items():
        yield Case(f"lean gates {name}", spec, torch.bfloat16, 64, 64, lean=True)
    for dtype, (sizes, _) in PROVEN.items():
        size, heads = sizes[-1], HEADS[dtype]
        for name, spec in NAMED.items():
            own = Case(name, spec, dtype, 64, size, heads=heads)
            yield own
            yield own._replace(name=f"{name}, from a state", carried=True)
        yield Case("scalar gates", NAMED["yaad"], dtype, 64, size, draws={"channelwise": False})
        for anchor in (False, True):
            yield Case("packed anchored" if anchor else "packed", squared(anchor), dtype, 64, size, **PACKED)
    size, heads = 64, HEADS[torch.bfloat16]
    for name, spec in NAMED.items():
        own = Case(name, spec, torch.bfloat16, 64, size, T=LONG, heads=heads)
        yield own._replace(check="same bits twice")
        for end, draws in (MOST | ENDED.get(name, {})).items():
            yield own._replace(name=f"{name}, {end}", check="finite", draws=draws)


def ends() -> Iterable[Case]:
    """Gates at their ends, over one chunk: a whole one, and ones that are not full."""
    for dtype, (sizes, _) in PROVEN.items():
        size, heads = sizes[-1], HEADS[dtype]
        for (end, draws), T in itertools.product(ENDS.items(), (size, size * 3 // 4, size * 5 // 8)):
            yield Case(f"{T} tokens of a chunk, {end}", squared(), dtype, 64, size, T=T, draws=draws)
        for name, own in ENDED.items():
            spec = NAMED[name]
            for end, draws in own.items():
                # a full chunk's link magnifies the little that strong decays leave
                linked = isinstance(spec.retention, retention.Lq) and draws.get("decay", 0.0) > 1
                # at its anchor a memory has nothing to let go of, and the decay no gradient
                keywords = {"heads": heads, "carried": spec.retention.anchored, "draws": draws}
                yield Case(f"{name}, a chunk, {end}", spec, dtype, 64, size, T=size * 5 // 8 if linked else size, **keywords)


def own_step_cases() -> Iterable[Case]:
    """Retentions whose step between chunks is PyTorch's: every dtype, the shapes that differ most, scalar gates, packed."""
    kept = {
        "elastic net": retention.ElasticNet(a=20.0),
        "elastic net ftrl": retention.ElasticNetFTRL(a=20.0),
        "sigmoid": retention.Bregman(link="sigmoid"),
        "ball": retention.L2Ball(radius=100.0),
    }
    named = {name: dataclasses.replace(squared(), retention=own) for name, own in kept.items()}
    named |= {"l_q exact": presets.moneta(link="exact"), "l_q exact anchored": presets.moneta(link="exact", anchor=True)}
    named |= {"kl row": presets.memora(slice="row"), "kl matrix": presets.memora(slice="matrix")}
    for (name, spec), (dtype, (sizes, widths)) in itertools.product(named.items(), PROVEN.items()):
        for D, size in sorted({(64, sizes[-1]), (widths[0], sizes[0]), (widths[-1], sizes[-1])}):
            yield Case(f"own step {name}", spec, dtype, D, size, heads=HEADS[dtype], draws=NARROW.get(name, {}))
    for name, spec in named.items():
        own = Case(f"own step {name}", spec, torch.bfloat16, 64, 64, heads=HEADS[torch.bfloat16], draws=NARROW.get(name, {}))
        yield own._replace(name=f"own step {name}, from a state", carried=True)
        yield own._replace(check="same bits twice")
    own = Case("own step, scalar gates", named["elastic net"], torch.bfloat16, 64, 64)
    yield own._replace(draws={"channelwise": False})
    yield own._replace(name="own step, packed", **PACKED)


def linear_cases() -> Iterable[Case]:
    """The 1-layer memory: every dtype, width and chunk size it claims, kept, decayed and anchored; then what the others had."""
    single = memory.MLP(depth=1)
    decayed, anchored = (dataclasses.replace(squared(anchor), memory=single) for anchor in (False, True))
    named = {"ttt_linear": presets.ttt_linear(), "ttt_linear decayed": decayed, "ttt_linear anchored": anchored}
    huber = with_bias(presets.yaad().bias, decayed)
    others = {
        "ttt_linear huber": huber,
        "ttt_linear l_p": with_bias(bias.Lp(p=3), decayed),
        "ttt_linear log cosh, a bias of one's own": with_bias(OwnLogCosh(), decayed),
        "ttt_linear huber anchored": with_bias(presets.yaad().bias, anchored),
    }
    for dtype, (sizes, widths) in linear_op.PROVEN.items():
        for D, size in itertools.product(widths, sizes):
            for name, spec in named.items():
                yield Case(name, spec, dtype, D, size)
        size, heads = sizes[-1], HEADS[dtype]
        for name, spec in others.items():
            yield Case(name, spec, dtype, 64, size, heads=heads)
        for name, spec in named.items():
            yield Case(f"{name}, scalar gates", spec, dtype, 64, size, draws={"channelwise": False})
            yield Case(f"{name}, packed", spec, dtype, 64, size, **PACKED)
            yield Case(f"{name}, from a state", spec, dtype, 64, size, carried=True)
        for (end, draws), T in itertools.product(ENDS.items(), (size, size * 5 // 8)):
            yield Case(f"ttt_linear decayed, {T} tokens of a chunk, {end}", decayed, dtype, 64, size, T=T, draws=draws)
        for end, draws in MOST.items():
            yield Case(f"ttt_linear anchored, a chunk, {end}", anchored, dtype, 64, size, T=size, carried=True, draws=draws)
        for end, draws in THRESHOLDS.items():
            yield Case(f"ttt_linear huber, a chunk, {end}", huber, dtype, 64, size, T=size, heads=heads, draws=draws)
    for name, spec in named.items():
        yield Case(name, spec, torch.bfloat16, 64, 64, T=LONG, check="same bits twice")
