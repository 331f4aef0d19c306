"""Tiny models in float64, the same each time."""

import torch

from miras.hf import MirasConfig, MirasForCausalLM


def build(name, **changes):
    torch.manual_seed(0)
    config = MirasConfig.preset(name, eos_token_id=None, **changes)
    return MirasForCausalLM(config).double().eval()
