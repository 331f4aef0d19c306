"""Verdicts follow from numbers alone, and the page that is kept is the one that the kept results give."""

import importlib.util
import json
from pathlib import Path

import pytest

from miras.lab.conclusions import BITS, PERCENT, Claim, Evidence, Finding, against, deviation, favourite, page, pages, pairwise

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {"gla": [1.4], "deltanet": [1.3]}


@pytest.fixture(scope="module")
def command():
    """``experiments/conclusions.py`` as a module."""
    spec = importlib.util.spec_from_file_location("conclusions", ROOT / "experiments" / "conclusions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ({"yaad": [1.2], "moneta": [1.25]}, "holds here"),
        ({"yaad": [1.2], "moneta": [1.35]}, "holds in part"),
        ({"yaad": [1.3], "moneta": [1.35]}, "does not hold here"),
        ({"yaad": [1.2996], "moneta": [1.35]}, "does not hold here"),  # level, as far as three digits tell
        ({"yaad": [1.2996], "moneta": [1.3]}, "not told apart"),
        ({"yaad": [1.2]}, "open"),
        ({}, "open"),
    ],
)
def test_all_of_ours_against_the_best_of_the_others(ours, verdict):
    found = against(ours, OTHERS, ["yaad", "moneta"], ["gla", "deltanet"], BITS)
    assert found.verdict == verdict
    if ours:
        assert "Best of the others: deltanet 1.300" in found.said


def test_a_baseline_that_was_not_run_leaves_a_claim_open():
    found = against({"yaad": [1.0]}, OTHERS, ["yaad"], ["gla", "deltanet", "transformer"], BITS)
    assert found.verdict == "open" and "Not run: transformer." in found.said


def test_a_distance_within_that_of_the_seeds_is_none():
    noisy = {"yaad": [1.24, 1.30]}
    assert deviation(OTHERS) is None and deviation(noisy, OTHERS) == pytest.approx(0.06 / 2**0.5)
    assert deviation(noisy, {"gla": [1.4, 1.4]}) == pytest.approx(0.03)
    # twice sqrt(1/2 + 1) times the seeds' deviation: 0.104 here, 0.035 there
    assert against(noisy, OTHERS, ["yaad"], ["gla", "deltanet"], BITS).verdict == "not told apart"
    assert against({"yaad": [1.36, 1.42]}, OTHERS, ["yaad"], ["gla", "deltanet"], BITS).verdict == "not told apart"
    assert against({"yaad": [1.46, 1.52]}, OTHERS, ["yaad"], ["gla", "deltanet"], BITS).verdict == "does not hold here"
    found = against({"yaad": [1.20, 1.22]}, OTHERS, ["yaad"], ["gla", "deltanet"], BITS)
    assert str(found) == "holds here" and str(against({"yaad": [1.2]}, OTHERS, ["yaad"], [], BITS)) == "holds here, one seed"


def test_more_is_better_in_percent():
    assert against({"yaad": [90.0]}, {"gla": [80.0]}, ["yaad"], ["gla"], PERCENT).said.count("10.0 ahead") == 1
    assert favourite({"a": [90.0], "b": [95.0]}, "a", ["b"], PERCENT).verdict == "does not hold here"


def test_pairs():
    pairs = {"yaad-h": "yaad", "moneta-h": "moneta"}
    plain = {"yaad": [1.3], "moneta": [1.4]}
    assert pairwise({"yaad-h": [1.2], "moneta-h": [1.3]}, plain, pairs, BITS).verdict == "holds here"
    assert pairwise({"yaad-h": [1.2], "moneta-h": [1.5]}, plain, pairs, BITS).verdict == "holds in part"
    found = pairwise({"yaad-h": [1.2]}, plain, pairs, BITS)
    assert found.verdict == "open" and "moneta-h not run" in found.said
    assert pairwise({}, plain, pairs, BITS) == Finding("open", "Not run yet.")


