import json
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from miras.cli import main
from miras.hf import MirasConfig, MirasForCausalLM
from miras.train.plan import estimate, flops_per_token, measurements, nearest, parameters_of

ROW = {
    "model": "yaad-tiny",
    "length": 128,
    "micro_batch": 4,
    "tokens_per_second": 1000.0,
    "peak_memory_gb": 2.0,
    "flops_per_token": 1e6,
    "parameters": 1000,
}


@pytest.fixture
def measured(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"date": "2026-01-01", "commit": "abc", "device": "Some GPU", "rows": [ROW]}))
    return path


@pytest.mark.parametrize("name", ["yaad-tiny", "gated_deltanet-tiny"])
def test_flops_are_those_of_the_whole_model(name):
    """Against a count of the whole model, forward and backward, over twice as many tokens."""
    config = MirasConfig.preset(name)
    model, ids = MirasForCausalLM(config), torch.randint(0, 256, (1, 256))
    with FlopCounterMode(display=False) as counter:
        model(ids, use_cache=False).logits.sum().backward()
    assert flops_per_token(config, 256) == pytest.approx(counter.get_total_flops() / 256, rel=0.03)


def test_attention_costs_more_over_longer_sequences():
    whole = MirasConfig.preset("transformer-tiny")
    assert flops_per_token(whole, 4096) - flops_per_token(whole, 2048) == pytest.approx(12 * 64 * 1024 * 2)
    window = MirasConfig.preset("yaad-tiny-h")
    # half of the blocks see 32 tokens each, but for the first few
    assert flops_per_token(window, 10**9) - flops_per_token(window, 32) == pytest.approx(12 * 64 * 16, rel=1e-3)


def test_parameters_are_counted_without_making_them():
    assert parameters_of(MirasConfig.preset("yaad-1.3b")) == pytest.approx(1.3e9, rel=0.05)


def test_hours_scale_with_gpus_and_flops(measured):
    (row,) = measurements(measured)
    one = estimate(1000, 1e6, 3.6e6, 1, False, row)
    assert one.hours == pytest.approx(1.0) and one.state_gb == pytest.approx(16e-6)
    eight = estimate(1000, 2e6, 3.6e6, 8, True, row)
    assert eight.hours == pytest.approx(2 / (8 * 0.9)) and eight.state_gb == pytest.approx(2e-6)
    assert estimate(1000, 1e6, 1.0, 1, False, None).hours is None


def test_the_nearest_measurement(measured):
    known = measurements(measured)
    assert nearest(known, "yaad-tiny", 5.0) is known[0] and nearest(known, "yaad-340m", 5.0) is known[0]
    assert nearest(known, "moneta-340m", 5.0) is None


def test_the_command_says_what_it_rests_on(measured, capsys):
    argv = ["plan", "--model.name", "yaad-tiny", "--optim.steps", "10", "--gpus", "1,8"]
    assert main([*argv, "--measured", str(measured)]) == 0
    text = capsys.readouterr().out
    assert " tokens/s on one Some GPU: 1,000, measured with this very model at 1e+06 FLOPs a token" in text
    assert "train.json, 2026-01-01, commit abc" in text
    # ten small steps take less than an hour
    assert "   1 GPU " in text and "   8 GPUs" in text and "hours" not in text and "an assumption" in text
    assert all(re.search(r" \d+(m\d\d)?s$", line) for line in text.splitlines() if " GPU" in line[:10])
    assert main([*argv, "--optim.steps", "1000000", "--measured", str(measured)]) == 0
    assert capsys.readouterr().out.count("hours") == 2
    assert main([*argv, "--model.name", "moneta-tiny", "--measured", str(measured)]) == 0
    text = capsys.readouterr().out
    assert "not measured for this preset, so there are no hours" in text and text.count("hours") == 1


def test_bad_measurements(tmp_path, capsys):
    (tmp_path / "a.json").write_text("{}")
    for path, message in ((tmp_path / "a.json", "is not a file of measurements"), (tmp_path / "b.json", "no such file of")):
        assert main(["plan", "--model.name", "yaad-tiny", "--measured", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert main(["plan", "--gpus", "many"]) == 2
    assert "--gpus takes numbers such as 8,64, got 'many'" in capsys.readouterr().err
