"""Matrix memories by the kernels of flash-linear-attention: which spec is which of its operations.

fla stores weights as [K,V], we as [V,K]; it scales q by K^-1/2 unless told otherwise, and is told 1. Its decays are logarithms
too, one number a head or one a key channel. Its operations give what the recurrent form gives, whatever the chunk size, so a
state may go back and forth between them and plain PyTorch at any token.

B batch, T time, H heads, K key channels, V value channels, N sequences
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Descent, GradientDescent, ImplicitGD, MultiStep, Newton, NonParametric
from ..algorithm.newton import solve
from ..bias import L2 as L2Bias
from ..bias import DotProduct
from ..memory import Matrix
from ..retention import L2, Keep
from ..spec import Spec
from ..types import AnyState, Gates, NewtonState, State

# the tokens up to which a call without gradients goes token by token, in one kernel
SHORT = 16


class Operation(NamedTuple):
    """One of fla's operations: where it is, its twin that goes token by token, and what it asks for."""

    module: str
    name: str
    short: str | None = None
    half: bool = False  # bf16 and fp16 alone
    exact: bool = True


OPERATIONS = {
    "simple_gla": Operation("fla.ops.simple_gla", "chunk_simple_gla", "fused_recurrent_simple_gla"),
    "gla": Operation("fla.ops.gla", "chunk_gla", "fused_recurrent_gla"),
    "outer_gla": Operation("fla.ops.gla", "fused_recurrent_gla"),
    "delta": Operation("fla.ops.delta_rule", "chunk_delta_rule", "fused_recurrent_delta_rule", half=True),
    "gated_delta": Operation("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"),
    "kda": Operation("fla.ops.kda", "chunk_kda"),
    "product": Operation("fla.ops.gated_delta_product", "chunk_gated_delta_product", half=True),
    "dplr": Operation(
        "fla.ops.generalized_delta_rule.dplr", "chunk_dplr_delta_rule", "fused_recurrent_dplr_delta_rule", half=True
    ),
    "mesa": Operation("fla.ops.mesa_net", "chunk_mesa_net", half=True, exact=False),
}


class Plan(NamedTuple):
    """How fla runs a spec: its operation, and whether that operation's backward pass is the gated one."""

    operation: Operation
    key: str
    gated: bool = False


def plan(spec: Spec, gates: Gates | None = None) -> Plan | str:
    """The operation that computes a spec, or why fla has none; without gates, for those of the usual width."""
    if not isinstance(spec.memory, Matrix):
        return f"fla is called for matrix memories, not {spec.memory.label}"
    if isinstance(spec.algorithm, NonParametric):
        return "softmax attention is torch's scaled_dot_product_attention"
    if isinstance(spec.retention, L2) and spec.retention.anchor:
        return "fla decays towards zero, not towards an anchor"
    if isinstance(spec.algorithm, Newton):
        return _planned("mesa")
    kept = spec.retention
    if not isinstance(kept, Keep | L2):
        return f"fla has no {kept.label} retention"
    if isinstance(spec.bias, DotProduct) and type(spec.algorithm) is GradientDescent:
        return _hebbian(kept, gates)
    if isinstance(spec.bias, L2Bias) and isinstance(spec.algorithm, GradientDescent | ImplicitGD | MultiStep):
        return _dplr(kept) if spec.decoupled else _delta(spec, kept, gates)
    return f"fla has no operation for {spec.bias.label} with {spec.algorithm.label}"


def _planned(key: str, gated: bool = False) -> Plan:
    return Plan(OPERATIONS[key], key, gated)


def _hebbian(kept: Keep | L2, gates: Gates | None) -> Plan:
    if isinstance(kept, Keep):
        return _planned("simple_gla")
    key, value = _widths(kept, gates)
    if value:
        return _planned("outer_gla")
    if key:
        return _planned("gla")
    return _planned("simple_gla", gated=not (kept.schedule is not None or (gates is not None and _stands(gates.log_alpha))))


def _delta(spec: Spec, kept: Keep | L2, gates: Gates | None) -> Plan | str:
    if gates is not None and gates.eta is not None and gates.eta.shape[-1] > 1:
        return "fla's delta rules take one eta a head, not one a channel"
    several = isinstance(spec.algorithm, MultiStep)
    if isinstance(kept, Keep):
        return _planned("product" if several else "delta")
    if kept.at == "previous":
        return "fla's delta rules measure the surprise at the decayed weights: use at='decayed'"
    key, value = _widths(kept, gates)
    if value or (key and several):
        return f"fla's {'product of delta rules' if several else 'delta rules'} cannot decay {'value' if value else 'key'} channels"
    if key:
        return _planned("kda")
    return _planned("product" if several else "gated_delta", gated=True)


def _dplr(kept: Keep | L2) -> Plan | str:
    if isinstance(kept, L2) and (kept.at != "previous" or kept.side != "key"):
        return "fla's step of two keys decays key channels and looks up before the decay: use L2(at='previous', side='key')"
    return _planned("dplr")


