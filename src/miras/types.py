"""What every room speaks: parts that describe and serialise themselves, gates, states.

B batch, T time, H heads, K key channels, V value channels, D = K = V where a memory needs them equal, N tokens read at once
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from numbers import Real
from types import NoneType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

Width = Literal["scalar", "key", "value", "keys only", "ridge"]
Weights = tuple[Tensor, ...]
PartT = TypeVar("PartT", bound="Part")
# the label of a token that a loss leaves out: torch's own
IGNORED = -100
# how infinity is spelt in JSON
ENDLESS = "inf"


class Rule(NamedTuple):
    """One line of mathematics, for a terminal and for a page."""

    text: str
    latex: str


class Gate(NamedTuple):
    """A gate that a part asks for: its name, how wide it may be, and whether the part can do without it."""

    name: str
    width: Width
    required: bool = True


class Gates(NamedTuple):
    """What the layer decides token by token. A spec takes the fields it needs and refuses the others.

    A gate is ``[H]``, ``[B,T,H]`` or, channel-wise, ``[B,T,H,D]``.

    Attributes:
        eta: step size, >= 0.
        log_alpha: logarithm of the retention, <= 0.
        delta: threshold of the Huber bias (or shift of the value-shift bias), >= 0.
        mu: momentum, in [0, 1).
        log_beta: value side of an outer-product decay, <= 0; ``log_alpha`` is then its key side.
        kappa: ``[B,T,H,K]``, the key that a decoupled step removes.
        ridge: ``[H,K]``, > 0, the constant ridge of Newton's algorithm.
    """

    eta: Tensor | None = None
    log_alpha: Tensor | None = None
    delta: Tensor | None = None
    mu: Tensor | None = None
    log_beta: Tensor | None = None
    kappa: Tensor | None = None
    ridge: Tensor | None = None

    def to(self, dtype: torch.dtype) -> Gates:
        """The same gates in a dtype."""
        return Gates(*(None if gate is None else gate.to(dtype) for gate in self))


class Norm(NamedTuple):
    """Gain and shift of the memory's LayerNorm: slow weights, never touched by the inner loop.

    ``[H,V]`` where a user gives them; a form shapes them to broadcast against what it reads, ``[H,1,...,V]``.
    """

    gain: Tensor
    shift: Tensor


class Held(NamedTuple):
    """One weight as a retention keeps it: what it accumulates in, and what the memory reads."""

    accumulated: Tensor
    weight: Tensor


class Progress(NamedTuple):
    """How far into its chunk each row of a state stands.

    ``start`` are the weights at the chunk's start, where its gradients are taken; ``moved``, ``log_decay`` and ``threshold``
    what has accumulated since; ``position`` ``[B]``, on the CPU, the number of tokens since.
    """

    start: Weights
    moved: Weights
    log_decay: Weights
    threshold: Weights
    position: Tensor


class State(NamedTuple):
    """What a memory of fast weights carries from one call to the next.

    ``weights`` is W_T as the memory reads it: a tensor for one weight, a tuple, outermost first, for several. ``accumulated``
    is what the retention accumulates in, at the last chunk's end; ``chunk`` is None where every row stands at one.
    """

    weights: Tensor | Weights
    accumulated: Weights
    anchor: Weights
    momentum: Weights
    chunk: Progress | None = None


class NewtonState(NamedTuple):
    """Newton's sufficient statistics: W_T, sum of k k', sum of v k', and the weights its ridge is centred on."""

    weights: Tensor
    key_key: Tensor
    value_key: Tensor
    anchor: Tensor


