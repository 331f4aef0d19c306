"""What stores: a vector, a matrix, an MLP."""

from .base import Factor, Map, Memory
from .matrix import Matrix
from .mlp import MLP
from .vector import Vector

__all__ = ["MLP", "Factor", "Map", "Matrix", "Memory", "Vector"]
