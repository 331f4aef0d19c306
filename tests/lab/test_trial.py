"""Trials: small versions are learned, all models are of one size, results repeat, time is kept."""

import dataclasses

import pytest
import torch

from miras.lab.contestant import Contestant
from miras.lab.learner import learner_of
from miras.lab.tasks import MQAR, LinearRegression, NoisyVectors
from miras.lab.trial import OutOfTimeError, Run, Trial, optimiser_of, perform

CPU = torch.device("cpu")
MODELS = ["transformer", "gla", "deltanet", "gated_deltanet", "ttt_linear"]
MODELS += [name + form for name in ("titans_lmm", "moneta", "yaad", "memora") for form in ("", "-anchored")]
SMALL = MQAR(vocab=32, pairs=3, length=20, filler="blank")


def small(name, **changes):
    settings = {"task": SMALL, "model": Contestant(name=name, width=32, heads=1), "rows": 16, "steps": 3, "check": 3}
    return Trial(**{**settings, **changes})


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize(("name", "width", "rate"), [("yaad", 32, 6e-3), ("deltanet", 32, 6e-3), ("gated_deltanet", 64, 4e-3)])
def test_a_small_version_of_multi_query_recall_is_learned(name, width, rate):
    task = MQAR(vocab=32, pairs=4, length=24, filler="blank")
    model = Contestant(name=name, width=width, heads=1)
    result = perform(Trial(task=task, model=model, rate=rate, steps=300, rows=32, check=25), CPU, rows=64)
    assert result["score"] > 0.95 and result["solved_at"] is not None
    assert list(result["readings"]) == ["1x", "2x", "4x", "8x", "16x"]
    assert result["readings"]["2x"] > 0.9


@pytest.mark.parametrize("width", [64, 128])
def test_all_models_have_the_same_number_of_parameters(width):
    with torch.device("meta"):
        sizes = {name: learner_of(Contestant(name=name, width=width), SMALL).body() for name in MODELS}
    assert max(sizes.values()) < 1.03 * min(sizes.values()), sizes


@pytest.mark.parametrize("task", [LinearRegression(dim=2, length=12), NoisyVectors(pairs=2, shows=3, length=8)])
def test_vectors_are_learned_through_maps_of_their_own(task):
    run = Run(small("deltanet", task=task, rate=1e-2, steps=60, decay=0.0), CPU)
    before = run.score(task, 256, 0)
    for step in range(60):
        run.step(step)
    assert run.score(task, 256, 0) > before + 0.15


def test_a_trial_repeats():
    one, other = (perform(small("yaad"), CPU, rows=16) for _ in range(2))
    assert one["curve"] == other["curve"] and one["readings"] == other["readings"]
    assert perform(small("yaad", seed=1), CPU, rows=16)["curve"] != one["curve"]


def test_a_trial_that_would_take_too_long_is_given_up():
    with pytest.raises(OutOfTimeError, match=r"steps of .* s would take longer than the"):
        perform(small("deltanet", steps=100_000, check=1000), CPU, seconds=20, rows=16)


def test_embeddings_and_gates_do_not_decay():
    learner = learner_of(Contestant(name="yaad", width=32, heads=1), SMALL)
    decayed, rest = (group["params"] for group in optimiser_of(learner, 0.1, CPU).param_groups)
    named = {id(parameter): name for name, parameter in learner.named_parameters()}
    assert len(decayed) + len(rest) == len(named)
    assert all(named[id(parameter)].endswith("proj.weight") for parameter in decayed)
    assert "model.model.embed_tokens.weight" in {named[id(parameter)] for parameter in rest}


def test_the_laboratory_gives_each_model_its_start():
    assert Contestant(name="yaad-anchored").settled().step_start == 0.5
    assert Contestant(name="yaad", step_start=0.1).settled().step_start == 0.1
    assert Contestant(name="yaad", step_start=0.1).settled().label == "yaad, step_start 0.1"
    config = Contestant(name="titans_lmm").config(16)
    assert config.value_norm and config.recipe.gate("eta").limit == 2.0 and config.recipe.gate("mu").start == 0.5
    assert not Contestant(name="deltanet").config(16).value_norm


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"rate": 0.0}, "rate must be > 0"),
        ({"precision": "fp8"}, "precision is float32 or bf16, got 'fp8'"),
        ({"steps": 10**6}, "steps must be at most 500000"),
    ],
)
def test_bad_trials_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small("yaad", **changes)


def test_unknown_models_are_refused():
    with pytest.raises(ValueError, match="unknown configuration 'lstm-tiny'"):
        Contestant(name="lstm")
    with pytest.raises(ValueError, match="deltanet has no anchored form"):
        dataclasses.replace(Contestant(name="deltanet"), name="deltanet-anchored")
