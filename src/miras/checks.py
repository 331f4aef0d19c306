"""Every argument of ``memorize`` and ``recall``, checked: one line that names the argument, what came, and what is allowed.

B batch, T time, H heads, K key channels, V value channels, P pairs a token
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .algorithm import Descent, NonParametric
from .retention import L2
from .spec import Spec
from .types import Gate, Gates, Norm, Weights, looked_at, require, require_count


class Shapes(NamedTuple):
    """The sizes that all arguments share."""

    batch: int
    time: int
    heads: int
    keys: int
    values: int
    pairs: int
    rows: int


class Limit(NamedTuple):
    """What a gate may be: in words, as a test of each value, and the values that decide for all of them, a NaN first."""

    allowed: str
    test: Callable[[Tensor], Tensor]
    extreme: Callable[[Tensor], Tensor]


def both(x: Tensor) -> Tensor:
    """The least and the largest value."""
    return torch.stack(torch.aminmax(x))


def least(x: Tensor) -> Tensor:
    """The least value; not a number where the largest is infinite."""
    low, high = torch.aminmax(x)
    return low + 0 * high


LIMITS = {
    "eta": Limit(">= 0 and finite", lambda x: (x >= 0) & (x < math.inf), least),
    "log_alpha": Limit("<= 0 (a logarithm of at most 1)", lambda x: x <= 0, torch.amax),
    "log_beta": Limit("<= 0 (a logarithm of at most 1)", lambda x: x <= 0, torch.amax),
    "delta": Limit(">= 0", lambda x: x >= 0, torch.amin),
    "mu": Limit("in [0, 1)", lambda x: (x >= 0) & (x < 1), both),
    "ridge": Limit("> 0", lambda x: x > 0, torch.amin),
    "kappa": Limit("finite", torch.isfinite, both),
}


def spec_of(spec: Spec) -> None:
    """Refuse what is no spec, such as a preset's name."""
    if not isinstance(spec, Spec):
        raise ValueError(f"spec must be a Spec (miras.presets.get(name) gives one), got {spec!r}")


def how(spec: Spec, form: str, chunk_size: int | None, backend: str, recompute: int | None = None) -> int:
    """Check form, chunk size, backend and what is computed again; the chunk size to take."""
    require(form in ("chunk", "recurrent"), f"form is 'chunk' or 'recurrent', got {form!r}")
    require(backend in ("auto", "torch", "triton", "fla"), f"backend is 'auto', 'torch', 'triton' or 'fla', got {backend!r}")
    plain = backend in ("auto", "torch")
    require(plain or form == "chunk", f"backend {backend!r} cannot run {spec}: form='recurrent' has no kernels")
    whole = chunk_size is None or (isinstance(chunk_size, int) and chunk_size >= 1)
    require(whole, f"chunk_size must be an integer >= 1 or None, got {chunk_size!r}")
    require(form == "chunk" or chunk_size in (None, 1), f"form='recurrent' has no chunks, got chunk_size={chunk_size}")
    size = spec.chunk_size if chunk_size is None else chunk_size
    if recompute is not None:
        require_count(recompute=recompute)
        attends = isinstance(spec.algorithm, NonParametric)
        require(not attends, f"recompute keeps states between stretches, and {spec} keeps all pairs: leave it out")
        whole = form == "recurrent" or recompute >= size
        require(whole, f"recompute must be at least a chunk of {size} tokens, got {recompute}")
    return size


