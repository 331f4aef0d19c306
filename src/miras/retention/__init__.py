"""What is kept of the past: retention gates, local and global."""

from .base import Dual, Linear, Rates, Retention
from .bregman import Bregman, Link
from .elastic_net import ElasticNet, ElasticNetFTRL
from .f_divergence import Divergence, FDivergence
from .kl import KL
from .l2 import L2, Keep, L2Ball
from .lq import Lq

__all__ = [
    "KL",
    "L2",
    "Bregman",
    "Divergence",
    "Dual",
    "ElasticNet",
    "ElasticNetFTRL",
    "FDivergence",
    "Keep",
    "L2Ball",
    "Linear",
    "Link",
    "Lq",
    "Rates",
    "Retention",
]
