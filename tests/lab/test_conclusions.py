"""Verdicts follow from numbers alone, and the page that is kept is the one that the kept results give."""

import importlib.util
import itertools
import json
import random
from pathlib import Path

import pytest

from miras.lab.conclusions import Claim, Evidence, kind, page, pages
from miras.lab.plan_file import load
from miras.lab.verdicts import BITS, PERCENT, Finding, Noise, against, best, chance, favourite, pairwise, pooled, quantile

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {"gla": [1.4], "deltanet": [1.3]}
KIND = {"model.name": "yaad-600k", "optim.tokens": 2e6, "data.length": 512}


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
        ({"yaad": [1.2], "moneta": [1.35]}, "mixed"),
        ({"yaad": [1.2], "moneta": [1.3]}, "holds in part"),
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
    assert pooled(OTHERS) is None
    assert pooled(noisy, OTHERS) == pytest.approx((0.06 / 2**0.5, 1)) and pooled(noisy, {"gla": [1.4] * 3}).freedom == 3
    known = Noise(0.02, 5)
    # 2.57 * 0.02 * sqrt(1/2 + 1)
    assert known.margin(2, 1) == pytest.approx(0.06297, abs=1e-5)
    judged = lambda first, second: against({"yaad": [first, second]}, OTHERS, ["yaad"], ["gla", "deltanet"], BITS, known)  # noqa: E731
    assert judged(1.24, 1.30).verdict == "not told apart" and judged(1.31, 1.37).verdict == "not told apart"
    assert judged(1.46, 1.52).verdict == "does not hold here" and judged(1.20, 1.22).verdict == "holds here"
    assert "A distance counts from 0.063: seeds of one model have a standard deviation of 0.020 (5 deg" in judged(1.2, 1.2).said
    # two seeds of one model say little: 12.7 * 0.042 * sqrt(3/2)
    assert against(noisy, OTHERS, ["yaad"], [], BITS).verdict == "not told apart"
    assert str(against({"yaad": [1.2]}, OTHERS, ["yaad"], [], BITS)) == "holds here, one seed"


def test_students_distribution_and_the_sign_test():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 7, 40):
        assert quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-6)
    for wins, losses in ((4, 0), (5, 1), (1, 6), (3, 3), (0, 0)):
        exact = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        assert chance(wins, losses) == pytest.approx(exact)


def test_of_models_alike_one_in_twenty_is_called_ahead_or_behind():
    draw, called = random.Random(0), 0
    for _ in range(2000):
        models = {str(number): [draw.gauss(1, 0.01) for _ in range(2)] for number in range(5)}
        one, other = ([draw.gauss(1, 0.01)] for _ in range(2))
        called += abs(one[0] - other[0]) > pooled(models).margin(1, 1)
    assert called / 2000 == pytest.approx(0.05, abs=0.015)


def test_more_is_better_in_percent():
    assert against({"yaad": [90.0]}, {"gla": [80.0]}, ["yaad"], ["gla"], PERCENT).said.count("10.0 ahead") == 1
    assert favourite({"a": [90.0], "b": [95.0]}, "a", ["b"], PERCENT).verdict == "does not hold here"


def test_pairs():
    pairs = {"yaad-h": "yaad", "moneta-h": "moneta"}
    plain = {"yaad": [1.3], "moneta": [1.4]}
    assert pairwise({"yaad-h": [1.2], "moneta-h": [1.3]}, plain, pairs, BITS).verdict == "holds here"
    assert pairwise({"yaad-h": [1.2], "moneta-h": [1.5]}, plain, pairs, BITS).verdict == "mixed"
    assert pairwise({"yaad-h": [1.2], "moneta-h": [1.4]}, plain, pairs, BITS).verdict == "holds in part"
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
         "options": KIND, "reads": [{"read": command.TEST, "bits_per_byte": value}]}
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
    assert found.verdict == "mixed" and "moneta 1.310 (0.010 behind)" in found.said


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
    found = command.shared_steps(evidence, presets=False)
    assert found.verdict == "not told apart"
    assert found.said.startswith(
        "Of 2 pairs of runs of one model, rate and length, 2 were thrown off with each token's own step, 0"
    )
    assert (
        "In 2 pairs only the own steps were thrown off, in 0 only the shared ones: chance alone is as one-sided 50"
        in found.said
    )
    assert found.said.endswith("Of 1 shared ones without a counterpart 1 were thrown off.")
    more = [
        line(name, rate, share, None if share == 0.0 else 2.0)
        for rate in (3e-3, 4e-3)
        for name, share in (("yaad", 0.0), ("yaad-shared", 2.0), ("memora", 0.0), ("memora-shared", 2.0))
    ]
    (tmp_path / "enwik8_steps" / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines + more))
    assert command.shared_steps(Evidence(tmp_path), presets=False).verdict == "holds here"
    assert command.shared_steps(Evidence(tmp_path), presets=True) == command.NOT_RUN
    as_presets = [line("yaad", 1e-3, 0.0, None), line("yaad", 1e-3, None, 2.0)]
    for one in as_presets:
        one["options"] = {name: value for name, value in one["options"].items() if value is not None}
    (tmp_path / "enwik8" / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in as_presets))
    found = command.shared_steps(Evidence(tmp_path), presets=True)
    assert (
        "1 were thrown off with each token's own step, 0 with shared ones, which added up to 1 (Moneta's to 1/3)" in found.said
    )


