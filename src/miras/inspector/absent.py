"""What a memory does not have, in words, so that the page can say it instead of showing nothing."""

from __future__ import annotations

from ..algorithm import Descent, NonParametric
from ..bias import DotProduct, Huber, ValueShift
from ..nn import SlidingWindowAttention
from ..retention import L2, ElasticNet, ElasticNetFTRL
from ..spec import Spec


def absent_from_attention(mixer: SlidingWindowAttention) -> dict[str, str]:
    """The one thing to say of a hybrid's attention."""
    return {
        "Everything below": f"this block is softmax attention over the last {mixer.window} tokens: it keeps pairs as they are, "
        "has no weights that learn while it reads, and so no surprise, no gates and no norms"
    }


def absent(spec: Spec) -> dict[str, str]:
    """What a memory of this spec does not have or does not vary, each with the reason."""
    if isinstance(spec.algorithm, NonParametric):
        return {
            "Everything below": "softmax attention keeps every pair as it is: it has no weights that learn while it reads, and "
            "so no surprise, no gates and no norms"
        }
    return {**_errors(spec), **_gates(spec), **_thresholds(spec)}


def _errors(spec: Spec) -> dict[str, str]:
    if spec.decoupled:
        return {"Error": "one key is removed and another written; the surprise is the size of the whole change"}
    if spec.memory.linear and isinstance(spec.bias, DotProduct):
        return {
            "Error": "the dot-product bias writes v k' whatever the memory holds: it never compares its prediction with the "
            "value, and the surprise is the size of the write"
        }
    return {}


def _gates(spec: Spec) -> dict[str, str]:
    """Gates that are fixed or missing."""
    found: dict[str, str] = {}
    fixed = spec.algorithm.fixed_eta if isinstance(spec.algorithm, Descent) else None
    if fixed is not None:
        found["Step"] = f"fixed at {fixed:g}, not a gate"
    if isinstance(spec.retention, L2) and spec.retention.schedule is not None:
        found["Retention"] = "one fixed number a head, not a gate"
    elif not any(gate.name == "log_alpha" for gate in spec.gates) and not isinstance(spec.retention, ElasticNet):
        found["Retention"] = f"{spec.retention.label} has no decay: the memory lets go only by writing over what it holds"
    return found


def _thresholds(spec: Spec) -> dict[str, str]:
    """What cuts errors, and what cuts weights."""
    found: dict[str, str] = {}
    if isinstance(spec.bias, ValueShift):
        found["Clipping"] = "the value-shift bias adds its threshold to the error and clips nothing"
    elif not isinstance(spec.bias, Huber):
        found["Threshold"] = f"the {spec.bias.label} bias has none: no error is clipped"
    elif spec.bias.delta is not None:
        found["Threshold"] = f"fixed at {spec.bias.delta:g}, not a gate; what it clips is shown"
    if not isinstance(spec.retention, ElasticNet | ElasticNetFTRL):
        found["Soft threshold"] = f"{spec.retention.label} retention has none: no weight is set to zero"
    elif spec.retention.smooth:
        found["Zeros"] = "the smooth soft threshold shrinks weights and sets none to zero"
    return found
