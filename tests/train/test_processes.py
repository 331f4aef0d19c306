"""Several processes: the same curve, the same checkpoints; and a run that is killed again and again."""

import random
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from miras.train import checkpoint

# at the default rate of 4e-3 Adam lets rounding grow to 1e-3 within 50 steps, in one process cut into other micro-batches too
STEPS = [
    "--optim.steps",
    "50",
    "--optim.lr",
    "1e-3",
    "--save.every",
    "25",
    "--log.eval_every",
    "25",
    "--engine.micro_batch",
    "1",
]


@pytest.fixture(scope="module")
def one(shared):
    """50 steps in one process."""
    assert shared.here("one", *STEPS) == 0
    return shared


@pytest.fixture(scope="module")
def sharded(one):
    """The same in two processes, each with half of every parameter."""
    one.elsewhere("fsdp", *STEPS, "--engine.parallel", "fsdp", processes=2)
    return one


def curve(lab, name):
    """Every training and validation loss, by kind and step."""
    return {(key, line["step"]): line[key] for line in lab.lines(name) for key in ("loss", "valid_loss") if key in line}


def test_two_copies_give_the_same_curve(one):
    one.elsewhere("ddp", *STEPS, processes=2)
    about = one.about("ddp")["starts"][0]
    assert (about["processes"], about["sharded_parameters"]) == (2, 0)
    assert len(curve(one, "ddp")) == 52 and curve(one, "ddp") == pytest.approx(curve(one, "one"), abs=1e-4)


def test_two_shards_give_the_same_curve(sharded):
    about = sharded.about("fsdp")["starts"][0]
    weights = load_file(sharded.checkpoints("fsdp")[0] / checkpoint.MODEL)
    # every single parameter is a DTensor, so this cannot pass as copies
    assert (about["processes"], about["engine"]) == (2, "FSDP") and about["sharded_parameters"] == len(weights) > 10
    assert len(curve(sharded, "fsdp")) == 52 and curve(sharded, "fsdp") == pytest.approx(curve(sharded, "one"), abs=1e-4)


def half_of(lab, name, copy):
    """A copy of a run that has only the checkpoint of step 25."""
    shutil.copytree(lab.root / name, lab.root / copy)
    shutil.rmtree(lab.root / copy / "checkpoints" / "step-00000050")


def test_saved_by_two_goes_on_in_one(sharded):
    half_of(sharded, "fsdp", "two-one")
    assert sharded.here("two-one", *STEPS, "--resume", "--engine.parallel", "ddp") == 0
    assert curve(sharded, "two-one") == pytest.approx(curve(sharded, "fsdp"), abs=1e-4)
    assert [start["processes"] for start in sharded.about("two-one")["starts"]] == [2, 1]


def test_saved_by_one_goes_on_in_two(one):
    half_of(one, "one", "one-two")
    one.elsewhere("one-two", *STEPS, "--resume", "--engine.parallel", "fsdp", processes=2)
    assert curve(one, "one-two") == pytest.approx(curve(one, "one"), abs=1e-4)
    assert one.about("one-two")["starts"][1]["sharded_parameters"] > 10
    # what two processes put together again is what one has, moments included
    for name in (checkpoint.MODEL, checkpoint.OPTIMISER):
        mine, theirs = (load_file(one.checkpoints(run)[-1] / name) for run in ("one", "one-two"))
        assert mine.keys() == theirs.keys()
        assert all(torch.allclose(mine[key], theirs[key], atol=1e-4) for key in mine)


def test_killed_twice_is_bit_identical(lab):
    """kill -9 at two random moments, then on to the end: the same bits as a run that nobody touched."""
    steps = ["--optim.steps", "75", "--save.every", "7", "--log.eval_every", "20"]
    assert lab.here("calm", *steps) == 0
    chance = random.Random(0)
    for floor in (10, 40):
        goal = chance.randrange(floor, floor + 25)
        process = lab.start("killed", *steps, "--resume")
        while len(lab.losses("killed")) < goal:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert lab.here("killed", *steps, "--resume") == 0
    assert len(lab.about("killed")["starts"]) == 3
    for name in (checkpoint.MODEL, checkpoint.OPTIMISER):
        calm, killed = (load_file(lab.checkpoints(run)[-1] / name) for run in ("calm", "killed"))
        assert calm.keys() == killed.keys() and all(torch.equal(calm[key], killed[key]) for key in calm)
    assert lab.losses("killed") == lab.losses("calm") and len(lab.losses("calm")) == 75


def test_shards_in_bf16(shared):
    """Parameters are gathered in bf16, but the loss keeps float32's digits and stays near."""
    short = [*STEPS, "--optim.steps", "6"]
    shared.elsewhere("low", *short, "--engine.parallel", "fsdp", "--engine.precision", "bf16", processes=2)
    assert shared.here("high", *short) == 0
    losses = shared.losses("low")
    assert shared.about("low")["starts"][0]["sharded_parameters"] > 10
    assert losses == pytest.approx(shared.losses("high"), abs=0.03)
    assert all(loss != float(torch.tensor(loss).bfloat16()) for loss in losses.values())
