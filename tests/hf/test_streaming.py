"""A short version of experiments/streaming: the cache does not grow, a stream beyond any training length stays finite."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from miras.hf import MirasCache, MirasConfig, MirasForCausalLM

SCRIPT = Path(__file__).parents[2] / "experiments" / "streaming" / "run.py"


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("streaming_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_experiment_in_short(run):
    lines = list(run.stream("yaad-anchored-tiny", 8000, 500))
    found = run.summary(lines)
    assert found["finite"] and found["tokens"] == 8000
    assert found["memory_strays"] < 0.05


@pytest.mark.parametrize("name", ["yaad-tiny", "moneta-tiny", "memora-tiny", "gated_deltanet-tiny", "yaad-tiny-h"])
@torch.no_grad()
def test_the_cache_does_not_grow(name):
    torch.manual_seed(0)
    model = MirasForCausalLM(MirasConfig.preset(name)).eval()
    cache, sizes = MirasCache(len(model.model.layers)), []
    for _ in range(3):
        model(input_ids=torch.randint(259, (1, 128)), past_key_values=cache)
        sizes.append(sum(x.numel() for x in pytree.tree_leaves(cache.states) if isinstance(x, torch.Tensor)))
    assert sizes[0] == sizes[1] == sizes[2]
