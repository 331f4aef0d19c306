"""How the memory moves."""

from .base import Algorithm, Descent
from .gradient_descent import GradientDescent
from .implicit import ImplicitGD
from .momentum import Momentum
from .multi_step import MultiStep
from .newton import Newton
from .non_parametric import NonParametric

__all__ = [
    "Algorithm",
    "Descent",
    "GradientDescent",
    "ImplicitGD",
    "Momentum",
    "MultiStep",
    "Newton",
    "NonParametric",
]
