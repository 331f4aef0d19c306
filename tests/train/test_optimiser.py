import math

import pytest
import torch

from miras import presets
from miras.hf import MirasConfig, MirasForCausalLM
from miras.nn.convolution import ShortConvolution
from miras.nn.gates import Gate, Ridge
from miras.nn.initial import InitialMemory
from miras.train.config import OptimConfig
from miras.train.optimiser import adamw
from miras.train.schedule import rate_at


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_weight_decay_is_off_for_norms_gates_convolutions_and_memories(preset):
    model = MirasForCausalLM(MirasConfig.preset(f"{preset}-tiny"))
    decays, rests = adamw(model, OptimConfig(weight_decay=0.3), torch.device("cpu")).param_groups
    assert (decays["weight_decay"], rests["weight_decay"]) == (0.3, 0.0)
    groups = {id(parameter): group["weight_decay"] for group in (decays, rests) for parameter in group["params"]}
    assert set(groups) == {id(parameter) for parameter in model.parameters()}
    kinds = (Gate, Ridge, InitialMemory, ShortConvolution, torch.nn.RMSNorm)
    for module in model.modules():
        if isinstance(module, kinds):
            assert all(groups[id(parameter)] == 0 for parameter in module.parameters())
        elif isinstance(module, torch.nn.Linear):
            assert groups[id(module.weight)] == 0.3 and module.bias is None
    assert all(parameter.dim() == 2 for parameter in decays["params"])


def test_the_rate_rises_to_its_peak_and_falls_to_its_end():
    rates = [rate_at(step, steps=1000, peak=2.0, warmup=0.1, final=0.25) for step in range(1000)]
    assert rates[0] == pytest.approx(0.02) and max(rates) == rates[99] == rates[100] == 2.0
    assert rates[:100] == sorted(set(rates[:100])) and rates[100:] == sorted(set(rates[100:]), reverse=True)
    middle = 2.0 * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert rates[550] == pytest.approx(middle) and rates[-1] == pytest.approx(0.5, abs=1e-3)


def test_a_schedule_without_warm_up_or_of_one_step():
    assert rate_at(0, steps=10, peak=1.0, warmup=0.0, final=0.1) == 1.0
    assert rate_at(0, steps=1, peak=1.0, warmup=0.05, final=0.1) == 1.0
