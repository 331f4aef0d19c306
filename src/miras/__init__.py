"""Miras: sequence models that memorise at test time, as four choices.

>>> import miras
>>> print(miras.presets.deltanet())
deltanet: Matrix + L2 + Keep + GradientDescent
"""

from typing import Any

from . import algorithm, bias, memory, nn, presets, retention
from .explanation import Explanation, explain
from .memorize import memorize, recall
from .spec import Spec
from .types import CacheState, Gates, NewtonState, Norm, State

__version__ = "0.1.0"

__all__ = [
    "CacheState",
    "Explanation",
    "Gates",
    "NewtonState",
    "Norm",
    "Spec",
    "State",
    "algorithm",
    "bias",
    "explain",
    "memorize",
    "memory",
    "nn",
    "presets",
    "recall",
    "retention",
]

# these need transformers, which is imported when one of them is asked for
_LANGUAGE_MODEL = ("MirasConfig", "MirasForCausalLM", "MirasModel")


def __getattr__(name: str) -> Any:
    if name in _LANGUAGE_MODEL:
        try:
            from . import hf
        except ModuleNotFoundError as error:
            if error.name != "transformers":
                raise
            raise ModuleNotFoundError(
                f"miras.{name} needs transformers: pip install 'miras-torch[hf]'", name=error.name
            ) from None
        return getattr(hf, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
