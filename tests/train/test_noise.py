"""The response to noise while a model trains: measured now and then, reported, and without influence on the training."""

import dataclasses
import types

import pytest
import torch

from miras.data import Tokens
from miras.diagnostics import noise_response
from miras.hf import MirasConfig, MirasForCausalLM
from miras.train.config import EngineConfig, LogConfig, TrainConfig
from miras.train.noise import interval, measured, said

STEPS = ["--optim.steps", "4", "--log.eval_every", "3", "--log.every", "1"]


@pytest.fixture(scope="module")
def run(shared):
    assert shared.here("noise", *STEPS, "--log.noise_every", "2") == 0
    return shared.root / "noise"


def measurements(shared, name):
    return [line for line in shared.lines(name) if "noise_response" in line]


def test_it_is_measured_as_often_as_asked_for(run, shared, capsys):
    found = measurements(shared, "noise")
    assert [line["step"] for line in found] == [2, 4]
    assert all(1e-8 < line["noise_response"] < 1e-4 and 1e-4 < line["noise_bf16"] < 0.2 for line in found)
    assert shared.here("default", *STEPS) == 0
    assert [line["step"] for line in measurements(shared, "default")] == [3, 4]
    told = capsys.readouterr().err
    assert "step 3: noise of 1e-06 on the keys moves the memories by " in told and ", bf16 by " in told
    steps = [line for line in told.splitlines() if line.startswith("step ") and "loss" in line]
    assert [" noise " in line for line in steps] == [False, False, False, True]
    assert shared.here("never", *STEPS, "--log.noise_every", "0") == 0
    assert measurements(shared, "never") == []
    assert shared.losses("never") == shared.losses("default") == shared.losses("noise")


def test_it_is_that_of_the_saved_model(run, shared):
    model = MirasForCausalLM.from_pretrained(run / "model").eval()
    (folder,) = (shared.root / "cache").iterdir()
    tokens = torch.from_numpy(Tokens(folder, "valid").read(0, 32))[None]
    (found,) = noise_response(model, tokens).values()
    line = measurements(shared, "noise")[-1]
    assert line["noise_response"] == pytest.approx(float(found.response.max()), rel=1e-3)
    assert line["noise_bf16"] == pytest.approx(float(found.low_precision.mean()), rel=1e-3)


def test_compiled_blocks_are_measured_too(shared, run):
    torch.compiler.reset()
    model = MirasForCausalLM.from_pretrained(run / "model").eval()
    (folder,) = (shared.root / "cache").iterdir()
    config = TrainConfig()
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, length=32))
    corpus = types.SimpleNamespace(valid=Tokens(folder, "valid"))
    job = types.SimpleNamespace(
        config=config, corpus=corpus, language_model=model, engine=types.SimpleNamespace(device=torch.device("cpu"))
    )
    want = measured(job, 4)
    assert want["noise_response"] == pytest.approx(measurements(shared, "noise")[-1]["noise_response"], rel=1e-3)
    for block in model.model.layers:
        block.compile(backend="eager")
    with torch.no_grad():
        model(torch.arange(32)[None], use_cache=False)
    assert measured(job, 4) == want


def test_where_it_cannot_be_measured():
    def every(name, **changes):
        log = LogConfig(eval_every=7, **changes.pop("log", {}))
        model = MirasForCausalLM(MirasConfig.preset(name))
        return interval(TrainConfig(log=log, **changes), model)

    sharded = EngineConfig(parallel="fsdp")
    assert every("yaad-tiny") == 7 and every("yaad-tiny-h", log={"noise_every": 3}) == 3
    assert every("hgrn2-tiny") == every("yaad-tiny", engine=sharded) == every("hgrn2-tiny", log={"noise_every": 0}) == 0
    with pytest.raises(ValueError, match=r"log.noise_every: .* has no key to move, it is tied to the decay"):
        every("hgrn2-tiny", log={"noise_every": 3})
    with pytest.raises(ValueError, match=r"log.noise_every: with engine.parallel fsdp no process holds a whole memory"):
        every("yaad-tiny", engine=sharded, log={"noise_every": 3})
    with pytest.raises(ValueError, match=r"log.noise_every must be >= 0, got -1"):
        LogConfig(noise_every=-1)


def test_chaos_is_said():
    line = {"step": 5, "noise_response": 2e-6, "noise_bf16": 0.012}
    assert said(line) == "step 5: noise of 1e-06 on the keys moves the memories by 2.0e-06, bf16 by 1.2%"
    assert "a memory multiplies noise" in said({**line, "noise_response": 0.3})
