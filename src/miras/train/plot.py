"""The picture of a run: losses above, the learning rate below."""

from __future__ import annotations

from pathlib import Path

from .metrics import Line

BLUE, ORANGE, GREY = "#3a6ea5", "#d1603d", "#b9c4d0"


def draw(lines: list[Line], path: Path, title: str, bits: float) -> None:
    """Write a PNG of the curves.

    Args:
        lines: of ``metrics.jsonl``.
        path: where to.
        title: the run's name.
        bits: bits per byte of one nat per token.
    """
    from matplotlib.figure import Figure

    steps = [line for line in lines if "loss" in line and "skipped" not in line]
    skipped = [line["step"] for line in lines if "skipped" in line]
    valid = [line for line in lines if line.get("valid_loss") is not None]
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    places = [line["step"] for line in steps]
    losses = [line["loss"] * bits for line in steps]
    top.plot(places, losses, color=GREY, linewidth=0.8, label="training, each step")
    top.plot(places, smoothed(losses), color=BLUE, linewidth=1.8, label="training, smoothed")
    if valid:
        values = [line["valid_bits_per_byte"] for line in valid]
        top.plot([line["step"] for line in valid], values, "o-", color=ORANGE, label=f"validation, {values[-1]:.3f} at the end")
    for place in skipped:
        top.axvline(place, color=ORANGE, alpha=0.3, linewidth=0.8)
    if losses:
        low, high = min([*losses, *(line["valid_bits_per_byte"] for line in valid)]), max(losses[:20])
        margin = 0.03 * (high - low) or 0.1
        top.set_ylim(low - margin, high + margin)
    top.set_ylabel("bits per byte")
    top.set_title(title, loc="left", fontsize=11)
    top.legend(frameon=False)
    bottom.plot(places, [line["lr"] for line in steps], color=BLUE)
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("step")
    bottom.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=120)


def smoothed(values: list[float], keep: float = 0.9) -> list[float]:
    """The running average m = keep m + (1 - keep) x, divided by what it would be for x = 1."""
    result, mean, weight = [], 0.0, 0.0
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        result.append(mean / weight)
    return result
