"""Matrix memories by the kernels of flash-linear-attention: which spec is which of its operations, and where they can run."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from ..algorithm import GradientDescent, ImplicitGD, MultiStep, Newton, NonParametric
from ..bias import L2 as L2Bias
from ..bias import DotProduct
from ..memory import Matrix
from ..retention import L2, Keep
from ..spec import Spec
from ..types import Gates

# asked once: a compiler cannot follow the search for a module
FOUND = find_spec("fla") is not None and find_spec("triton") is not None


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

# one decay a head is one a key channel, all of them alike: what is gated may be run so, by a backward pass of its own
TWINS = {"simple_gla": "gla", "gated_delta": "kda"}

# the channels, and multiples of them, whose gradients were right wherever Triton compiles narrow ones incorrectly
WIDE = 64


class Plan(NamedTuple):
    """How fla runs a spec: its operation, whether the backward pass of that is the gated one, and whose twin it is if of any."""

    operation: Operation
    key: str
    gated: bool = False
    twin_of: Operation | None = None


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
    return _planned("simple_gla", gated=not (kept.schedule is not None or (gates is not None and stands(gates.log_alpha))))


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


def stands(decay: Tensor | None) -> bool:
    """Whether a decay is the same in every row and token and needs no gradient: fla has a backward pass of its own for that."""
    return decay is not None and decay.stride()[:2] == (0, 0) and not decay.requires_grad


class Call(NamedTuple):
    """What of a call decides whether fla runs it: ``backward`` where it needs gradients, ``named`` where fla was asked for."""

    device: torch.device
    dtype: torch.dtype
    widths: tuple[int, int] = (64, 64)  # channels of a key and of a value
    gates: Gates | None = None
    backward: bool = True
    named: bool = False


def why_not(spec: Spec, call: Call) -> str | None:
    """Why fla cannot run a call, or, unless it is named, should not; None where it can."""
    device, dtype, widths, gates, backward, named = call
    found = plan(spec, gates)
    if isinstance(found, str):
        return found
    name = found.operation.name
    if not FOUND:
        return "fla is not installed: pip install 'miras-torch[gpu]'"
    if no_device(device):
        return f"fla's kernels need an NVIDIA GPU, not {device.type}"
    if dtype not in (torch.bfloat16, torch.float16, *(() if found.operation.half else (torch.float32,))):
        return f"fla's {name} takes bf16 and fp16{'' if found.operation.half else ' and float32'}, not {dtype}"
    if found.key == "mesa" and widths[0] != widths[1]:
        return f"fla's {name} takes keys and values of one width"
    here = settled(found, device, backward)
    if isinstance(here, str):
        return here
    name = here.operation.name
    narrow = [width for width in widths if width % WIDE]
    # of mesa the forward pass too failed its comparison there, at 32 channels
    forward = found.key == "mesa"
    if (backward or forward) and narrow and dtype != torch.float32 and compiled_wrong(*machine(device)):
        return (
            f"{'' if forward else 'the backward pass of '}fla's {name} is wrong for {narrow[0]} channels in 16 bits on Hopper under "
            f"Triton 3.4 to 3.7.0: give multiples of {WIDE}, install Triton 3.7.1 or later{'' if forward else ', or call without gradients'}"
        )
    if not named and dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return f"fla's {name} multiplies float32 in TF32, which torch.set_float32_matmul_precision('high') allows"
    if not named and not found.operation.exact:
        return f"fla's {name} solves by conjugate gradients in fp16, which is not exact: backend='fla' asks for it"
    return None


def settled(found: Plan, device: torch.device, backward: bool) -> Plan | str:
    """A plan on a machine: itself, or, where its backward pass is needed and wrong, its twin, or why fla refuses."""
    if not (backward and found.gated and compiled_wrong(*machine(device))):
        return found
    if found.key not in TWINS:
        return f"{broken_backward(found.operation)}: install Triton 3.7.1 or later, or call without gradients"
    return _planned(TWINS[found.key])._replace(twin_of=found.operation)


def no_device(device: torch.device) -> bool:
    """Whether fla has no kernels for a device."""
    return device.type != "cuda"


def machine(device: torch.device) -> tuple[int, str]:
    """The major compute capability of a device, 0 where there is none, and the version of Triton."""
    from triton import __version__

    major = torch.cuda.get_device_capability(device)[0] if torch.cuda.is_available() else 0
    return major, __version__


def compiled_wrong(major: int, triton: str) -> bool:
    """Whether Triton compiles some of fla's backward passes incorrectly: on Hopper, from 3.4.0 to before 3.7.1.

    fla itself refuses the gated one then. Others are wrong for narrow heads: of 32 value channels, in bf16 and under Triton 3.6,
    the gradients of linear attention and of the delta rule; 64 are right, and so is float32.
    """
    version = tuple(map(int, re.findall(r"\d+", triton)[:3]))
    return major == 9 and (3, 4, 0) <= version < (3, 7, 1)


def broken_backward(operation: Operation) -> str:
    """What is said of a backward pass that fla refuses."""
    return (
        f"fla {metadata.version('fla-core')} refuses the backward pass of its {operation.name} on Hopper under Triton 3.4 to 3.7.0, "
        "which compile it incorrectly"
    )
