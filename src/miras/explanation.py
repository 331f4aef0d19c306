"""How a spec will run on a device, and why, in words."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

from . import checks
from .algorithm import NonParametric
from .forms.chunk import family, no_chunks
from .memorize import Backend, Form, kernels_refuse
from .spec import Spec


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a spec will run, and why."""

    form: Form
    backend: Backend
    exact: bool
    reason: str

    def __str__(self) -> str:
        return f"form {self.form}, backend {self.backend}, {'exact' if self.exact else 'approximate'}: {self.reason}"


REASONS = {
    "attention": "softmax attention by torch's scaled_dot_product_attention over a cache that grows",
    "newton": "the linear systems of a chunk's tokens are solved at once",
    "delta": "a chunk's errors follow from one triangular system (WY transform)",
    "hebbian": "the write does not depend on what the memory holds, so a chunk is a gated linear attention",
    "scan": "gradients are taken at each chunk's start and the weights move linearly inside it; chunk_size=1 is exact",
}


def explain(spec: Spec, device: torch.device | str = "cpu", *, gradients: bool = True) -> Explanation:
    """Which form and backend ``memorize`` takes for a spec on a device, whether that is exact, and why.

    ``gradients`` says whether the calls need them: without, some go to kernels that have no backward pass.

    >>> from miras import explain, presets
    >>> print(explain(presets.gated_deltanet()))
    form chunk, backend torch, exact: a chunk's errors follow from one triangular system (WY transform); plain PyTorch on cpu
    """
    checks.spec_of(spec)
    device = torch.device(device)
    refused = no_chunks(spec)
    if refused is not None:
        reason = f"token by token, by form='recurrent' alone, since {refused}; plain PyTorch on {device.type}"
        return Explanation(form="recurrent", backend="torch", exact=True, reason=reason)
    kind = family(spec)
    backend: Backend = "torch"
    where = f"plain PyTorch on {device.type}"
    if device.type == "cuda" and not isinstance(spec.algorithm, NonParametric):
        deep = not spec.memory.linear
        backend, where = (explain_deep if deep else explain_matrix)(spec, device, gradients)
    return Explanation(form="chunk", backend=backend, exact=kind != "scan", reason=f"{REASONS[kind]}; {where}")


def explain_deep(spec: Spec, device: torch.device, gradients: bool) -> tuple[Backend, str]:
    """What a GPU does with a deep memory, and why."""
    refused = kernels_refuse(spec, device, torch.bfloat16, 64, spec.chunk_size)
    backend: Backend = "torch" if refused else "triton"
    where = "fused kernels for 48, 64, 96 or 128 channels a head, plain PyTorch otherwise"
    where += " (and for a channel-wise mu or log_alpha)" if "mu" in {gate.name for gate in spec.gates} else ""
    where = f"plain PyTorch on {device.type}, since {refused}" if refused else where
    if gradients or find_spec("triton") is None:
        return backend, where
    from .kernels import decode

    refused = decode.why_not(spec, device, torch.bfloat16, 64)
    return backend, where + ("; a token alone by the fused decoding step" if refused is None else f"; {refused}")


def explain_matrix(spec: Spec, device: torch.device, gradients: bool) -> tuple[Backend, str]:
    """What a GPU does with a matrix memory, and why."""
    from .kernels import matrix_fla

    refused = matrix_fla.why_not(spec, matrix_fla.Call(device, torch.bfloat16, backward=gradients))
    if refused is not None:
        return "torch", f"plain PyTorch on {device.type}, since {refused}"
    found = matrix_fla.plan(spec)
    assert isinstance(found, matrix_fla.Plan)
    found = matrix_fla.settled(found, device, gradients)
    assert isinstance(found, matrix_fla.Plan)
    where = f"fla's {found.operation.name} for bf16 and fp16, plain PyTorch for float32 unless TF32 is allowed"
    if gradients and matrix_fla.compiled_wrong(*matrix_fla.machine(device)):
        where += f" and for heads whose channels are no multiple of {matrix_fla.WIDE}"
    if found.twin_of is None:
        return "fla", where
    return "fla", f"{where}; a twin of {found.twin_of.name}, since {matrix_fla.broken_backward(found.twin_of)}"
