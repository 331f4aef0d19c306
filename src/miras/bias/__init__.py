"""What is minimised on each key-value pair."""

from .base import Bias
from .dot_product import DotProduct
from .huber import Huber
from .l2 import L2
from .lp import L1, Lp
from .value_shift import ValueShift

__all__ = ["L1", "L2", "Bias", "DotProduct", "Huber", "Lp", "ValueShift"]
