"""transformers' own common tests, as they are, where its source tree is at hand.

    TRANSFORMERS_SOURCE=.../transformers pytest tests/hf/test_transformers_suite.py

A checkout of the installed version's tag; half a minute a model.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = os.environ.get("TRANSFORMERS_SOURCE")
pytestmark = pytest.mark.skipif(SOURCE is None, reason="TRANSFORMERS_SOURCE does not name transformers' source tree")


@pytest.mark.parametrize("name", ["yaad", "moneta", "memora", "gated_deltanet", "yaad-h"])
def test_what_transformers_checks_of_its_own_models(name, tmp_path):
    copy = tmp_path / "copy"
    for part in ("tests", "utils"):
        shutil.copytree(Path(SOURCE) / part, copy / part)
    place = copy / "tests" / "models" / "miras" / "test_modeling_miras.py"
    place.parent.mkdir(parents=True, exist_ok=True)
    (place.parent / "__init__.py").touch()
    shutil.copy(Path(__file__).with_name("transformers_suite.py"), place)
    (copy / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-warnings", str(place)]
    done = subprocess.run(command, cwd=copy, env={**os.environ, "MIRAS_SUITE": name}, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1]
    print(f"{name}: {last}")
    # the counts guard against a suite that has been skipped as a whole
    assert done.returncode == 0 and int(last.split(" passed")[0].split()[-1]) > 90, done.stdout[-3000:]
