"""Work that is recorded: what is asked of it, and the same training as without."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from torch.utils._python_dispatch import TorchDispatchMode

from miras.hf import MirasConfig, MirasForCausalLM
from miras.train import passes
from miras.train.config import EngineConfig
from miras.train.models import Objective

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


def test_a_run_goes_on_with_or_without_a_graph(shared, on_the_cpu):
    """Recorded, taken back to step 3, and launched from there: the engine is no part of what a run is."""
    assert shared.here("begun", *STEPS, "--save.every", "3", "--save.keep", "3", "--engine.graph", "true") == 0
    before = losses(shared, "begun")
    for place in shared.checkpoints("begun")[1:]:
        shutil.rmtree(place)
    assert shared.here("begun", "--resume", "--engine.graph", "false") == 0
    assert losses(shared, "begun") == before and StandIn.made == 1


def test_without_a_gpu_one_line_says_so(shared, capsys):
    assert shared.here("refused", "--engine.graph", "true") == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said == "miras: engine.graph records the work of a GPU with CUDA, and this runs on cpu: give --engine.graph false"


@pytest.mark.parametrize(
    ("kind", "isolate", "said"),
    [("MULTI_GPU", False, "not for 2 of MULTI_GPU"), ("FSDP", False, "of FSDP"), ("NO", True, "data.isolate differ")],
)
def test_what_cannot_be_recorded_is_refused(kind, isolate, said):
    accelerator = SimpleNamespace(distributed_type=DistributedType(kind))
    on_a_gpu = {"device": torch.device("cuda"), "processes": 2, "accelerator": accelerator}
    with pytest.raises(ValueError, match=said):
        passes.check_recording(SimpleNamespace(config=EngineConfig(graph=True), **on_a_gpu), isolate)
    passes.check_recording(SimpleNamespace(config=EngineConfig(), **on_a_gpu), isolate)


def test_checkpointing_is_refused():
    with pytest.raises(ValueError, match="cannot record"):
        EngineConfig(graph=True, checkpointing=True)


@pytest.mark.parametrize(
    ("error", "told", "said"),
    [
        (RuntimeError("operation not permitted\nCompile with"), ValueError, r"recorded \(operation not permitted\): give"),
        (torch.OutOfMemoryError("no room"), torch.OutOfMemoryError, "no room"),
    ],
)
def test_a_recording_that_fails_says_why(monkeypatch, error, told, said):
    """In one line; but for want of memory, for which an experiment takes smaller micro-batches."""

    def failing(*given):
        raise error

    monkeypatch.setattr(passes, "Recorded", failing)
    with pytest.raises(told, match=said):
        passes.recording(lambda: None)


class Looked(TorchDispatchMode):
    """Writes down operators whose result the processor looks at: a GPU cannot record those, and a training waits for each."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.overloadpacket.__name__ in ("_local_scalar_dense", "masked_select", "nonzero", "is_nonzero", "equal"):
            self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["yaad", "moneta-anchored", "memora", "titans_lmm", "ttt_linear"])
def test_no_pass_looks_at_what_it_computes(name, monkeypatch):
    """By the kernels, in Triton's interpreter: what a GPU is to record. Nor is a tensor written out, which hides from modes."""
    pytest.importorskip("triton")
    for kind in (torch.Tensor, torch.nn.Parameter):
        monkeypatch.setattr(kind, "__repr__", lambda tensor: looked.names.append("repr") or "")
    config = MirasConfig.preset(
        f"{name}-tiny",
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=32,
        vocab_size=16,
        chunk_size=16,
    )
    model = Objective(MirasForCausalLM(config))
    model.model.set_backend("triton")
    tokens = torch.randint(16, (1, 33))
    with Looked() as looked:
        model(tokens[:, :-1], tokens[:, 1:], None, 32).backward()
    assert looked.names == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", ["4", "2"])
def test_a_gpu_replays_the_same_training(shared, rows):
    common = [*STEPS, "--engine.device", "auto", "--engine.micro_batch", rows, "--model.dim", "96"]
    assert shared.here(f"gpu-launched-{rows}", *common) == 0
    assert shared.here(f"gpu-recorded-{rows}", *common, "--engine.graph", "true") == 0
    assert losses(shared, f"gpu-recorded-{rows}") == losses(shared, f"gpu-launched-{rows}")
