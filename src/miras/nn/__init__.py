"""Layers in plain PyTorch: a memory with projections, convolution and gates, blocks and stacks of them."""

from .attention import SlidingWindowAttention, WindowState
from .block import Block, Stack, SwiGLU
from .gates import GateRecipe
from .layer import MirasLayer, MirasState, Prepared
from .packing import Packing
from .recipes import RECIPES, Recipe, bounded, recipe_of

__all__ = [
    "RECIPES",
    "Block",
    "GateRecipe",
    "MirasLayer",
    "MirasState",
    "Packing",
    "Prepared",
    "Recipe",
    "SlidingWindowAttention",
    "Stack",
    "SwiGLU",
    "WindowState",
    "bounded",
    "recipe_of",
]
