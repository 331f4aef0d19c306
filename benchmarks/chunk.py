"""How fast the chunk form is on a CPU, how its time grows with the length, how much memory it takes.

Three parts: seconds of the presets by both forms beside titans-pytorch and fla (where they are installed), the time of Yaad
against the length, and its peak memory, each in a process of its own. Prints tables; writes JSON and a picture.
Nothing is judged: the aims are printed beside the numbers. About ten minutes on two cores; keep the machine quiet.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from calls import draw
from cases import DEEP, FLA, TITANS, TITANS_TOKENS, chunk_cases, fla_cases, ours, recurrent_cases, titans_cases
from chunk_report import aims, inserted, memory_table, page, picture, quote, speed_table, time_table
from timing import Case, alternate, say

from miras import presets
from miras.forms.chunk import STRETCH
from miras.lab.provenance import ROOT, provenance
from miras.lab.tables import show

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured."""

    time: int = 1024
    heads: int = 4
    dim: int = 64
    chunk: int = 64
    threads: int = 2
    rounds: int = 15
    slow_rounds: int = 5
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)
    length_rounds: int = 5
    memory_lengths: tuple[int, ...] = (8192, 16384)


QUICK = Settings(time=256, rounds=2, slow_rounds=1, lengths=(256, 512, 1024), length_rounds=1, memory_lengths=(1024, 2048))


def speed(settings: Settings) -> dict[str, Any]:
    """Part one: every case, side by side."""
    shape = (settings.time, settings.heads, settings.dim)
    cases: list[Case] = chunk_cases(*shape, settings.chunk, settings.rounds)
    cases += recurrent_cases(*shape, settings.slow_rounds)
    missing = {}
    others: dict[str, Callable[[], list[Case]]] = {
        "titans-pytorch": lambda: titans_cases(*shape, settings.chunk, settings.rounds),
        "fla-core": lambda: fla_cases(*shape, settings.chunk, settings.rounds),
    }
    for package, make in others.items():
        try:
            cases += make()
        except ImportError as error:
            missing[package] = str(error)
            say(f"{package} is not there, so it is left out: {error}")
    times = alternate(cases)
    rows = {case.name: {**times[case.name].as_json(), "note": case.note} for case in cases}
    return {"rows": rows, "missing": missing, "ratios": ratios(rows)}


def ratios(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times faster ours are, by the medians of both."""

    def times(name: str, other: str, aim: float | None) -> list[dict[str, Any]]:
        if name not in rows or other not in rows:
            return []
        factors = {kind: rows[other][kind]["median"] / rows[name][kind]["median"] for kind in ("forward", "forward_backward")}
        return [{"ours": name, "against": other, "aim": aim, **factors}]

    found = []
    for name in (*DEEP, "titans_lmm, channel-wise", "ttt_mlp"):
        found += times(name, TITANS, 8.0)
        found += times(name, TITANS_TOKENS, None)
    for name in DEEP:
        found += times(name, f"{name}, recurrent", 20.0)
    return found + times("gated_deltanet", FLA, 1.0)


def growth(settings: Settings) -> dict[str, Any]:
    """Part two: Yaad against the length, and the slope in logarithms."""
    rows = []
    for length in settings.lengths:
        say(f"{length} tokens")
        call = draw(presets.yaad(), time=length, heads=settings.heads, dim=settings.dim, channelwise=True)
        case = ours("yaad", call, form="chunk", chunk=settings.chunk, rounds=settings.length_rounds)
        rows.append({"tokens": length, **alternate([case])["yaad"].as_json()})
    # beyond two stretches the forward pass is recomputed in the backward pass, so the line bends there once
    long = [row for row in rows if row["tokens"] > 2 * STRETCH * settings.chunk]
    return {"rows": rows, "fit": fit(rows), "fit_recomputed": fit(long) if len(long) > 1 else None}


def fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Slope and intercept of log seconds over log tokens, by least squares."""
    x = [math.log(row["tokens"]) for row in rows]
    y = [math.log(row["forward_backward"]["median"]) for row in rows]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return {"slope": slope, "intercept": mean_y - slope * mean_x}


def peaks(settings: Settings) -> list[dict[str, Any]]:
    """Part three: peak memory of Yaad at each length, each in a fresh process."""
    rows = []
    for length in settings.memory_lengths:
        say(f"{length} tokens")
        options = {
            "tokens": length,
            "heads": settings.heads,
            "dim": settings.dim,
            "chunk": settings.chunk,
            "threads": settings.threads,
        }
        command = [sys.executable, str(HERE / "peak_memory.py"), *(f"--{name}={value}" for name, value in options.items())]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"tokens": length, **json.loads(result.stdout)})
    return rows


def measure(settings: Settings) -> dict[str, Any]:
    """All three parts, with where the numbers come from."""
    torch.set_num_threads(settings.threads)
    results: dict[str, Any] = {
        **provenance("titans-pytorch", "fla-core"),
        "settings": {**asdict(settings), "batch": 1, "dtype": "float32"},
        "load_before": os.getloadavg()[0],
    }
    say("1 of 3: presets, side by side")
    results["speed"] = speed(settings)
    say("2 of 3: time against length")
    results["growth"] = growth(settings)
    say("3 of 3: peak memory")
    results["memory"] = peaks(settings)
    results["load_after"] = os.getloadavg()[0]
    return results


def write_pages(results: dict[str, Any], image: Path, docs: Path) -> None:
    """The page of results, and the quotation in the page about the chunk form."""
    target, about = docs / "results" / "chunk_cpu.md", docs / "chunk.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(results, os.path.relpath(image, target.parent)))
    about.write_text(inserted(about.read_text(), quote(results)))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short sequences and few rounds, to see that it runs; no pages")
    parser.add_argument("--out", type=Path, help="the JSON file (default benchmarks/results/chunk-cpu.json, none with --quick)")
    parser.add_argument("--report-only", action="store_true", help="make tables, picture and pages from the file that is there")
    arguments = parser.parse_args()
    out: Path | None = arguments.out or (None if arguments.quick else HERE / "results" / "chunk-cpu.json")
    if arguments.report_only:
        results = json.loads((out or HERE / "results" / "chunk-cpu.json").read_text())
    else:
        results = measure(QUICK if arguments.quick else Settings())
    for table in (speed_table(results), aims(results), time_table(results), memory_table(results)):
        show(table)
        print()
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2, allow_nan=False) + "\n")
    picture(results, out.with_suffix(".png"))
    print(f"See {out} and {out.with_suffix('.png')}")
    if not arguments.quick:
        write_pages(results, out.with_suffix(".png"), ROOT / "docs")


if __name__ == "__main__":
    main()
