"""The tables and the picture of the chunk benchmark, from its results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cases import FLA, TITANS, TITANS_TOKENS

from miras.lab.tables import Table, markdown

MARKS = ("<!-- made by benchmarks/chunk.py -->", "<!-- end -->")
# aims of the peak memory: bytes at the first length, and the factor that doubling the length may cost
MEMORY_AIM, DOUBLING_AIM = 1.5 * 2**30, 2.0


def milliseconds(value: float) -> str:
    """Seconds as milliseconds."""
    return f"{1000 * value:.1f}"


def speed_table(results: dict[str, Any]) -> Table:
    """Milliseconds of every case, smallest and median."""
    rows = [
        [
            f"{name} ({row['note']}{'' if row['finite'] else '; not finite'})",
            *(milliseconds(row[kind][how]) for kind in ("forward", "forward_backward") for how in ("min", "median")),
        ]
        for name, row in results["speed"]["rows"].items()
    ]
    headings = ["milliseconds", "forward, min", "median", "with backward, min", "median"]
    return Table(headings, {"": rows}, numeric=True)


def aims(results: dict[str, Any]) -> Table:
    """How many times faster, beside the aims."""
    rows = [
        [
            f"{row['ours']} than {row['against']}",
            f"{row['forward']:.2f}",
            f"{row['forward_backward']:.2f}",
            "" if row["aim"] is None else f"{row['aim']:g}",
        ]
        for row in results["speed"]["ratios"]
    ]
    return Table(["times faster", "forward", "with backward", "aim"], {"": rows}, numeric=True)


def time_table(results: dict[str, Any]) -> Table:
    """Seconds of Yaad, and microseconds a token, at each length; the fitted slopes stand below."""
    rows = []
    for row in results["growth"]["rows"]:
        forward, both = row["forward"]["median"], row["forward_backward"]["median"]
        rows.append([f"{row['tokens']}", f"{forward:.3f}", f"{both:.3f}", f"{1e6 * both / row['tokens']:.0f}"])
    for name, line in (("slope, log-log", "fit"), ("where recomputed", "fit_recomputed")):
        if results["growth"][line]:
            rows.append([name, "", f"{results['growth'][line]['slope']:.3f}", ""])
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


def page(results: dict[str, Any], image: str) -> str:
    """The results as a page of the documentation."""
    settings, machine, versions = results["settings"], results["machine"], results["versions"]
    others = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    return f"""# How fast the chunk form is on a CPU

Made by `{results["command"]}`; do not edit. {machine["processor"]}, {machine["cores"]} cores, {settings["threads"]} threads,
{results["date"]}, commit {results["commit"]}; {others}.

Batch 1, {settings["heads"]} heads of {settings["dim"]} channels, chunks of {settings["chunk"]} tokens, float32,
{settings["time"]} tokens unless said. All cases take turns in one process; "min" and "median" are over {settings["rounds"]}
rounds ({settings["slow_rounds"]} for the recurrent form and titans-pytorch token by token). Keys and queries have unit norm,
gates vary around tame values, gradients flow to every input, gate and initial weight.

{markdown(speed_table(results))}

titans-pytorch's `NeuralMemory` is a whole layer: norms, projections of q, k, v and gates, and an output projection are in its
time. With `chunk_size=64, batch_size=64` its step, decay and momentum are one number for 64 tokens, and all of these read the
weights that the chunk before left; with `chunk_size=1, batch_size=64` they are made for each token and each token reads its
own state, which is what the chunk form here does.

Ratios of medians, beside what was aimed for:

{markdown(aims(results))}

## Time against length

{markdown(time_table(results))}

Beyond two stretches of 16 chunks the backward pass recomputes the forward one, stretch by stretch: from there on a token costs
more, and no more than one stretch keeps its intermediate results.

![Seconds against tokens]({image})

## Peak memory

Forward and backward, resident memory above what was there with the inputs, in a process of its own.

{markdown(memory_table(results))}
"""


def quote(results: dict[str, Any]) -> str:
    """The numbers in short, for the page about the chunk form."""
    settings, machine, growth, memory = (results[name] for name in ("settings", "machine", "growth", "memory"))
    factors = {(row["ours"], row["against"]): f"{row['forward_backward']:.1f}" for row in results["speed"]["ratios"]}
    columns = {
        "recurrent": "{name}, recurrent",
        "titans-pytorch": TITANS,
        "titans-pytorch, every token": TITANS_TOKENS,
        "fla": FLA,
    }
    rows = []
    for name, row in results["speed"]["rows"].items():
        found = [factors.get((name, other.format(name=name)), "") for other in columns.values()]
        if any(found):
            rows.append([name, *(milliseconds(row[kind]["median"]) for kind in ("forward", "forward_backward")), *found])
    headings = ["chunk form", "forward, ms", "with backward, ms", *(f"times faster than {name}" for name in columns)]
    first, last = growth["rows"][0], growth["rows"][-1]
    micros = [f"{1e6 * row['forward_backward']['median'] / row['tokens']:.0f}" for row in (first, last)]
    peaks = " and ".join(f"{row['peak_above_inputs'] / 2**20:.0f} MiB at {row['tokens']}" for row in memory)
    return f"""{settings["time"]} tokens, {settings["heads"]} heads of {settings["dim"]} channels, chunk {settings["chunk"]},
float32, medians, by `{results["command"]}` on {machine["processor"]} ({machine["cores"]} cores, {settings["threads"]} threads),
{results["date"]}, commit {results["commit"]}:

{markdown(Table(headings, {"": rows}, numeric=True))}

Yaad takes {micros[0]} microseconds a token with its backward pass at {first["tokens"]} tokens and {micros[1]} at
{last["tokens"]} (slope {growth["fit"]["slope"]:.2f} in logarithms). Its memory above the inputs peaks at {peaks} tokens."""


def inserted(text: str, quoted: str) -> str:
    """A page with what stands between its marks replaced."""
    before, mark, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (mark and end):
        raise ValueError(f"the page has no {MARKS[0]} ... {MARKS[1]} to write into")
    return f"{before}{mark}\n{quoted}\n{end}{after}"


def picture(results: dict[str, Any], path: Path) -> None:
    """Time of Yaad against the length, log-log, with the fitted line and one of slope 1."""
    from matplotlib.figure import Figure

    growth = results["growth"]
    line = growth["fit"]
    lengths = [row["tokens"] for row in growth["rows"]]
    both = [row["forward_backward"]["median"] for row in growth["rows"]]
    forward = [row["forward"]["median"] for row in growth["rows"]]
    fitted = [math.exp(line["intercept"]) * length ** line["slope"] for length in lengths]
    figure = Figure(figsize=(7.2, 4.8), layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.plot(lengths, both, "o", color="#332288", label="forward and backward")
    axes.plot(lengths, fitted, "-", color="#332288", linewidth=1.2, label=f"fit: tokens to the power {line['slope']:.2f}")
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
