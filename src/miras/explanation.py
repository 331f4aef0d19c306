"""How a spec will run on a device, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

import torch

from . import checks
from .algorithm import NonParametric
from .forms.chunk import family, no_chunks
from .memorize import Backend, Form, kernels_refuse
from .spec import Spec
from .types import Gate, Gates, require, require_count


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a spec will run, and why; ``where`` is the part of the reason that says by what."""

    form: Form
    backend: Backend
    exact: bool
    reason: str
    where: str

    def __str__(self) -> str:
        return f"form {self.form}, backend {self.backend}, {'exact' if self.exact else 'approximate'}: {self.reason}"


REASONS = {
    "attention": "softmax attention by torch's scaled_dot_product_attention over a cache that grows",
    "newton": "the linear systems of a chunk's tokens are solved at once",
    "delta": "a chunk's errors follow from one triangular system (WY transform)",
    "hebbian": "the write does not depend on what the memory holds, so a chunk is a gated linear attention",
    "scan": "gradients are taken at each chunk's start and the weights move linearly inside it; chunk_size=1 is exact",
}


class Asked(NamedTuple):
    """What of the calls is known: None where they may be of any kind."""

    device: torch.device
    gradients: bool
    dtype: torch.dtype | None
    channels: int | None
    chunk_size: int

    @property
    def usual(self) -> tuple[torch.dtype, int]:
        """The dtype and channels to ask about: those that are known, or the usual ones."""
        return self.dtype or torch.bfloat16, self.channels or 64


def explain(
    spec: Spec,
    device: torch.device | str = "cpu",
    *,
    gradients: bool = True,
    dtype: torch.dtype | None = None,
    channels: int | None = None,
    chunk_size: int | None = None,
) -> Explanation:
    """Which form and backend ``memorize`` takes for a spec on a device, whether that is exact, and why.

    ``gradients`` says whether the calls need them: without, some go to kernels that have no backward pass. ``dtype``,
    ``channels`` (of a head) and ``chunk_size`` are those of the calls; without them the answer is for 16-bit tokens of the
    usual widths.

    >>> from miras import explain, presets
    >>> print(explain(presets.gated_deltanet()))
    form chunk, backend torch, exact: a chunk's errors follow from one triangular system (WY transform); plain PyTorch on cpu
    """
    checks.spec_of(spec)
    require_count(channels=channels, chunk_size=chunk_size)
    floating = dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
    require(floating, f"dtype must be a floating-point torch.dtype or None, got {dtype!r}")
    require(isinstance(gradients, bool), f"gradients must be True or False, got {gradients!r}")
    asked = Asked(_device(device), gradients, dtype, channels, spec.chunk_size if chunk_size is None else chunk_size)
    backend: Backend = "torch"
    where = f"plain PyTorch on {asked.device.type}"
    refused = no_chunks(spec)
    if refused is not None:
        reason = f"token by token, by form='recurrent' alone, since {refused}; {where}"
        return Explanation(form="recurrent", backend=backend, exact=True, reason=reason, where=where)
    kind = family(spec)
    exact = kind != "scan" or asked.chunk_size == 1
    if isinstance(spec.algorithm, NonParametric):
        return Explanation(form="chunk", backend=backend, exact=exact, reason=f"{REASONS[kind]}; {where}", where=REASONS[kind])
    if asked.device.type == "cuda":
        backend, where = (explain_matrix if spec.memory.linear else explain_deep)(spec, asked)
    return Explanation(form="chunk", backend=backend, exact=exact, reason=f"{REASONS[kind]}; {where}", where=where)


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be a torch.device or the name of one, got {device!r}") from None


def refusal(spec: Spec, backend: Backend, asked: Asked) -> str | None:
    """Why a backend that is named cannot run the calls asked about, or None where it can."""
    if backend == "triton":
        return kernels_refuse(spec, asked.device, *asked.usual, asked.chunk_size, named=True)
    return fla_refuses(spec, asked, named=True) if backend == "fla" else None


def fla_refuses(spec: Spec, asked: Asked, named: bool = False, gates: Gates | None = None) -> str | None:
    """Why fla cannot run the calls asked about or, unless it is named, should not."""
    from .kernels import matrix_fla

    dtype, width = asked.usual
    call = matrix_fla.Call(asked.device, dtype, (width, width), gates, asked.gradients, named)
    return matrix_fla.why_not(spec, call)


def explain_deep(spec: Spec, asked: Asked) -> tuple[Backend, str]:
    """What a GPU does with a deep memory, and why."""
    device = asked.device
    refused = kernels_refuse(spec, device, *asked.usual, asked.chunk_size)
    backend: Backend = "torch" if refused else "triton"
    where = "fused kernels"
    if refused:
        where = f"plain PyTorch on {device.type}, since {refused}"
    else:
        from .kernels.mlp import widths
        from .kernels.proven import untried

        if asked.channels is None:
            known = widths(spec, device, asked.usual[0], asked.chunk_size)
            where += f" for {_either(known)} channels a head, plain PyTorch otherwise"
        single = [gate.name for gate in spec.gates if gate.name in ("mu", "log_alpha")]
        where += f" (plain PyTorch for a channel-wise {_either(single)})" if "mu" in single else ""
        where += f"; {said}" if (said := untried(device)) else ""
    if asked.gradients or find_spec("triton") is None:
        return backend, where
    from .kernels import decode

    refused = decode.why_not(spec, device, *asked.usual)
    if refused is not None:
        return backend, f"{where}; {refused}"
    left = ", a row's first of a chunk by plain PyTorch" if decode.maps(spec) else ""
    return backend, f"{where}; a token alone by the fused decoding step{left}"


def explain_matrix(spec: Spec, asked: Asked) -> tuple[Backend, str]:
    """What a GPU does with a matrix memory, and why."""
    from .kernels import matrix_fla

    device, backward = asked.device, asked.gradients
    refused = fla_refuses(spec, asked)
    if refused is not None:
        return "torch", f"plain PyTorch on {device.type}, since {refused}"
    found = matrix_fla.plan(spec)
    assert isinstance(found, matrix_fla.Plan)
    half = found.operation.half
    found = matrix_fla.settled(found, device, backward)
    assert isinstance(found, matrix_fla.Plan)
    where = f"fla's {found.operation.name}"
    if asked.dtype is None:
        where += " for bf16 and fp16, plain PyTorch for float32" + ("" if half else " unless TF32 is allowed")
    if asked.channels is None and backward and matrix_fla.compiled_wrong(*matrix_fla.machine(device)):
        where += " and" if asked.dtype is None else ", plain PyTorch"
        where += f" for heads whose channels are no multiple of {matrix_fla.WIDE}"
    wide = [gate.name for gate in spec.gates if _wide_refused(spec, gate, asked)]
    where += f" (plain PyTorch for a channel-wise {_either(wide)})" if wide else ""
    if found.twin_of is None:
        return "fla", where
    return "fla", f"{where}; a twin of {found.twin_of.name}, since {matrix_fla.broken_backward(found.twin_of)}"


def _wide_refused(spec: Spec, wide: Gate, asked: Asked) -> bool:
    """Whether fla refuses a spec where one of its gates, and no other that may be otherwise, is channel-wise."""
    if wide.width not in ("key", "value"):
        return False
    given = {gate.name: torch.empty(1, 1, 1, 2 if gate == wide or gate.width == "keys only" else 1) for gate in spec.gates}
    return fla_refuses(spec, asked, gates=Gates(**given)) is not None


def _either(options: Sequence[object]) -> str:
    """Options in words."""
    *most, last = map(str, options)
    return f"{', '.join(most)} or {last}" if most else last