def test_a_combination_is_chosen_by_validation(command, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "plan.yaml").write_text((ROOT / "experiments" / "small" / "plan.yaml").read_text())
    bits = {"yaad": (2.4, 2.4), "ttt_linear": (2.3, 2.3), "elastic-net": (2.2, 2.35), "bregman-tanh": (2.5, 2.0)}
    lines = [
        {"run": name, "stage": "main", "model": name, "variant": "", "status": "finished", "valid": {"bits_per_byte": own},
         "options": KIND, "reads": [{"read": command.TEST, "bits_per_byte": test}]}
        for name, (own, test) in bits.items()
    ]  # fmt: skip
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = command.off_the_map(Evidence(tmp_path), command.RIVALS, ["yaad"], "small/main")
    assert str(found) == "does not hold here, one seed"
    assert found.said.startswith("Chosen of 2 that were run, and judged by the seed that it was chosen by.")
    assert "Best of the others: ttt_linear 2.300 bits/byte. elastic-net 2.350 (0.050 behind)" in found.said
    again = lines[2] | {"run": "again", "seed": 1, "reads": [{"read": command.TEST, "bits_per_byte": 2.2}]}
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, again]))
    found = command.off_the_map(Evidence(tmp_path), command.RIVALS, ["yaad"], "small/main")
    # its own two seeds are all that tells of noise
    assert found.verdict == "not told apart" and "judged by another seed" in found.said and "elastic-net 2.200" in found.said
    assert command.off_the_map(Evidence(tmp_path), command.RIVALS, ["yaad", "gla"], "small/main").verdict == "open"


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
    assert "| open | **holds here** |" in text
    assert "- 30M on a GPU: open. Not run yet.\n- 0.6M on a processor: holds here. 1 < 2." in text


def test_a_page_names_claims_verdicts_and_pages(tmp_path):
    (tmp_path / "enwik8.md").write_text("# Enwik8\n\nMade by `python experiments/report.py enwik8`.\n")
    claims = [Claim(text="It works", by="us", page="enwik8", judge=lambda evidence: Finding("open", "Not run yet."))]
    text = page(claims, Evidence(tmp_path), tmp_path, "python it.py")
    assert "| 1 | It works | us | open | - |" in text and "All of it: [enwik8](enwik8.md)" in text
    assert pages(tmp_path) == ["[Enwik8](enwik8.md): `python experiments/report.py enwik8`"]


def test_the_kept_page_is_what_the_kept_results_say(command):
    docs = ROOT / "docs" / "results"
    made = page(command.CLAIMS, Evidence(ROOT / "experiments"), docs, "python experiments/conclusions.py")
    assert (docs / "README.md").read_text() == made, "run python experiments/conclusions.py"


@pytest.mark.parametrize(("page", "names"), [("README.md", "BRIEF"), ("docs/findings.md", "OVERVIEW")])
def test_the_tables_of_pages_are_what_the_kept_results_say(command, page, names):
    text = (ROOT / page).read_text()
    made = command.with_overview(text, Evidence(ROOT / "experiments"), getattr(command, names))
    assert text == made, "run python experiments/conclusions.py"


def test_noise_is_that_of_all_runs_as_large_and_long(command):
    """Also where the models that are compared have one seed each; longer runs have a noise of their own."""
    evidence = Evidence(ROOT / "experiments")
    noise = evidence.noise_of("small/main", command.TEST)
    assert noise.freedom >= 5 and 0.002 < noise.deviation < 0.02
    assert noise == evidence.noise_of("small/own", command.TEST) != evidence.noise_of("small/longer", command.TEST)
    assert not command.parts_of_yaad(evidence, "yaad", "small/main", "small/yaad").weak
    rows = [row for row in planned("ablations", random.Random(0)) if row["stage"] in ("anchor-plain", "p")]
    assert {kind(row) for row in rows} == {("30m", 50e6, 2048), ("4m", 50e6, 1024)}


