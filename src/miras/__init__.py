"""Miras: sequence models that memorise at test time, as four choices.

>>> import miras
>>> print(miras.presets.deltanet())
deltanet: Matrix + L2 + Keep + GradientDescent
"""

from . import algorithm, bias, memory, presets, retention
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
    "presets",
    "recall",
    "retention",
]