class CacheState(NamedTuple):
    """The non-parametric memory: every pair it has read, ``[B,S,H,K]`` and ``[B,S,H,V]``.

    Rows of different length are filled up on the left: the last ``lengths`` pairs of a row are its own.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor

    @property
    def weights(self) -> Weights:
        """The pairs themselves: this memory has no other weights."""
        return self.keys, self.values


AnyState = State | NewtonState | CacheState
# so that torch.load takes a state that torch.save wrote
torch.serialization.add_safe_globals([State, Progress, NewtonState, CacheState])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A choice of one of the four rooms: a frozen dataclass of plain values, known to its room by its class name."""

    room: ClassVar[str]
    known: ClassVar[dict[str, type[Part]]]
    # the fields that may be infinite
    endless: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Part in cls.__bases__:
            cls.known = {}
            return
        other = cls.known.get(cls.__name__)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"a {cls.room} named {cls.__name__} exists already, in {other.__module__}: choose another name")
        cls.known[cls.__name__] = cls

    def __post_init__(self) -> None:
        require_kinds(self)

    def to_dict(self) -> dict[str, Any]:
        """The part as plain JSON values, its class under ``"name"``; JSON has no infinity, which is ``"inf"``."""
        values = {key: ENDLESS if value == math.inf else value for key, value in dataclasses.asdict(self).items()}
        return {"name": type(self).__name__, **values}

    @classmethod
    def from_dict(cls: type[PartT], values: dict[str, Any]) -> PartT:
        """The part that ``to_dict`` wrote; classes of the user's own are found once they are defined."""
        require(isinstance(values, dict), f"a {cls.room} is read from a dictionary with its name, got {values!r}")
        values = dict(values)
        name = values.pop("name", None)
        concrete = {known: kind for known, kind in cls.known.items() if not inspect.isabstract(kind)}
        if name not in concrete:
            names = ", ".join(sorted(concrete))
            raise ValueError(
                f"unknown {cls.room} {name!r}: known are {names}, and your own once their module is imported (miras --import)"
            )
        kind = concrete[name]
        allowed = [field.name for field in dataclasses.fields(kind)]
        for key in values:
            if key not in allowed:
                raise ValueError(f"{name} has no parameter {key!r}: it has {', '.join(allowed) or 'none'}")
        # JSON has no tuples, and a part is hashable
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        plain |= {key: math.inf for key in kind.endless if plain.get(key) == ENDLESS}
        return kind(**plain)  # type: ignore[return-value]

    @functools.cached_property
    def label(self) -> str:
        """The part with the parameters that differ from their defaults, for tables."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return type(self).__name__ + (f"({', '.join(changed)})" if changed else "")


def looked_at(condition: Tensor) -> bool | None:
    """What a tensor of one truth value says; None under ``torch.func.vmap``, where there is one for each of a batch."""
    try:
        return bool(condition)
    except RuntimeError as error:
        if "vmap" in str(error):
            return None
        raise


def whole(value: object, least: int) -> bool:
    """Whether a value is an integer, and not too small; a truth value is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_count(**given: object) -> None:
    """Refuse what is neither an integer of 1 or more nor None, by the name it was given under."""
    for name, value in given.items():
        require(value is None or whole(value, 1), f"{name} must be an integer of 1 or more, or None, got {value!r}")


# what a field may be annotated with that is looked at, in words
KINDS: dict[object, str] = {bool: "True or False", int: "an integer", float: "a number", str: "text", NoneType: "None"}


def require_kinds(thing: Any, *names: str) -> None:
    """Refuse fields of a dataclass, all or those named, that are of another plain kind than annotated, or no finite number."""
    if torch.compiler.is_compiling():
        # parts that a compiled call makes are the library's own
        return
    kinds = _kinds(thing.__class__)
    for name in names or kinds:
        value, allowed = getattr(thing, name), kinds.get(name, ())
        fits = not allowed or any(_is(value, kind) for kind in allowed)
        words = " or ".join(KINDS[kind] for kind in allowed)
        require(fits, f"{type(thing).__name__}'s {name} must be {words}, got {value!r}")
        ends = not isinstance(value, Real) or isinstance(value, int) or math.isfinite(value)
        endless = name in getattr(thing, "endless", ()) and value == math.inf
        require(ends or endless, f"{type(thing).__name__}'s {name} must be finite, got {value!r}")


@functools.cache
def _kinds(of: Any) -> dict[str, tuple[object, ...]]:
    """The kinds that each field of a dataclass may have, those alone that are plain."""
    hints: dict[str, Any] = {}
    for base in reversed(of.__mro__):
        # what somebody imports for a type checker alone has no name here
        with contextlib.suppress(NameError):
            hints |= inspect.get_annotations(base, eval_str=True)
    names = [field.name for field in dataclasses.fields(of) if field.name in hints]
    found = {name: get_args(hints[name]) or (hints[name],) for name in names}
    return {name: kinds for name, kinds in found.items() if all(kind in KINDS for kind in kinds)}


def _is(value: object, kind: object) -> bool:
    """Whether a value is of a plain kind: a truth value is no number, a whole number is one."""
    if kind in (int, float):
        return isinstance(value, int if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)  # type: ignore[arg-type]


def require_text(text: str) -> None:
    """Refuse a text of which some characters are none."""
    require(is_text(text), "the text has characters that are none: half of a surrogate pair, or stray bytes")


def is_text(text: str) -> bool:
    """Whether every character of a text is one: stray bytes, and halves that JSON can spell alone, are surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless the condition holds."""
    if not condition:
        raise ValueError(message)
