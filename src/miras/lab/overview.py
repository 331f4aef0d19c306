"""The paper's Table 1, from the presets themselves."""

from __future__ import annotations

from .. import presets
from ..memory import MLP
from ..spec import Spec
from .tables import Table


def is_deep(spec: Spec) -> bool:
    """Whether the memory has more than one layer, which is where the paper's table draws its line."""
    return isinstance(spec.memory, MLP) and spec.memory.depth > 1


def table_of_presets() -> Table:
    """Every preset with its four choices and its write rule."""
    groups: dict[str, list[list[str]]] = {"Shallow memory": [], "Deep memory": []}
    for name in presets.PRESETS:
        spec = presets.get(name)
        row = [name, spec.memory.label, spec.bias.label, spec.retention.label, spec.algorithm.short]
        groups["Deep memory" if is_deep(spec) else "Shallow memory"].append([*row, spec.describe().write.text])
    return Table(["model", "memory", "bias", "retention", "algorithm", "write rule"], groups, code=True)
