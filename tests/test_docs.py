"""The pages: their examples run, their links lead somewhere, the tests they name exist, their formulas survive Markdown."""

import re
from pathlib import Path

import pytest

from miras import algorithm, bias, memory, retention

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
REGISTRIES = [part.known for part in (memory.Memory, bias.Bias, retention.Retention, algorithm.Algorithm)]
REGISTRIES += [retention.Link.known, retention.Divergence.known]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page):
    """The page without its code blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


def formulas(page):
    """(display, formula) of a page, and what is left of it."""
    text = prose(page)
    found = [(True, formula) for formula in re.findall(r"\$\$(.*?)\$\$", text, re.DOTALL)]
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    found += [(False, formula) for formula in re.findall(r"\$([^$]*)\$", text)]
    return found, re.sub(r"\$[^$]*\$", "", text)


@pytest.fixture
def registries():
    """Parts that a page defines are forgotten after it."""
    before = [dict(known) for known in REGISTRIES]
    yield
    for known, saved in zip(REGISTRIES, before, strict=True):
        known.clear()
        known.update(saved)


@pages
def test_the_examples_run(page, registries, monkeypatch, tmp_path):
    """The Python blocks of a page, in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": page.stem}
    text = page.read_text()
    for block in FENCE.finditer(text):
        if block[1] == "python":
            lines_before = text[: block.start(2)].count("\n")
            exec(compile("\n" * lines_before + block[2], str(page), "exec"), namespace)


def anchors(page):
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pages
def test_relative_links_exist(page):
    for link in LINK.findall(prose(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


@pages
def test_named_tests_exist(page):
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    known = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE)) | {path.stem for path in (ROOT / "tests").rglob("*.py")}
    named = set(re.findall(r"\btest_\w+", FENCE.sub("", page.read_text())))
    assert named <= known


def test_every_misprint_has_a_test():
    points = re.split(r"^## ", (ROOT / "docs" / "misprints.md").read_text(), flags=re.MULTILINE)[1:]
    assert [int(point.split(".")[0]) for point in points] == list(range(1, len(points) + 1)) and len(points) >= 11
    for point in points:
        for part in ("- Printed", "- Here:", "- Why:", "- Test"):
            assert part in point, point.splitlines()[0]
        assert re.search(r"`test_\w+`", point), point.splitlines()[0]
    used = set(re.findall(r"`(test_\w+)`", "".join(points)))
    written = set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / "test_misprints.py").read_text(), re.MULTILINE))
    assert written <= used


@pages
def test_formulas_survive_markdown(page):
    """GitHub reads Markdown before mathematics: what Markdown would change does not occur in a formula."""
    found, rest = formulas(page)
    assert "$" not in rest, "a dollar without its partner"
    assert prose(page).count("$$") % 2 == 0
    for display, formula in found:
        assert formula.strip() and (display or formula == formula.strip()), formula
        assert formula.count("{") == formula.count("}"), formula
        assert formula.count(r"\left") == formula.count(r"\right"), formula
        assert re.findall(r"\\begin\{(\w+)\}", formula) == re.findall(r"\\end\{(\w+)\}", formula), formula
        assert not re.search(r"\\[^A-Za-z]", formula), f"Markdown takes the backslash: {formula}"
        assert not re.search(r"(?<![A-Za-z0-9])_", formula), f"Markdown takes the underscore for emphasis: {formula}"
        assert not re.search(r"[*<>|]|\\newcommand", formula), formula
        assert not re.search(r"\n(\n|\s*[-+#=]+\s)", formula), f"Markdown takes the line for a list or a heading: {formula}"
        assert display or "\n" not in formula, formula


@pages
def test_inline_formulas_have_room(page):
    """GitHub wants a space, a bracket or the like around an inline formula, and a display formula on lines of its own."""
    text = prose(page)
    for block in re.finditer(r"\$\$.*?\$\$", text, re.DOTALL):
        lines = block[0].split("\n")
        assert lines[0] == lines[-1] == "$$" and text[block.start() - 1] == "\n" and text[block.end()] == "\n", block[0]
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    for formula in re.finditer(r"\$[^$]*\$", text):
        around = text[formula.start() - 1], text[formula.end()]
        assert around[0] in " \n(|" and around[1] in " \n.,;:)|?", text[formula.start() - 5 : formula.end() + 5]