def tokens(spec: Spec, q: Tensor, k: Tensor | None, v: Tensor, cu_seqlens: Tensor | None) -> Shapes:
    """Check q, k, v and cu_seqlens against each other and the spec."""
    if spec.tied != (k is None):
        raise ValueError(f"{spec} takes k=None, its key is 1 - alpha" if spec.tied else f"k is None, but {spec} needs keys")
    for name, x in (("q", q), ("v", v)) if k is None else (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{name} must be [B,T,H,D], got a tensor of shape {list(x.shape)}")
        floating(name, x)
        if x.dtype != q.dtype:
            raise ValueError(f"q, k and v must have one dtype, got q {q.dtype} and {name} {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"q, k and v must be on one device, got q on {q.device} and {name} on {x.device}")
    batch, time, heads, keys = q.shape
    pairs = spec.algorithm.pairs if isinstance(spec.algorithm, Descent) else 1
    if batch == 0 or heads == 0 or keys == 0:
        raise ValueError(f"q must have at least one row, head and channel, got {list(q.shape)}")
    if k is not None and k.shape != (batch, time * pairs, heads, keys):
        expected = [batch, time * pairs, heads, keys]
        raise ValueError(f"k must be {expected} to go with q {list(q.shape)}, got {list(k.shape)}")
    if v.shape[:3] != (batch, time * pairs, heads) or v.shape[3] == 0:
        raise ValueError(f"v must be [{batch}, {time * pairs}, {heads}, V] to go with q {list(q.shape)}, got {list(v.shape)}")
    if spec.memory.square and keys != v.shape[3]:
        needs = f"{spec.memory.label} memory needs K == V (it adds or multiplies keys and values)"
        raise ValueError(f"{needs}, got K={keys} and V={v.shape[3]}")
    rows = batch if cu_seqlens is None else packing(cu_seqlens, batch, time)
    return Shapes(batch, time, heads, keys, v.shape[3], pairs, rows)


def packing(cu_seqlens: Tensor, batch: int, time: int) -> int:
    """Check cu_seqlens; the number of sequences it packs."""
    require(batch == 1, f"cu_seqlens packs sequences in a batch of 1, got a batch of {batch}")
    require(isinstance(cu_seqlens, Tensor), f"cu_seqlens must be a tensor, got {type(cu_seqlens).__name__}")
    require(cu_seqlens.dim() == 1 and len(cu_seqlens) >= 2, f"cu_seqlens must be [N+1], got {list(cu_seqlens.shape)}")
    integer = not cu_seqlens.is_floating_point() and cu_seqlens.dtype != torch.bool
    require(integer, f"cu_seqlens must be an integer tensor, got {cu_seqlens.dtype}")
    ends = cu_seqlens.tolist()
    rising = all(a <= b for a, b in itertools.pairwise(ends))
    require(
        ends[0] == 0 and ends[-1] == time and rising,
        f"cu_seqlens must rise from 0 to T={time}, got {ends if len(ends) < 9 else [*ends[:8], '...']}",
    )
    return len(ends) - 1


def gates_of(spec: Spec, gates: Gates, shapes: Shapes, like: Tensor, ranges: bool = True) -> Gates:
    """Check the gates and shape each to ``[B,T,H,D or 1]``, in its own dtype; fixed ones are filled in, like ``like``."""
    if not isinstance(gates, Gates):
        raise ValueError(f"gates must be a miras.Gates, got {type(gates).__name__}")
    asked = {gate.name: gate for gate in spec.gates}
    found: dict[str, Tensor] = {}
    for name, value in gates._asdict().items():
        gate = asked.get(name)
        if value is None:
            if gate is not None and gate.required:
                raise ValueError(f"gates.{name} is missing: {spec} needs {_needs(spec)}")
            continue
        if gate is None:
            raise ValueError(f"gates.{name} was given, but {spec} takes {_needs(spec)}")
        _tensor(f"gates.{name}", value, like.device)
        if ranges:
            _limits(name, value)
        found[name] = _shaped(gate, value, shapes, spec)
    if isinstance(spec.algorithm, Descent) and spec.algorithm.fixed_eta is not None:
        found["eta"] = like.new_full((), spec.algorithm.fixed_eta).expand(shapes.batch, shapes.time, shapes.heads, 1)
    fixed = spec.retention.fixed_log_alpha(shapes.heads, like) if isinstance(spec.retention, L2) else None
    if fixed is not None:
        found["log_alpha"] = fixed[None, None, :, None].expand(shapes.batch, shapes.time, shapes.heads, 1)
    return Gates(**found)


def _needs(spec: Spec) -> str:
    names = [gate.name if gate.required else f"{gate.name} (optional)" for gate in spec.gates]
    return ", ".join(names) or "no gates"


def _shaped(gate: Gate, value: Tensor, shapes: Shapes, spec: Spec) -> Tensor:
    batch, time, heads, keys, values, pairs, _ = shapes
    if gate.width == "ridge":
        if value.shape != (heads, keys):
            raise ValueError(f"gates.ridge must be [H,K] = {[heads, keys]}, got {list(value.shape)}")
        return value
    time = time * pairs if gate.name == "eta" else time
    wide = {"scalar": None, "key": keys, "keys only": keys, "value": values}[gate.width]
    full = (batch, time, heads)
    allowed = [] if gate.width == "keys only" else [(heads,), full]
    allowed += [] if wide is None else [(*full, wide)]
    if value.shape not in allowed:
        either = " or ".join(str(list(shape)) for shape in allowed)
        raise ValueError(f"gates.{gate.name} must be {either} for {spec}, got {list(value.shape)}")
    if value.dim() == 1:
        return value[None, None, :, None].expand(batch, time, heads, 1)
    return value if value.dim() == 4 else value[..., None]


def floating(name: str, x: Tensor) -> None:
    """Refuse whole numbers and truth values."""
    if not x.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor, got {x.dtype}")


def _tensor(name: str, x: object, device: torch.device) -> None:
    """Refuse what is no tensor of floating-point numbers where q is."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
    floating(name, x)
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, but q is on {device}")


def _limits(name: str, value: Tensor) -> None:
    """Refuse values outside a gate's range, NaN among them; on an accelerator without waiting for it."""
    allowed, test, extreme = LIMITS[name]
    message = f"gates.{name} must be {allowed} everywhere"
    if value.numel() == 0:
        return
    if torch.compiler.is_compiling() or value.device.type != "cpu":
        # one pass over memory and few launches
        good = test(extreme(value.detach()))
        torch._assert_async(good.all() if good.dim() else good, message)
        return
    good = test(value.detach())
    if looked_at(good.all()) is False:
        raise ValueError(f"{message}, got {value.detach()[~good].flatten()[0].item():g}")


def weights_of(spec: Spec, weights: Tensor | Weights | None, shapes: Shapes, like: Tensor) -> Weights | None:
    """Check the initial weights: one tensor or a tuple, ``[H,...]`` or ``[rows,H,...]``."""
    if isinstance(spec.algorithm, NonParametric):
        require(weights is None, f"weights were given, but {spec} has none: it keeps the pairs")
        return None
    wanted = spec.memory.shapes(shapes.keys, shapes.values)
    if weights is None:
        if not spec.zero_start:
            need = _wanted(wanted, shapes)
            raise ValueError(f"weights are missing: {spec} cannot start from zeros; give {need} in the space it learns in")
        return None
    if not isinstance(weights, Tensor | tuple | list):
        raise ValueError(f"weights must be a tensor or a tuple of them, got {type(weights).__name__}")
    several = (weights,) if isinstance(weights, Tensor) else tuple(weights)
    if len(several) != len(wanted):
        raise ValueError(f"weights must be {_wanted(wanted, shapes)}, got {len(several)} tensors")
    for weight, shape in zip(several, wanted, strict=True):
        _tensor("each of the weights", weight, like.device)
        if weight.shape not in ((shapes.heads, *shape), (shapes.rows, shapes.heads, *shape)):
            raise ValueError(f"weights must be {_wanted(wanted, shapes)}, got {list(weight.shape)}")
    return tuple(weight.to(like.dtype) for weight in several)


def _wanted(wanted: tuple[tuple[int, ...], ...], shapes: Shapes) -> str:
    each = " and ".join(str([shapes.heads, *shape]) for shape in wanted)
    return f"{each} (or with {shapes.rows} rows in front)"


def norm_of(spec: Spec, norm: tuple[Tensor, Tensor] | None, shapes: Shapes, like: Tensor) -> Norm | None:
    """Check gain and shift, ``[H,V]`` each."""
    if norm is None:
        return None
    if not spec.memory.normed:
        raise ValueError(f"norm was given, but {spec.memory.label} has no LayerNorm")
    if not (isinstance(norm, tuple | list) and len(norm) == 2 and all(isinstance(x, Tensor) for x in norm)):
        given = [type(x).__name__ for x in norm] if isinstance(norm, tuple | list) else type(norm).__name__
        raise ValueError(f"norm must be two tensors, (gain, shift), got {given}")
    for name, x in zip(("norm's gain", "norm's shift"), norm, strict=True):
        _tensor(name, x, like.device)
        if x.shape != (shapes.heads, shapes.values):
            raise ValueError(f"{name} must be [H,V] = {[shapes.heads, shapes.values]}, got {list(x.shape)}")
    return Norm(norm[0].to(like.dtype), norm[1].to(like.dtype))
