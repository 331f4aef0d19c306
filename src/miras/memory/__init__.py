"""What stores: a vector, a matrix, an MLP."""

from .base import Factor, Map, Memory, Side
from .matrix import Matrix
from .mlp import MLP
from .vector import Vector

__all__ = ["MLP", "Factor", "Map", "Matrix", "Memory", "Side", "Vector"]