def test_noise_of_the_laboratory_is_that_of_every_model(command, monkeypatch):
    """Also of an output gate that did worse, which no model is compared by."""
    scores = {"yaad": [97.0, 98.0], "moneta": [98.0], "gla": [99.0, 98.0], "gla, output_gate=silu": [99.0, 40.0]}
    others = {name: [90.0] for name in (*command.BASELINES, "titans_lmm", "memora")}
    evidence = Evidence(ROOT / "experiments")
    monkeypatch.setattr(evidence, "task", lambda *given, **how: others | scores)
    found = command.unmoved(evidence, "noisy_recall", small=True)
    assert found.verdict == "not told apart" and "gla 98.5 %" in found.said and "(3 degrees of freedom)" in found.said


def test_the_best_has_no_rival_with_a_better_mean():
    known = Noise(0.01, 10)
    for rival, verdict in ((1.29, "not told apart"), (1.301, "holds in part"), (1.4, "holds here"), (1.2, "mixed")):
        assert best({"p3": [1.3], "p2": [rival], "p4": [1.4]}, "p3", ["p2", "p4"], BITS, known).verdict == verdict
    assert favourite({"p3": [1.3], "p2": [1.29], "p4": [1.4]}, "p3", ["p2", "p4"], BITS, known).verdict == "holds in part"
    assert best({}, "p3", ["p2"], BITS).verdict == "open"


def planned(experiment, draw):
    """Every run of a plan as if it had been run, with all that it reads."""
    lines = []
    for run in load(ROOT / "experiments" / experiment).runs:
        ready, loss = run.with_rate(1e-3) if run.rate else run, draw.uniform(1, 2)
        figures = {"bits_per_byte": loss, "perplexity": 10 * loss}
        edges = [2048 * 2**power for power in range(-2, 6)]
        places = [{"from": left, "to": right, **figures} for left, right in itertools.pairwise([0, 512, 1024, *edges[2:]])]
        cells = [{"task": "S-NIAH-1", "length": 1024, "depth": 0.5, "exact": draw.random()}]
        reads = [{"read": str(read), "places": places, "cells": cells, **figures} for read in run.reads]
        lines.append(
            {"run": run.name, "stage": run.stage, "model": run.model, "variant": run.variant, "seed": run.seed, "key": run.key,
             "status": "finished", "options": {**ready.options, "data.length": run.options["data.length"]}, "reads": reads,
             "valid": {"bits_per_byte": loss}}
        )  # fmt: skip
    return lines


def test_every_claim_is_decided_once_all_that_is_planned_was_run(command, monkeypatch):
    """Those by the laboratory and by runs that were thrown off aside, which rest on other files."""
    evidence, draw = Evidence(ROOT / "experiments"), random.Random(1)
    made = {name: planned(name, draw) for name in ("enwik8", "books", "context", "ablations", "off_the_map")}
    monkeypatch.setattr(evidence, "rows", lambda name: made.get(name, []))
    for claim in command.CLAIMS:
        if claim.page not in ("recall", "enwik8_steps") and "thrown off" not in claim.text:
            found = claim.judge(evidence)
            assert found.verdict != "open", (claim.text, found)
            prose = claim.page in ("books", "context") and "gain" not in claim.text and "needles" not in claim.text
            assert ("perplexity" in found.said) == prose or "Best of the others" in found.said, found


def test_who_loses_least_has_not_gained(command, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "plan.yaml").write_text((ROOT / "experiments" / "small" / "plan.yaml").read_text())
    figures = {"transformer": 3.0, "gated_deltanet": 2.5, "yaad": 2.3, "moneta": 2.3, "memora": 2.3}

    def line(stage, name, bits, variant=""):
        return {"run": f"{stage}-{name}", "stage": stage, "model": name, "variant": variant, "status": "finished",
                "options": KIND, "reads": [{"read": command.TEST, "bits_per_byte": bits}]}  # fmt: skip

    for longer, verdict in ((1.1, "does not hold here"), (0.9, "holds here")):
        lines = [line("main", name, bits) for name, bits in figures.items()]
        lines += [
            line("lengths", name, bits * longer * (1.05 if name in ("transformer", "gated_deltanet") else 1), "4k")
            for name, bits in figures.items()
        ]
        (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        found = command.context(Evidence(tmp_path), "small/main", "small/lengths", "4k", ("transformer", "gated_deltanet"))
        assert found.verdict == verdict and found.said.startswith("Nobody gains") == (longer > 1)
