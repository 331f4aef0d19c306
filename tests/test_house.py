"""The house: imports point one way, nothing heavy is imported early, a built wheel installs and imports."""

import ast
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "miras"
ROOMS = ("memory", "bias", "retention", "algorithm")
# who may import whom, from the bottom up
FLOORS = [
    {"types", "__version__"},
    {"files", "products", "rows", "torch_modes"},
    set(ROOMS),
    {"spec"},
    {"presets", "checks"},
    {"state_checks"},
    {"forms", "kernels"},
    {"call"},
    {"sequences", "stretches"},
    {"memorize"},
    {"explanation"},
    {"nn"},
    {"hf", "diagnostics"},
    {"data"},
    {"train", "eval"},
    {"lab", "inspector"},
    {"commands"},
]


def imports():
    """(importing room, imported room) for every relative import of the package."""
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        here = parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = list(parts[: len(parts) - node.level])
                names = [alias.name for alias in node.names] if node.module is None else [node.module.split(".")[0]]
                for name in names:
                    yield here, [*base, name][0]


def floor(room):
    return next((level for level, rooms in enumerate(FLOORS) if room in rooms), len(FLOORS))


def test_imports_point_one_way():
    wrong = {(a, b) for a, b in imports() if a != b and a != "__init__" and floor(b) > floor(a)}
    assert wrong == set()


def test_the_four_rooms_never_import_each_other():
    assert {(a, b) for a, b in imports() if a in ROOMS and b in ROOMS and a != b} == set()


def test_forms_and_kernels_never_import_each_other():
    """The forms are what kernels are tested against."""
    assert {(a, b) for a, b in imports() if {a, b} == {"forms", "kernels"}} == set()


def test_nothing_below_nn_creates_a_parameter():
    for path in SOURCE.rglob("*.py"):
        if floor(path.relative_to(SOURCE).parts[0].removesuffix(".py")) < floor("nn"):
            assert "nn.Parameter" not in path.read_text(), path


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def test_import_is_quick_and_light():
    code = """
import sys, time
import torch
start = time.perf_counter()
import miras
seconds = time.perf_counter() - start
heavy = [name for name in ("triton", "transformers", "fla", "matplotlib", "rich") if name in sys.modules]
print(seconds, heavy)
"""
    seconds, heavy = run(sys.executable, "-c", code).split(maxsplit=1)
    assert float(seconds) < 2 and heavy.strip() == "[]"


def test_a_language_model_without_transformers_says_what_to_install():
    code = """
import sys
sys.modules["transformers"] = None
import miras
try:
    miras.MirasConfig
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(sys.executable, "-c", code) == "miras.MirasConfig needs transformers: pip install 'miras-torch[hf]'\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    run(sys.executable, "-c", command, str(folder), cwd=ROOT)
    return next(folder.glob("miras_torch-*.whl"))


def test_a_built_wheel_installs_and_imports_in_an_empty_environment(wheel, tmp_path):
    """Empty but for torch, which is lent from here: the wheel's own files are all that the package needs."""
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    torch_home = Path(__import__("torch").__file__).parent.parent
    code = f"""
import sys
sys.path.append({str(torch_home)!r})
import miras
assert "env" in miras.__file__ and miras.__file__.startswith({str(tmp_path)!r}), miras.__file__
print(len(miras.presets.PRESETS), miras.__version__)
"""
    assert run(python, "-I", "-c", code).split() == ["21", __import__("miras").__version__]
    listing = run(python, "-m", "pip", "show", "-f", "miras-torch")
    shipped = ("py.typed", "page.html", "page.css", "numbers.js", "plots.js", "map.js", "page.js", "measured.json")
    assert all(name in listing for name in shipped) and "tests" not in listing
