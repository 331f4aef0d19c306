"""AdamW, with weight decay on matrices alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .config import OptimConfig


def decayed(model: nn.Module) -> set[int]:
    """The ids of the parameters that weight decay acts on: the matrices of linear maps and embeddings, and nothing else."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)}


def adamw(model: nn.Module, config: OptimConfig, device: torch.device) -> torch.optim.AdamW:
    """The optimiser of a model: one group of matrices, one of everything else, fused where torch has it."""
    chosen = decayed(model)
    named = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in named if id(parameter) in chosen], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in named if id(parameter) not in chosen], "weight_decay": 0.0},
    ]
    fused = device.type in ("cuda", "cpu", "xpu")
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=fused)