def made_up(command, folder: Path, bits: dict[str, float]) -> Evidence:
    """Results of enwik8's long runs with these bits a byte on the test text."""
    for name in ("enwik8", "enwik8_steps"):
        (folder / name).mkdir()
        (folder / name / "plan.yaml").write_text((ROOT / "experiments" / name / "plan.yaml").read_text())
    lines = [
        {"run": f"main-{name}-s0", "stage": "main", "model": name, "variant": "", "status": "finished", "key": name,
         "options": {}, "reads": [{"read": command.TEST, "bits_per_byte": value}]}
        for name, value in bits.items()
    ]  # fmt: skip
    (folder / "enwik8" / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Evidence(folder)


def test_the_main_claim_by_results(command, tmp_path):
    """From lines of results to a verdict."""
    claim = next(claim for claim in command.CLAIMS if claim.page == "enwik8" and "every baseline" in claim.text)
    bits = dict.fromkeys((*command.BASELINES, "titans_lmm"), 1.3)
    evidence = made_up(command, tmp_path, bits | {"yaad": 1.2, "moneta": 1.31, "memora": 1.29})
    found = claim.judge(evidence)
    assert found.verdict == "holds in part" and "moneta 1.310 (0.010 behind)" in found.said


def test_runs_that_were_thrown_off_are_counted_at_equal_rates(command, tmp_path):
    evidence = made_up(command, tmp_path, {})

    def line(model, rate, step_sum, bits):
        options = {"optim.lr": rate, "optim.tokens": 9, "model.step_sum": step_sum}
        ending = {"status": "diverged"} if bits is None else {"status": "finished", "valid": {"bits_per_byte": bits}}
        return {"model": model, "options": options, **ending}

    lines = [
        line("yaad", 1e-3, 0.0, None), line("yaad", 1e-3, 0.0, None), line("yaad-shared", 1e-3, 2.0, 2.0),
        line("yaad", 2e-3, 0.0, 2.5), line("yaad-shared", 2e-3, 2.0, 2.1),
        line("moneta", 1e-3, 0.0, 2.2), line("moneta-shared", 9e-3, 2.0, None),
    ]  # fmt: skip
    (tmp_path / "enwik8_steps" / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    found = command.shared_steps(evidence)
    assert found.verdict == "holds here"
    assert found.said.startswith(
        "Of 2 pairs of runs of one model, rate and length, 2 were thrown off with each token's own step, 0"
    )
    assert found.said.endswith("of 1 shared ones without a counterpart 1.")


def test_a_combination_is_chosen_by_validation(command, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "plan.yaml").write_text((ROOT / "experiments" / "small" / "plan.yaml").read_text())
    bits = {"yaad": (2.4, 2.4), "ttt_linear": (2.3, 2.3), "elastic-net": (2.2, 2.35), "bregman-tanh": (2.5, 2.0)}
    lines = [
        {"run": name, "stage": "main", "model": name, "variant": "", "status": "finished", "valid": {"bits_per_byte": own},
         "reads": [{"read": command.TEST, "bits_per_byte": test}]}
        for name, (own, test) in bits.items()
    ]  # fmt: skip
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = command.off_the_map(Evidence(tmp_path), "small/main")
    assert str(found) == "does not hold here, one seed"
    assert "Best of the others: ttt_linear 2.300 bits/byte. elastic-net 2.350 (0.050 behind)" in found.said


def test_small_models_are_judged_by_themselves(command, tmp_path):
    """Beside the large ones, by the same rule; a score counts where a model was trained for just that task."""
    (tmp_path / "recall").mkdir()
    kept = ROOT / "experiments" / "recall" / "small_cpu.jsonl"
    (tmp_path / "recall" / "small_cpu.jsonl").write_bytes(kept.read_bytes())
    evidence = Evidence(tmp_path)
    # solved, or not: that is all a trial that ends once it is solved can tell
    assert evidence.task("noisy_recall", "1 of 3 wrong", small=True)["deltanet"] == [99.0]
    assert evidence.task("noisy_recall", "2 of 5 wrong", small=True)["gla"] == [
        pytest.approx(80.5, abs=0.05),
        pytest.approx(82.5, abs=0.05),
    ]
    assert not evidence.task("noisy_recall", "0 of 3 wrong", small=True)
    assert not evidence.task("noisy_recall", "1 of 3 wrong", small=False)


def test_the_paragraph_of_a_claim_says_both(tmp_path):
    judges = {"judge": lambda found: Finding("open", "Not run yet."), "small": lambda found: Finding("holds here", "1 < 2.")}
    text = page([Claim(text="It works", by="us", page="large", **judges)], Evidence(tmp_path), tmp_path, "python it.py")
    assert "| **open** | holds here |" in text and "open. Not run yet. Small: holds here. 1 < 2." in text


def test_a_page_names_claims_verdicts_and_pages(tmp_path):
    (tmp_path / "enwik8.md").write_text("# Enwik8\n\nMade by `python experiments/report.py enwik8`.\n")
    claims = [Claim(text="It works", by="us", page="enwik8", judge=lambda evidence: Finding("open", "Not run yet."))]
    text = page(claims, Evidence(tmp_path), tmp_path, "python it.py")
    assert "| 1 | It works | us | **open** | - |" in text and "All of it: [enwik8](enwik8.md)" in text
    assert pages(tmp_path) == ["[Enwik8](enwik8.md): `python experiments/report.py enwik8`"]


def test_the_kept_page_is_what_the_kept_results_say(command):
    docs = ROOT / "docs" / "results"
    made = page(command.CLAIMS, Evidence(ROOT / "experiments"), docs, "python experiments/conclusions.py")
    assert (docs / "README.md").read_text() == made, "run python experiments/conclusions.py"


def test_the_readmes_table_is_what_the_kept_results_say(command):
    text = (ROOT / "README.md").read_text()
    assert text == command.with_overview(text, Evidence(ROOT / "experiments")), "run python experiments/conclusions.py"


def test_seeds_of_models_beside_tell_where_the_compared_have_one():
    figures, beside = {"a": [1.000], "b": [1.003]}, {"main: c": [1.0, 1.01], "main: d": [2.0, 2.01]}
    assert str(favourite(figures, "a", ["b"], BITS)) == "holds here, one seed"
    found = favourite(figures, "a", ["b"], BITS, beside)
    assert str(found) == "not told apart, one seed" and "other stages have a standard deviation of 0.007" in found.said
    assert str(favourite({"a": [1.0], "b": [1.1]}, "a", ["b"], BITS, beside)) == "holds here, one seed"
