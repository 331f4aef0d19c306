"""The tables and the picture of the chunk benchmark, from its results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from miras.lab.tables import Table

# aims of the peak memory: bytes at the first length, and the factor that doubling the length may cost
MEMORY_AIM, DOUBLING_AIM = 1.5 * 2**30, 2.0


def milliseconds(value: float) -> str:
    """Seconds as milliseconds."""
    return f"{1000 * value:.1f}"


def speed_table(results: dict[str, Any]) -> Table:
    """Milliseconds of every case, smallest and median."""
    rows = [
        [
            name,
            *(milliseconds(row[kind][how]) for kind in ("forward", "forward_backward") for how in ("min", "median")),
            row["note"] + ("" if row["finite"] else " (not finite)"),
        ]
        for name, row in results["speed"]["rows"].items()
    ]
    headings = ["milliseconds", "forward, min", "median", "with backward, min", "median", ""]
    return Table(headings, {"": rows}, numeric=True)


def aims(results: dict[str, Any]) -> Table:
    """How many times faster, beside the aims."""
    rows = [
        [
            row["ours"],
            row["against"],
            f"{row['forward']:.2f}",
            f"{row['forward_backward']:.2f}",
            "" if row["aim"] is None else f"{row['aim']:g}",
        ]
        for row in results["speed"]["ratios"]
    ]
    return Table(["times faster", "than", "forward", "with backward", "aim"], {"": rows}, numeric=True)


def time_table(results: dict[str, Any]) -> Table:
    """Seconds of Yaad, and microseconds a token, at each length; the slope stands in the last row."""
    rows = []
    for row in results["growth"]["rows"]:
        both = row["forward_backward"]["min"]
        rows.append([f"{row['tokens']}", f"{row['forward']['min']:.3f}", f"{both:.3f}", f"{1e6 * both / row['tokens']:.1f}"])
    rows.append(["slope, log-log", "", f"{results['growth']['slope']:.3f}", ""])
    return Table(["tokens (yaad)", "forward, s", "with backward, s", "us a token"], {"": rows}, numeric=True)


def memory_table(results: dict[str, Any]) -> Table:
    """Peak memory of Yaad above its inputs, beside the aims."""
    rows, before = [], None
    for row in results["memory"]:
        value = row["peak_above_inputs"]
        aim = f"{MEMORY_AIM / 2**20:.0f} MiB at 8192" if before is None else f"at most {DOUBLING_AIM:g} times"
        factor = "" if before is None else f"{value / before:.2f}"
        rows.append([str(row["tokens"]), f"{row['inputs'] / 2**20:.0f}", f"{value / 2**20:.0f}", factor, aim])
        before = value
    headings = ["tokens (yaad)", "inputs, MiB", "peak above them, MiB", "times the line above", "aim"]
    return Table(headings, {"": rows}, numeric=True)


def picture(results: dict[str, Any], path: Path) -> None:
    """Time of Yaad against the length, log-log, with the fitted line and one of slope 1."""
    from matplotlib.figure import Figure

    growth = results["growth"]
    lengths = [row["tokens"] for row in growth["rows"]]
    both = [row["forward_backward"]["min"] for row in growth["rows"]]
    forward = [row["forward"]["min"] for row in growth["rows"]]
    fitted = [math.exp(growth["intercept"]) * length ** growth["slope"] for length in lengths]
    figure = Figure(figsize=(7.2, 4.8), layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.plot(lengths, both, "o", color="#332288", label="forward and backward")
    axes.plot(lengths, fitted, "-", color="#332288", linewidth=1.2, label=f"fit: tokens to the power {growth['slope']:.3f}")
    axes.plot(lengths, forward, "s--", color="#117733", linewidth=1.2, label="forward")
    axes.plot(lengths, [both[0] * n / lengths[0] for n in lengths], ":", color="#777777", label="linear from the first point")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n // 1024}K" if n % 1024 == 0 else str(n) for n in lengths])
    axes.set_xlabel("tokens")
    axes.set_ylabel("seconds")
    settings, machine = results["settings"], results["machine"]
    axes.set_title(
        f"Yaad by the chunk form: {settings['heads']} heads of {settings['dim']} channels, chunk {settings['chunk']}\n"
        f"float32, {settings['threads']} threads, {machine['processor']}, {results['date']}",
        fontsize=11,
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)
