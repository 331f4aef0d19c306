"""A matrix memory by one of fla's operations: converted at the border, both ways.

fla stores weights as [K,V], we as [V,K]; it scales q by K^-1/2 unless told otherwise, and is told 1. Its decays are logarithms
too, one number a head or one a key channel. Its operations give what the recurrent form gives, whatever the chunk size, so a
state may go back and forth between them and plain PyTorch at any token.

B batch, T time, H heads, K key channels, V value channels, N sequences
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Descent, MultiStep
from ..algorithm.newton import solve
from ..bias import DotProduct
from ..retention import L2
from ..spec import Spec
from ..types import AnyState, Gates, NewtonState, State
from .matrix_fla import Plan, plan, settled, stands

# the tokens up to which a call without gradients goes token by token, in one kernel
SHORT = 16

# exp(-100) is 0 next to any weight in float32, and fla's chunks subtract decays: a total erasure must be a number
LOWEST = -100.0


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
    found = settled(found, q.device, backward)
    assert isinstance(found, Plan)
    if q.shape[1] == 0:
        return v.new_zeros(*q.shape[:3], v.shape[3]), state
    packed = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens.to(q.device, torch.long)}
    if isinstance(state, NewtonState):
        return _mesa(load(*found.operation[:2]), q, k, v, gates, state, packed)
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
    decay = gates.log_alpha if gates.log_beta is None else gates.log_alpha + gates.log_beta
    return decay.clamp_min(LOWEST)


def _simple_gla(spec: Spec, k: Tensor, gates: Gates) -> dict[str, Any]:
    if gates.log_alpha is None:
        return {}
    if gates.log_beta is None and stands(gates.log_alpha):
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
    mesa: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: NewtonState, packed: dict[str, Tensor]
) -> tuple[Tensor, NewtonState]:
    """Ridge regression about W_0: fla's ridge is about zero, so it is given v - W_0 k and gives W - W_0."""
    assert gates.eta is not None and gates.ridge is not None
    bounds = [0, q.shape[1]] if not packed else packed["cu_seqlens"].tolist()
    decay = torch.zeros_like(gates.eta) if gates.log_alpha is None else gates.log_alpha
    away = state.value_key - state.anchor @ state.key_key
    y, key_key, key_value = mesa(
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
