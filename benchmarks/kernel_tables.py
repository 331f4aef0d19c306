"""The tables of the pages on kernels, made from what ``kernels.py`` measured, so that no figure of them is typed.

python benchmarks/kernel_tables.py                       # docs/kernels.md and docs/kernels_numbers.md, from the kept run
python benchmarks/kernel_tables.py --results kernels.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from miras.lab.tables import Table, markdown

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results" / "kernels-h200.json"
FLA = "fla delta rule"
# rows of the results, as the pages call them
NAMES = {
    FLA: "fla's delta rule",
    "flash attention (torch)": "flash attention",
    "ttt_mlp": "ttt_mlp",
    "yaad": "yaad",
    "moneta": "moneta",
    "memora": "memora",
    "yaad anchored": "yaad, anchored",
    "titans_lmm": "titans_lmm",
    "yaad, recompute 2048": "yaad, `recompute=2048`",
    "titans_lmm, recompute 2048": "titans_lmm, `recompute=2048`",
    "yaad, plain chunk form": "yaad, plain chunk form",
    "moneta, exact link, triton": "moneta, exact link, chunk after chunk",
    "moneta, exact link, torch": "moneta, exact link, plain chunk form",
    "titans-pytorch": "titans-pytorch",
    "titans-pytorch, weights moving": "titans-pytorch, weights moving every chunk",
}
OURS = ("ttt_mlp", "yaad", "moneta", "memora", "yaad anchored", "titans_lmm")
# the aims: times the delta rule's time, forward and both, and GiB
FORWARD, BOTH, ROOM = 2.2, 2.5, 4.0
KINDS = {"launched": ("forward_ms", "forward_backward_ms"), "ahead": ("forward_ahead_ms", "forward_backward_ahead_ms")}
Results = dict[str, Any]


def digits(value: float) -> str:
    """Three of them, and no fewer than stand before the point."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def timings(results: Results) -> str:
    """Milliseconds as launched and ahead of the launches, in times the delta rule's, and the most memory."""
    rows, base, lines = results["rows"], results["rows"][FLA], []
    for name, called in NAMES.items():
        row, cells = rows[name], [called]
        for keys in KINDS.values():
            own = " / ".join(digits(row[key] / base[key]) for key in keys)
            cells += [*(digits(row[key]) for key in keys), "1" if name == FLA else own]
        lines.append([*cells, f"{row['peak_gib']:.1f}"])
    of = "of fla's delta rule"
    headings = ["", "launched: forward, ms", "both, ms", of, "ahead: forward, ms", "both, ms", of, "peak, GiB"]
    return markdown(Table(headings, {"": lines}))


def aims(results: Results) -> str:
    """Which aim each memory meets, as launched."""
    rows, base, lines = results["rows"], results["rows"][FLA], []
    for name in OURS:
        times = [rows[name][key] / base[key] for key in KINDS["launched"]]
        found = zip((*times, rows[name]["peak_gib"]), (FORWARD, BOTH, ROOM), (2, 2, 1), strict=True)
        cells = [f"{'met' if value <= aim else 'not met'}: {value:.{places}f}" for value, aim, places in found]
        lines.append([NAMES[name], *cells])
    return markdown(Table(["as launched", f"forward, {FORWARD}", f"both, {BOTH}", f"{ROOM:.0f} GiB"], {"": lines}))


def arithmetic(results: Results) -> str:
    """TFLOP/s as launched, and their share of a matrix product's."""
    lines = []
    for name in (FLA, "flash attention (torch)", *OURS):
        row = results["rows"][name]
        kinds = ("forward", "forward_backward")
        lines.append([NAMES[name], *(f"{row[f'{kind}_tflops']:.0f} ({row[f'{kind}_share']:.1%})" for kind in kinds)])
    return markdown(Table(["", "forward, TFLOP/s", "both, TFLOP/s"], {"": lines}))


def profile(results: Results) -> str:
    """Milliseconds of each kernel, and in brackets TB/s of what it is given; how long a copy of all of it takes."""
    rows = {name: results["rows"][name] for name in OURS}
    own = "torch's own"
    found = dict.fromkeys(kernel for row in rows.values() for kernel in row["kernels_ms"] if kernel != own)
    longest = lambda kernel: -max(row["kernels_ms"].get(kernel, 0.0) for row in rows.values())  # noqa: E731
    lines = []
    for kernel in [*sorted(found, key=longest), own]:
        cells = []
        for row in rows.values():
            time, moved = row["kernels_ms"].get(kernel), row["kernels_gb"].get(kernel)
            cells.append("" if time is None else f"{time:.2f}" if moved is None else f"{time:.2f} ({moved / time:.1f})")
        lines.append([own if kernel == own else f"`{kernel}`", *cells])
    moved = [sum(row["kernels_gb"].values()) for row in rows.values()]
    lines.append(["together", *(digits(sum(row["kernels_ms"].values())) for row in rows.values())])
    lines.append(["tensors that the kernels are given, GB", *(f"{gb:.1f}" for gb in moved)])
    speed = results["copy_tb_s"]
    lines.append([f"the same at a copy's {speed:.1f} TB/s, ms", *(f"{gb / speed:.1f}" for gb in moved)])
    return markdown(Table(["", *(NAMES[name] for name in OURS)], {"": lines}))


TABLES: dict[str, Callable[[Results], str]] = {
    "timings": timings,
    "aims": aims,
    "arithmetic": arithmetic,
    "profile": profile,
}
PAGES = ("docs/kernels.md", "docs/kernels_numbers.md")


def with_tables(text: str, results: Results) -> str:
    """A page with those of the tables that it has marks for."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}, made by benchmarks/kernel_tables.py -->", f"<!-- end of {name} -->"
        if begin in text:
            before, rest = text.split(begin)
            _, after = rest.split(end)
            text = f"{before}{begin}\n\n{table(results)}\n\n{end}{after}"
    return text


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=KEPT, help="what kernels.py wrote (default: the kept run)")
    given = parser.parse_args()
    results = json.loads(given.results.read_text())
    for page in PAGES:
        path = ROOT / page
        path.write_text(with_tables(path.read_text(), results))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
