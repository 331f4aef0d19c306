"""The example configurations: every one is read, builds a model, and is started by a script in ``runs/``."""

import argparse
import os
import re
from pathlib import Path

import pytest

from miras.data import Bytes
from miras.train.config import TrainConfig
from miras.train.models import model_config
from miras.train.options import add_options, build

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").iterdir())
SCRIPTS = sorted((ROOT / "runs").iterdir())


def read(path):
    parser = argparse.ArgumentParser()
    add_options(parser, TrainConfig)
    return build(TrainConfig, parser.parse_args(["--config", str(path)]))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_configuration_is_whole(path):
    config = read(path)
    assert model_config(config.model, Bytes()).num_hidden_layers > 0
    # eight GPUs share its batch evenly
    assert config.engine.micro_batch is None or config.data.batch % (8 * config.engine.micro_batch) == 0


def test_the_papers_four_sizes():
    expected = {"120m": (15e9, 3e-3), "340m": (15e9, 1.5e-3), "760m": (30e9, 1.25e-3), "1.3b": (100e9, 7e-4)}
    for size, (tokens, rate) in expected.items():
        config = read(ROOT / "configs" / f"yaad-{size}.yaml")
        assert config.optim.tokens == tokens and config.peak == rate and config.data.batch * config.data.length == 2**19
        assert config.data.max_tokens > tokens


def test_each_configuration_is_started_by_one_script():
    started = [re.search(r"--config (configs/\S+)", script.read_text())[1] for script in SCRIPTS]
    assert sorted(started) == [f"configs/{path.name}" for path in CONFIGS]
    assert all(os.access(script, os.X_OK) for script in SCRIPTS)
