"""What the programs under benchmarks/ decide by themselves, without the GPU that they are for."""

import dataclasses
import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest
import torch

import comparison

pytest.importorskip("triton")

from miras import retention
from miras.kernels import launch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """They import each other as they do when one is run."""
    monkeypatch.syspath_prepend(str(FOLDER))


def program(name):
    """A program whose name other modules have too, as the folder of tests of kernels."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_tables_are_what_the_kept_run_says():
    tables = program("kernel_tables")
    results = json.loads(tables.KEPT.read_text())
    for page in tables.PAGES:
        text = (FOLDER.parent / page).read_text()
        assert "made by benchmarks/kernel_tables.py" in text
        assert tables.with_tables(text, results) == text, "run python benchmarks/kernel_tables.py"


@pytest.mark.parametrize(
    "capability, gluon, resident, said",
    [
        (90, True, True, "Hopper's kernels, the large ones in Gluon"),
        (90, False, False, r"plain Triton, which Hopper gets under Triton \S+: those in Gluon need 3\.6"),
        (80, True, False, "the kernels in plain Triton$"),
    ],
)
def test_machine_code_is_that_of_the_kernels_a_gpu_gets(capability, gluon, resident, said, monkeypatch):
    import machine_code

    monkeypatch.setattr(launch, "GLUON", gluon)
    found, words = machine_code.kernels_of(capability)
    assert found == resident
    assert re.search(said, words)


@pytest.fixture
def numerics():
    """``kernel_numerics``, and a case that the interpreter soon has done: a user's own bias, from a state, over one chunk."""
    kernel_numerics = importlib.import_module("kernel_numerics")
    spec = importlib.import_module("numerics_cases").NAMED["log cosh, a bias of one's own"]
    return kernel_numerics, kernel_numerics.Case("own", spec, torch.float32, 16, 16, T=10, heads=1, carried=True)


def test_a_case_of_the_numerics_passes_where_its_numbers_are_right(numerics, monkeypatch):
    module, case = numerics
    right = module.tried((case, 3))
    assert right["passed"] and right["fused"].keys() >= {"y", "W1_T", "start2_T", "moved1_T", "dA1", "dA2", "deta"}
    made = module.by_kernels
    monkeypatch.setattr(module, "by_kernels", lambda *given: made(*given) | {"dA2": 1.001 * made(*given)["dA2"]})
    wrong = module.tried((case, 3))
    assert not wrong["passed"] and list(wrong["bad"]) == ["dA2"]
    assert module.tried((case, 4))["plain"] != right["plain"]


@pytest.mark.parametrize("check", ["finite", "same bits twice"])
def test_what_is_not_finite_or_not_twice_the_same_fails(check, numerics, monkeypatch):
    module, case = numerics
    found = itertools.cycle([{"y": torch.tensor([1.0, torch.nan])}, {"y": torch.ones(2)}])
    monkeypatch.setattr(module, "by_kernels", lambda *given: {"y": torch.ones(2)})
    assert module.tried((case._replace(check=check), 3))["passed"]
    monkeypatch.setattr(module, "by_kernels", lambda *given: next(found))
    assert not module.tried((case._replace(check=check), 3))["passed"]


def test_the_numerics_fail_by_everything_they_promise(numerics):
    module, _ = numerics
    row = {"case": "yaad", "dtype": "torch.bfloat16", "check": "finite", "passed": True}
    near = {"W1": module.SAME_STATE, "last chunk": module.SAME_READ}
    whole = {"cases": [row], "a million tokens": module.agreed(True, near)}
    assert module.failures(whole) == [] == module.failures({"cases": [row]})
    assert module.failures(whole | {"cases": [row | {"passed": False}]}) == ["yaad bfloat16, finite"]
    for finite, apart in (
        (False, near),
        (True, near | {"W1": 2e-6}),
        (True, near | {"last chunk": 0.01}),
        (True, {"W1": torch.nan}),
    ):
        assert module.failures(whole | {"a million tokens": module.agreed(finite, apart)}) == ["a million tokens"]


def test_a_sigmoids_weights_alone_are_let_further_off(numerics):
    module, case = numerics
    found = {}
    for kept in (retention.Bregman(link="sigmoid"), retention.Bregman(link="identity"), case.spec.retention):
        own = case._replace(spec=dataclasses.replace(case.spec, retention=kept), carried=False)
        found[kept] = module.beside_their_mean(kept, module.drawn(own))
    sigmoid, identity, usual = found.values()
    assert sigmoid > 4 and identity < 1.05 and usual == 1.0


def test_what_nobody_wrote_to_is_not_a_number(numerics):
    module, _ = numerics
    for filled in (module.poisoned, comparison.poisoned):
        with filled():
            assert all(x.isnan().all() for x in (torch.empty(3), torch.empty_like(torch.ones(3)), torch.ones(3).new_empty(3)))
        assert not torch.are_deterministic_algorithms_enabled()


def test_each_family_is_compared_with_several_numbers_of_heads(numerics):
    module, _ = numerics
    for family in ("yaad", "yaad anchored", "titans_lmm", "moneta", "memora", "own step ball", "ttt_linear huber"):
        heads = {case.heads for case in module.cases() if case.name == family and case.check == "compared"}
        assert heads >= {4, 16}, family
    assert len({case.label for case in module.cases()}) == len(module.cases())


def test_every_row_of_the_kernels_has_its_arithmetic():
    kernels = program("kernels")
    sizes = (8, 4096, 16, 64)
    # of the page: 311 kFLOP a token and head, 163 GFLOP in all
    assert kernels.work_of("yaad", sizes).forward == kernels.work_of("yaad, plain chunk form", sizes).forward
    assert kernels.work_of("yaad", sizes).forward == pytest.approx(163e9, rel=0.01)
    # attention is quadratic in the length, half of its square; the others are linear
    for name, growth in (("flash attention (torch)", 4), ("fla delta rule", 2), ("yaad, kernels", 2)):
        one, other = (kernels.work_of(name, (8, time, 16, 64)) for time in (1024, 2048))
        assert other.forward_backward == growth * one.forward_backward
    assert kernels.work_of("flash attention", sizes).forward == 2 * 8 * 16 * 4096**2 * 64
    row = {"forward_ms": 2.0, "forward_backward_ms": 5.0}
    found = kernels.rated(row, kernels.Work(1e12, 3e12), 800.0)
    assert found == row | {
        "forward_tflops": 500.0, "forward_share": 0.625, "forward_backward_tflops": 600.0, "forward_backward_share": 0.75,
    }  # fmt: skip
    assert kernels.rated(row, None, 800.0)["forward_share"] is None
    assert kernels.rated({"missing": "fla"}, None, 800.0) == {"missing": "fla"}


def test_the_table_shows_them(capsys):
    kernels = program("kernels")
    row = dict.fromkeys(("forward_ms", "forward_backward_ms", "forward_ahead_ms", "forward_backward_ahead_ms", "peak_gib"), 2.0)
    rows = {
        "fla delta rule": {"missing": "fla"},
        "yaad": kernels.rated(row, kernels.Work(1e12, 3e12), 2000.0),
        "titans-pytorch": kernels.rated(row, None, 2000.0),
    }
    kernels.told({"rows": rows, "growth": {}, "copy_tb_s": 4.2})
    _, yaad, titans, *_ = capsys.readouterr().out.splitlines()
    assert yaad.endswith("500 / 1500 TFLOP/s, 25.0% / 75.0% of the ceiling") and titans.endswith("GiB")