def _widths(kept: L2, gates: Gates | None) -> tuple[bool, bool]:
    """Whether the decay is channel-wise on the key side, and on the value side."""
    if gates is None:
        return kept.side != "value", kept.side == "outer"
    assert gates.log_alpha is not None
    wide = gates.log_alpha.shape[-1] > 1
    value = gates.log_beta is not None and gates.log_beta.shape[-1] > 1
    return (False, wide) if kept.side == "value" else (wide, value)


def _stands(decay: Tensor | None) -> bool:
    """Whether a decay is the same in every row and token and needs no gradient: fla has a backward pass of its own for that."""
    return decay is not None and decay.stride()[:2] == (0, 0) and not decay.requires_grad


class Call(NamedTuple):
    """What of a call decides whether fla runs it: ``backward`` where it needs gradients, ``named`` where fla was asked for."""

    device: torch.device
    dtype: torch.dtype
    square: bool = True
    gates: Gates | None = None
    backward: bool = True
    named: bool = False


def why_not(spec: Spec, call: Call) -> str | None:
    """Why fla cannot run a call, or, unless it is named, should not; None where it can."""
    device, dtype, square, gates, backward, named = call
    found = plan(spec, gates)
    if isinstance(found, str):
        return found
    name = found.operation.name
    if find_spec("fla") is None or find_spec("triton") is None:
        return "fla is not installed: pip install 'miras-torch[gpu]'"
    if no_device(device):
        return f"fla's kernels need an NVIDIA GPU, not {device.type}"
    if dtype not in (torch.bfloat16, torch.float16, *(() if found.operation.half else (torch.float32,))):
        return f"fla's {name} takes bf16 and fp16{'' if found.operation.half else ' and float32'}, not {dtype}"
    if found.key == "mesa" and not square:
        return f"fla's {name} takes keys and values of one width"
    if backward and found.gated and backward_is_wrong(*machine(device)):
        return broken_backward(found.operation)
    if not named and dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return f"fla's {name} multiplies float32 in TF32, which torch.set_float32_matmul_precision('high') allows"
    if not named and not found.operation.exact:
        return f"fla's {name} solves by conjugate gradients in fp16, which is not exact: backend='fla' asks for it"
    return None


def no_device(device: torch.device) -> bool:
    """Whether fla has no kernels for a device."""
    return device.type != "cuda"


def machine(device: torch.device) -> tuple[int, str]:
    """The major compute capability of a device, 0 where there is none, and the version of Triton."""
    major = torch.cuda.get_device_capability(device)[0] if torch.cuda.is_available() else 0
    return major, metadata.version("triton")


def backward_is_wrong(major: int, triton: str) -> bool:
    """Whether Triton compiles fla's gated backward pass incorrectly: on Hopper, from 3.4.0 to before 3.7.1. fla refuses it then."""
    version = tuple(map(int, re.findall(r"\d+", triton)[:3]))
    return major == 9 and (3, 4, 0) <= version < (3, 7, 1)


def broken_backward(operation: Operation) -> str:
    """What is said of a backward pass that fla refuses."""
    return (
        f"fla {metadata.version('fla-core')} refuses the backward pass of its {operation.name} on Hopper under Triton 3.4 to 3.7.0, "
        "which compile it incorrectly: install Triton 3.7.1 or later, or call without gradients"
    )


def load(module: str, name: str) -> Callable[..., Any]:
    """One of fla's functions, imported where it is first used."""
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def run(
    spec: Spec, q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: AnyState, cu_seqlens: Tensor | None, backward: bool
) -> tuple[Tensor, AnyState]:
    """A call that ``why_not`` has nothing against: tokens ``[B,T,H,D]`` in their own dtype, gates ``[B,T,H,D or 1]`` in float32."""
    found = plan(spec, gates)
    assert isinstance(found, Plan)
    if q.shape[1] == 0:
        return v.new_zeros(*q.shape[:3], v.shape[3]), state
    packed = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens.to(q.device, torch.long)}
    if isinstance(state, NewtonState):
        return _mesa(q, k, v, gates, state, packed)
    assert isinstance(state, State) and isinstance(state.weights, Tensor) and isinstance(spec.algorithm, Descent)
    module, name, short, *_ = found.operation
    if short is not None and not backward and q.shape[1] <= SHORT:
        name = short
    eta = spec.algorithm.fixed_eta
    if isinstance(spec.bias, DotProduct) and eta != 1:
        assert gates.eta is not None
        v = (v * gates.eta).to(v.dtype)
    given = GIVEN[found.key](spec, k, gates)
    if name == "fused_recurrent_gla" and "g" in given:
        given = {"gk": given["g"]}
    y, end = load(module, name)(
        q=q,
        k=k,
        v=v,
        **given,
        scale=1.0,
        initial_state=state.weights.mT.contiguous(),
        output_final_state=True,
        **packed,
    )
    weights = end.mT
    return y, State(weights, (weights,), (), ())


def _one(gate: Tensor | None) -> Tensor:
    """A gate of one number a head, ``[B,T,H]``."""
    assert gate is not None
    return gate[..., 0].contiguous()


