"""Plans: order, repetition, the best rate of a grid, what is refused; and the whole experiment in short."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from miras.lab.plan import identity, predicted, read_plan
from miras.lab.results import rows

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "recall"

PLAN = """
common:
  tasks: [{name: mqar, vocab: 32, pairs: 3, length: 20, filler: blank}]
  models: [deltanet, {name: gla, conv_kernel: 0}]
  width: 32
  heads: 1
  steps: 2
  rows: 4
  check: 1
  grid: [1e-3, 2.0e-3]
stages:
  - {rates: [2.0e-3, 1e-3], seeds: [0]}
  - {rates: [1e-3], seeds: [0], models: [deltanet]}
  - {rates: best, seeds: [1]}
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


def result_of(trial, score, solved=None):
    return {
        "trial": trial.to_dict(),
        "solved_at": solved,
        "curve": [[2, 1.0, 1.0, score]],
        "seconds_a_step": 0.5,
        "device": "abacus",
    }


def test_a_plan_is_worked_off_in_order_and_nothing_twice(plan):
    trials = read_plan(plan, "float32")
    assert [(t.model.settled().label, t.rate, t.seed) for t in trials] == [
        ("deltanet", 2e-3, 0),
        ("gla, conv_kernel 0", 2e-3, 0),
        ("deltanet", 1e-3, 0),
        ("gla, conv_kernel 0", 1e-3, 0),
    ]
    assert all(t.model.width == 32 and t.rows == 4 and t.task.pairs == 3 for t in trials)


def test_further_seeds_take_the_best_rate_once_all_were_tried(plan):
    first = read_plan(plan, "float32")
    scores = [(0.4, None), (0.2, None), (0.3, None), (0.995, 2)]
    results = [result_of(trial, *score) for trial, score in zip(first, scores, strict=True)]
    later = read_plan(plan, "float32", results)[4:]
    assert [(t.model.name, t.rate, t.seed) for t in later] == [("deltanet", 2e-3, 1), ("gla", 1e-3, 1)]
    assert [t.model.name for t in read_plan(plan, "float32", results[:3])[4:]] == ["deltanet"]
    assert read_plan(plan, "bf16", results)[4:] == []


def test_how_long_a_trial_will_take(plan):
    trials = read_plan(plan, "float32")
    results = [result_of(trials[0], 0.5)]
    assert predicted(trials[2], results, "abacus") == 1.0
    assert predicted(trials[2], results, "slide rule") is None and predicted(trials[1], results, "abacus") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is not a plan: it has no stages"),
        ("{stages: [], colour: red}", "has colour: a plan has common and stages"),
        ("{stages: [{tasks: [mqar]}]}", "a stage needs models, rates, seeds"),
        ("{stages: [{tasks: [mqar], models: [yaad], rates: [1e-3], seeds: [0], step: 9}]}", "a stage does not take step"),
        (
            "{stages: [{tasks: [mqar], models: [{name: yaad, size: 9}], rates: [1e-3], seeds: [0]}]}",
            "a model does not take size",
        ),
        ("{stages: [{tasks: [mqar], models: [yaad], rates: best, seeds: [0]}]}", "needs the grid they are chosen from"),
    ],
)
def test_bad_plans_are_refused(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_plan(path, "float32")


@pytest.mark.parametrize("path", sorted((EXPERIMENT / "plans").glob("*.yaml")), ids=lambda path: path.name)
def test_the_plans_of_the_experiment_can_be_read(path):
    trials = read_plan(path, "bf16")
    assert len({identity(trial.to_dict()) for trial in trials}) == len(trials) >= 12


def test_a_setting_that_was_not_made_makes_no_other_trial():
    """What is done stays done when models get a new option."""
    options = ({}, {"step_sum": None}, {"step_sum": 2.0}, {"step_sum": 2})
    made = [identity({"model": {"name": "yaad"} | option, "rate": 1}) for option in options]
    assert made[0] == made[1] != made[2] == made[3]


def call(monkeypatch, script, *arguments):
    """Run a script of the experiment in this process, as its command would; its own modules are forgotten after it."""
    monkeypatch.syspath_prepend(str(EXPERIMENT))
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    try:
        runpy.run_path(str(EXPERIMENT / script), run_name="__main__")
    except SystemExit as end:
        assert not end.code
    sys.modules.pop("figures", None)


def test_the_experiment_in_short(plan, tmp_path, monkeypatch, capsys):
    """One process works off a plan, two a longer one, a third call finds nothing to do; the report is of what they wrote."""
    results, docs = tmp_path / "results.jsonl", tmp_path / "docs"
    short = PLAN.replace("[1e-3, 2.0e-3]", "[1e-3]").replace("[2.0e-3, 1e-3]", "[1e-3]").replace("rows: 4", "rows: 64")
    plan.write_text(short)
    call(monkeypatch, "run.py", "--plan", plan, "--results", results, "--device", "cpu")
    assert "all begun" in capsys.readouterr().out and len(rows(results)) == 4
    plan.write_text(short.replace("rates: best, seeds: [1]", "rates: best, seeds: [1, 2]"))
    call(monkeypatch, "run.py", "--plan", plan, "--results", results, "--workers", "2", "--device", "cpu")
    assert "6 trials, 2 of them to do" in capsys.readouterr().out and len(rows(results)) == 6
    call(monkeypatch, "run.py", "--plan", plan, "--results", results, "--device", "cpu")
    assert "6 trials, 0 of them to do" in capsys.readouterr().out and len(rows(results)) == 6
    line = json.loads(results.read_text().splitlines()[0])
    assert {"commit", "versions", "machine", "device", "date", "parameters", "curve"} <= line.keys()
    call(monkeypatch, "report.py", "--results", results, "--docs", docs)
    text = (docs / "recall.md").read_text()
    assert "| gla, conv_kernel 0 |" in text and "mqar: 3 pairs in 20 tokens" in text
    for name in ("recall_overview", "recall_curves", "recall_lengths"):
        assert f"]({name}.png)" in text and (docs / f"{name}.png").stat().st_size > 5000 and (docs / f"{name}.svg").exists()
