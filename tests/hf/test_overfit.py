"""A short version of experiments/overfit: tiny models learn the licence's first lines by heart."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "experiments" / "overfit"


@pytest.fixture(scope="module")
def overfit():
    spec = importlib.util.spec_from_file_location("overfit_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "steps"), [("yaad-tiny", 50), ("moneta-tiny", 55), ("memora-tiny", 50), ("gated_deltanet-tiny", 90)]
)
def test_tiny_models_learn_a_text_by_heart(overfit, name, steps):
    text = overfit.text_of(96)
    found = overfit.learn(name, text, steps=steps, batch=4, length=48, rate=1e-2, seed=0, chunk_size=16)
    assert found["finite"] and found["first_loss"] > 4
    # two seeds gave 0.12 to 0.19; where a stretch of so short a text begins is a larger part of what cannot be known
    assert found["nats_a_byte"] < 0.25


def test_the_measure_is_the_mean_over_the_whole_text(overfit):
    class Known:
        """Gives the place of each token in the text as its loss."""

        def eval(self):
            pass

        def __call__(self, ids, labels):
            return type("Output", (), {"loss": ids[:, 1:].double().mean()})

    text = torch.arange(10)
    # 0-3, 4-7 and, ending with the text, 6-9; the first token of a stretch is not predicted
    assert overfit.nats_a_byte(Known(), text, 4) == pytest.approx((1 + 2 + 3 + 5 + 6 + 7 + 7 + 8 + 9) / 9)


def test_the_kept_result_shows_what_it_claims(overfit):
    found = json.loads((FOLDER / "results.json").read_text())
    assert [row["model"] for row in found["models"]] == overfit.MODELS.split(",")
    assert all(row["nats_a_byte"] < found["goal"] and row["finite"] for row in found["models"]) and found["goal"] == 0.1
    assert {"machine", "versions", "commit", "date", "command"} <= found.keys()
    page = (FOLDER.parents[1] / "docs" / "language_model.md").read_text()
    assert overfit.table(found) in page