def _each(gate: Tensor, channels: int) -> Tensor:
    """A gate of one number a channel, ``[B,T,H,D]``."""
    return gate.expand(*gate.shape[:3], channels).contiguous()


def _whole(gates: Gates) -> Tensor:
    """The decay of a weight as a whole or of its key side, with a value side of one number a head."""
    assert gates.log_alpha is not None
    return gates.log_alpha if gates.log_beta is None else gates.log_alpha + gates.log_beta


def _simple_gla(spec: Spec, k: Tensor, gates: Gates) -> dict[str, Any]:
    if gates.log_alpha is None:
        return {}
    if gates.log_beta is None and _stands(gates.log_alpha):
        return {"g_gamma": gates.log_alpha[0, 0, :, 0].contiguous()}
    return {"g": _one(_whole(gates))}


def _gla(spec: Spec, k: Tensor, gates: Gates) -> dict[str, Any]:
    return {"g": _each(_whole(gates), k.shape[3])}


def _outer_gla(spec: Spec, k: Tensor, gates: Gates) -> dict[str, Any]:
    assert isinstance(spec.retention, L2) and gates.log_alpha is not None
    if spec.retention.side == "value":
        return {"gv": gates.log_alpha.contiguous()}
    assert gates.log_beta is not None
    return {"gk": _each(gates.log_alpha, k.shape[3]), "gv": gates.log_beta.contiguous()}


def _rate(spec: Spec, k: Tensor, gates: Gates) -> Tensor:
    """The step along the gradient, ``[B,T,H]``."""
    assert isinstance(spec.algorithm, Descent) and gates.eta is not None
    return _one(spec.algorithm.rate(gates.eta, spec.memory.curvature(k.float())))


def _delta_gates(spec: Spec, k: Tensor, gates: Gates) -> dict[str, Any]:
    given: dict[str, Any] = {"beta": _rate(spec, k, gates)}
    if isinstance(spec.algorithm, MultiStep):
        given |= {"num_householder": spec.algorithm.n, "g": None}
    if gates.log_alpha is not None:
        given["g"] = _one(_whole(gates))
    return given


def _kda(spec: Spec, k: Tensor, gates: Gates) -> dict[str, Any]:
    return {"beta": _rate(spec, k, gates), "g": _each(_whole(gates), k.shape[3])}


def _dplr_gates(spec: Spec, k: Tensor, gates: Gates) -> dict[str, Any]:
    """The key looked up is -kappa, what is added along is eta * kappa."""
    assert gates.kappa is not None and gates.eta is not None
    kappa = gates.kappa
    decay = torch.zeros_like(kappa) if gates.log_alpha is None else _each(gates.log_alpha, k.shape[3])
    return {"a": (-kappa).to(k.dtype), "b": (gates.eta * kappa).to(k.dtype), "gk": decay}


GIVEN: dict[str, Callable[[Spec, Tensor, Gates], dict[str, Any]]] = {
    "simple_gla": _simple_gla,
    "gla": _gla,
    "outer_gla": _outer_gla,
    "delta": _delta_gates,
    "gated_delta": _delta_gates,
    "kda": _kda,
    "product": _delta_gates,
    "dplr": _dplr_gates,
}


def _mesa(
    q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: NewtonState, packed: dict[str, Tensor]
) -> tuple[Tensor, NewtonState]:
    """Ridge regression about W_0: fla's ridge is about zero, so it is given v - W_0 k and gives W - W_0."""
    assert gates.eta is not None and gates.ridge is not None
    bounds = [0, q.shape[1]] if not packed else packed["cu_seqlens"].tolist()
    decay = torch.zeros_like(gates.eta) if gates.log_alpha is None else gates.log_alpha
    away = state.value_key - state.anchor @ state.key_key
    y, key_key, key_value = load(*OPERATIONS["mesa"][:2])(
        q=q,
        k=k,
        v=v - _at_centre(state.anchor, k, bounds),
        g=_one(decay),
        beta=_one(gates.eta),
        lamb=gates.ridge,
        h_kk_init=state.key_key.contiguous(),
        h_kv_init=away.mT.contiguous(),
        output_final_state=True,
        **packed,
    )
    value_key = key_value.mT + state.anchor @ key_key
    weights = solve(key_key, value_key, gates.ridge, state.anchor)
    return y + _at_centre(state.anchor, q, bounds), NewtonState(weights, key_key, value_key, state.anchor)


def _at_centre(centre: Tensor, x: Tensor, bounds: list[int]) -> Tensor:
    """W_0 x for every token, in the dtype of x; a packed batch has a W_0 for each of its sequences."""
    if x.shape[0] == centre.shape[0]:
        return torch.einsum("bthk,bhvk->bthv", x.float(), centre).to(x.dtype)
    parts = [x[0, left:right].float() for left, right in itertools.pairwise(bounds)]
    own = [torch.einsum("thk,hvk->thv", part, row) for part, row in zip(parts, centre, strict=True)]
    return torch.cat(own)[None].to(x.dtype)
