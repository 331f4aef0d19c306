"""Work that is recorded: what is asked of it, and the same training as without."""

import pytest
import torch

from miras.train import passes
from miras.train.config import EngineConfig

STEPS = ["--optim.steps", "7", "--log.eval_every", "3", "--log.plot", "false", "--log.noise_every", "0"]


class StandIn:
    """Does again what a graph would replay, with what it gave left in one place."""

    made = 0

    def __init__(self, work, *given):
        type(self).made += 1
        self.work, self.sizes = work, [x.shape for x in given]
        self.results = torch.zeros(())

    def replay(self, *given):
        assert [x.shape for x in given] == self.sizes
        return self.results.copy_(self.work(*given))


@pytest.fixture
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(passes, "Recorded", StandIn)
    monkeypatch.setattr("miras.train.command.check_recording", lambda engine, isolate: None)
    monkeypatch.setattr(StandIn, "made", 0)


def losses(shared, name):
    return [line.get("loss", line.get("valid_loss")) for line in shared.lines(name)]


@pytest.mark.parametrize("rows", ["4", "1"])
def test_a_recorded_training_is_the_same(shared, on_the_cpu, rows):
    """One micro-batch a step, and several, whose gradients add up from 0."""
    cut = ["--engine.micro_batch", rows]
    assert shared.here(f"launched-{rows}", *STEPS, *cut) == 0
    assert StandIn.made == 0
    assert shared.here(f"recorded-{rows}", *STEPS, *cut, "--engine.graph", "true") == 0
    assert StandIn.made == 1
    assert losses(shared, f"recorded-{rows}") == losses(shared, f"launched-{rows}")


def test_gradients_that_overflowed_are_gone_in_the_next_step(shared, on_the_cpu, monkeypatch):
    """A skipped step leaves NaN where the gradients stand, and the next one starts from 0."""
    calls, call = [], passes.Passes.__call__

    def overflowing(self, *given):
        loss = call(self, *given)
        calls.append(loss)
        if len(calls) == passes.WARM + 1:
            for parameter in self.model.parameters():
                parameter.grad.fill_(torch.nan)
        return loss

    monkeypatch.setattr(passes.Passes, "__call__", overflowing)
    assert shared.here("broken", *STEPS, "--engine.graph", "true") == 0
    lines = [line for line in shared.lines("broken") if "loss" in line]
    assert "skipped" in lines[passes.WARM] and all("skipped" not in line for line in lines[passes.WARM + 1 :])


def test_what_cannot_be_recorded_is_refused(shared, capsys):
    def said(*more):
        assert shared.here("refused", "--engine.graph", "true", *more) == 2
        return capsys.readouterr().err.strip().splitlines()[-1]

    assert said() == "miras: engine.graph records a GPU's work, and there is none: leave --engine.graph away"
    with pytest.raises(ValueError, match="cannot record"):
        EngineConfig(graph=True, checkpointing=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", ["4", "2"])
def test_a_gpu_replays_the_same_training(shared, rows):
    common = [*STEPS, "--engine.device", "auto", "--engine.micro_batch", rows, "--model.dim", "96"]
    assert shared.here(f"gpu-launched-{rows}", *common) == 0
    assert shared.here(f"gpu-recorded-{rows}", *common, "--engine.graph", "true") == 0
    assert losses(shared, f"gpu-recorded-{rows}") == losses(shared, f"gpu-launched-{rows}")
