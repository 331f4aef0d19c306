"""The four choices together, and which of them fit."""

from __future__ import annotations

import functools
import json
import re
from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import algorithm as algorithms
from . import bias as biases
from . import memory as memories
from . import retention as retentions
from .types import Gate, Gates, Part, Rule, require, require_kinds

ROOMS: dict[str, type[Any]] = {
    "memory": memories.Memory,
    "bias": biases.Bias,
    "retention": retentions.Retention,
    "algorithm": algorithms.Algorithm,
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A sequence model as an associative memory: what stores, what is minimised, what is kept, how it moves.

    A combination without meaning is refused here. ``chunk_size`` is the one its chunk form takes by default; ``name`` does not
    count in comparisons; a layer looks up by it what surrounds the memory.

    >>> from miras import Spec, algorithm, bias, memory, retention
    >>> spec = Spec(memory=memory.Matrix(), bias=bias.L2(), retention=retention.Keep(), algorithm=algorithm.GradientDescent())
    >>> Spec.from_json(spec.to_json()) == spec
    True
    """

    memory: memories.Memory
    bias: biases.Bias
    retention: retentions.Retention
    algorithm: algorithms.Algorithm
    chunk_size: int = 64
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        require_kinds(self, "chunk_size", "name")
        for room, kind in ROOMS.items():
            part = getattr(self, room)
            require(isinstance(part, kind), f"Spec's {room} must be a {kind.__module__}.{kind.__name__}, got {part!r}")
            own = "__dataclass_params__" in vars(type(part))
            require(
                own,
                f"{type(part).__name__} must be a dataclass of its own: write @dataclass(frozen=True, kw_only=True) above it",
            )
            # the fast forms know parts by their class, and would run a subclass as what it was derived from
            final = [base.__name__ for base in type(part).__mro__[1:] if issubclass(base, kind) and ABC not in base.__bases__]
            require(
                not final,
                f"{type(part).__name__} is derived from {', '.join(final)}, but parts are final: derive from {kind.__name__}",
            )
            require_kinds(part)
            for gate in part.gates if room != "memory" else ():
                require(
                    gate.name in Gates._fields,
                    f"{type(part).__name__} reads a gate {gate.name!r}: gates are {', '.join(Gates._fields)}",
                )
        if isinstance(self.algorithm, algorithms.Descent) and self.algorithm.fixed_eta is None:
            steps = any(gate.name == "eta" for gate in self.algorithm.gates)
            require(steps, f"{self.algorithm.label} has no step: its gates must name eta, or its fixed_eta be a number")
        require(self.chunk_size >= 1, f"Spec's chunk_size must be >= 1, got {self.chunk_size}")
        for one, other, reason in refusals(self.memory, self.bias, self.retention, self.algorithm):
            raise ValueError(f"{one.label} ({one.room}) does not go with {other.label} ({other.room}): {reason}")
        # made once: every call reads the gates and messages mention the title, how it is made torch.compile cannot trace
        assert self.title and self.gates is not None

    @functools.cached_property
    def gates(self) -> tuple[Gate, ...]:
        """Every gate the four parts read; Newton's pairs decay by one number a head."""
        kept = self.retention.gates
        if isinstance(self.algorithm, algorithms.Newton):
            kept = tuple(gate._replace(width="scalar") for gate in kept)
        return (*self.algorithm.gates, *kept, *self.bias.gates)

    @property
    def decoupled(self) -> bool:
        """Whether one key is removed and another written."""
        return isinstance(self.algorithm, algorithms.GradientDescent) and self.algorithm.decoupled

    @property
    def tied(self) -> bool:
        """Whether the key is 1 - alpha, so that none is given."""
        return isinstance(self.retention, retentions.L2) and self.retention.tied

    @property
    def zero_start(self) -> bool:
        """Whether the memory can start from zeros when no weights are given."""
        return self.memory.zero_start and self.retention.zero_start

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain JSON values."""
        parts = {room: getattr(self, room).to_dict() for room in ROOMS}
        return {**parts, "chunk_size": self.chunk_size, "name": self.name}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Spec:
        """The spec that ``to_dict`` wrote."""
        require(isinstance(values, dict), f"a Spec is read from a dictionary, got {type(values).__name__}")
        missing = sorted(ROOMS.keys() - values.keys())
        require(not missing, f"a Spec needs {', '.join(missing)} as well")
        extra = sorted(values.keys() - {*ROOMS, "chunk_size", "name"})
        require(not extra, f"a Spec has no {', '.join(extra)}")
        return cls(**{**values, **{room: kind.from_dict(values[room]) for room, kind in ROOMS.items()}})

    def to_json(self) -> str:
        """The spec as a JSON string."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The spec that ``to_json`` wrote."""
        return cls.from_dict(json.loads(text))

    def describe(self) -> Description:
        """The update rule these choices yield, assembled from the parts' own formulas."""
        return Description(title=str(self), lines=tuple(_lines(self)))

    @functools.cached_property
    def title(self) -> str:
        """The name and the parts, on one line."""
        parts = " + ".join(getattr(self, room).label for room in ROOMS)
        return f"{self.name}: {parts}" if self.name else parts

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True, kw_only=True)
class Description:
    """An update rule as verbs and formulas; prints as text followed by LaTeX."""

    title: str
    lines: tuple[tuple[str, Rule], ...]

    @property
    def text(self) -> str:
        """The rule for a terminal."""
        width = max(len(verb) for verb, _ in self.lines)
        return "\n".join([self.title, *(f"  {verb:<{width}}  {rule.text}" for verb, rule in self.lines)])

    @property
    def latex(self) -> str:
        """The rule as a LaTeX ``aligned`` block."""
        rows = " \\\\\n".join(rf"  &\text{{{verb}}} && {rule.latex}" for verb, rule in self.lines)
        return f"\\begin{{aligned}}\n{rows}\n\\end{{aligned}}"

    @property
    def write(self) -> Rule:
        """The write rule alone, as in the paper's table."""
        rules = [rule for verb, rule in self.lines if verb in ("", "learn", "retain")]
        return Rule(", ".join(rule.text for rule in rules), r", \quad ".join(rule.latex for rule in rules))

    def __str__(self) -> str:
        return f"{self.text}\n\n{self.latex}"


