"""What the programs under benchmarks/ decide by themselves, without the GPU that they are for."""

import re
from pathlib import Path

import pytest

pytest.importorskip("triton")

from miras.kernels import launch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """They import each other as they do when one is run."""
    monkeypatch.syspath_prepend(str(FOLDER))


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