def _lines(spec: Spec) -> Iterator[tuple[str, Rule]]:
    yield "memory", spec.memory.rule()
    if isinstance(spec.algorithm, algorithms.Newton | algorithms.NonParametric):
        yield from zip(("retain", "recall"), spec.algorithm.lines(), strict=False)
        if isinstance(spec.algorithm, algorithms.Newton):
            yield "recall", Rule("y_t = W_t q_t", r"\mathbf{y}_t = W_t \mathbf{q}_t")
        return
    assert isinstance(spec.algorithm, algorithms.Descent)
    error, place = spec.bias.rule(), spec.retention.probe_rule
    short = len(error.text) <= len("(-v_t)")
    line, update = spec.algorithm.rule(
        spec.memory.gradient_rule(error if short else Rule("c_t", "c_t")), spec.retention.rate_rule, place
    )
    if not short or "e_t" in update.text + (line.text if line else ""):
        yield (
            "surprise",
            Rule(
                f"e_t = M(W; k_t) - v_t at W = {place.text}",
                rf"e_t = \mathcal{{M}}(W; \mathbf{{k}}_t) - \mathbf{{v}}_t \text{{ at }} W = {place.latex}",
            ),
        )
    if not short:
        yield "", Rule(f"c_t = {error.text}", f"c_t = {error.latex}")
    if spec.tied:
        yield "", Rule("k_t = 1 - alpha_t", r"\mathbf{k}_t = \mathbf{1} - \alpha_t")
    if line is not None:
        yield "learn", line
    yield "retain", _tidy(spec.retention.rule(update))
    yield "recall", Rule("y_t = M(W_t; q_t)", r"\mathbf{y}_t = \mathcal{M}(W_t; \mathbf{q}_t)")


def _tidy(rule: Rule) -> Rule:
    """Subtracting a negative reads as adding."""
    text, latex = (re.sub(r"- \(-([^()]*(?:\([^()]*\))?[^()]*)\)", r"+ \1", side) for side in rule)
    return Rule(text, latex)


def refusals(
    memory: memories.Memory,
    bias: biases.Bias,
    retention: retentions.Retention,
    algorithm: algorithms.Algorithm,
) -> Iterator[tuple[Part, Part, str]]:
    """Every pair of parts that has no meaning together, and why."""
    quadratic = isinstance(retention, retentions.Keep | retentions.L2)
    l2 = retention if isinstance(retention, retentions.L2) else None

    if l2 and not isinstance(memory, memories.Matrix) and (l2.side != "value" or l2.tied):
        yield memory, l2, "a key-side, outer-product or tied decay needs the two sides of one matrix"

    if isinstance(algorithm, algorithms.Newton):
        if not isinstance(memory, memories.Matrix):
            yield algorithm, memory, "the exact solution of all pairs so far is a linear system for a matrix alone"
        if not isinstance(bias, biases.L2):
            yield algorithm, bias, "only the l2 loss of all pairs has sufficient statistics of a fixed size"
        if not quadratic:
            yield algorithm, retention, "it takes no step that a retention could shape; pairs decay by L2 or are kept"
        if l2 and (l2.side != "value" or l2.tied):
            yield algorithm, l2, "the pairs decay by one number a head"
        if l2 and l2.at == "previous":
            yield algorithm, l2, "it takes no gradient, so there is no place to take it at; use at='decayed'"
        if l2 and l2.anchor:
            yield algorithm, l2, "its ridge already pulls towards the initial weights; use anchor=False"

    if isinstance(algorithm, algorithms.NonParametric):
        if not isinstance(memory, memories.Matrix):
            yield algorithm, memory, "it keeps the pairs themselves; no weights are learned"
        if not isinstance(bias, biases.L2):
            yield algorithm, bias, "the Nadaraya-Watson estimate is the local solution of the l2 loss"
        if not isinstance(retention, retentions.Keep):
            yield algorithm, retention, "every pair is kept as it is; use Keep"

    if isinstance(algorithm, algorithms.ImplicitGD):
        if not memory.linear:
            yield algorithm, memory, "the implicit step has a closed form for a memory linear in its weights alone"
        if not isinstance(bias, biases.L2):
            yield algorithm, bias, "the implicit step has a closed form for the l2 loss alone"
        if not quadratic:
            yield algorithm, retention, "the implicit step has a closed form for a quadratic retention alone"
        if l2 and l2.at == "previous":
            yield algorithm, l2, "the loss is measured at the new weights, nowhere else; use at='decayed'"

    if isinstance(algorithm, algorithms.GradientDescent) and algorithm.decoupled:
        if not isinstance(memory, memories.Matrix):
            yield algorithm, memory, "removing one key and writing another is defined for a matrix"
        if not isinstance(bias, biases.L2):
            yield algorithm, bias, "removing what a key holds is the l2 loss's step"
        if not quadratic:
            yield algorithm, retention, "the write v k' is added to the weights as they are: use L2 or Keep"
        if l2 and l2.tied:
            yield algorithm, l2, "it writes with a key of its own"

    if isinstance(algorithm, algorithms.MultiStep) and l2 and l2.tied:
        yield algorithm, l2, "a key tied to the decay gives one pair a token"
