"""Verdicts by rule: whether models are ahead of others by more than their seeds alone would make of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Verdict = Literal["holds here", "holds in part", "mixed", "not told apart", "does not hold here", "open"]
# one number a seed, by model
Figures = Mapping[str, Sequence[float]]


class Finding(NamedTuple):
    """A verdict, and what it rests on in words; ``weak`` where no model has two seeds, so that any distance counted."""

    verdict: Verdict
    said: str
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.verdict}, one seed" if self.weak and self.verdict != "open" else self.verdict


NOT_RUN = Finding("open", "Not run yet.")


class Measure(NamedTuple):
    """How figures are told: their unit and digits, and whether more is better."""

    unit: str
    digits: int
    more: bool = False

    def told(self, values: Sequence[float]) -> str:
        """A mean."""
        return f"{statistics.fmean(values):.{self.digits}f}"

    def gain(self, values: Sequence[float], other: Sequence[float]) -> float:
        """By how much the first are better, as far as the digits tell."""
        ahead = statistics.fmean(values) - statistics.fmean(other)
        return round(ahead if self.more else -ahead, self.digits)

    def best(self, figures: Figures) -> str:
        """The model with the best mean."""
        return (max if self.more else min)(figures, key=lambda name: statistics.fmean(figures[name]))

    def distance(self, gain: float) -> str:
        """A distance in words."""
        return "level" if gain == 0 else f"{abs(gain):.{self.digits}f} {'ahead' if gain > 0 else 'behind'}"


BITS, PERCENT, RATIO = Measure("bits/byte", 3), Measure("%", 1, more=True), Measure("times", 3, more=True)
PERPLEXITY = Measure("perplexity", 2)


class Noise(NamedTuple):
    """How far seeds of one model lie apart: a standard deviation, and how many degrees of freedom it rests on."""

    deviation: float
    freedom: int

    def margin(self, one: int, other: int) -> float:
        """What the distance of two means, of so many seeds, must exceed: of models alike, one time in twenty it does."""
        return quantile(self.freedom) * self.deviation * math.sqrt(1 / one + 1 / other)


def pooled(*every: Figures) -> Noise | None:
    """The noise of all models together that have two seeds or more; None where none has."""
    several = [own for figures in every for own in figures.values() if len(own) > 1]
    if not several:
        return None
    squares = sum(sum((value - statistics.fmean(own)) ** 2 for value in own) for own in several)
    freedom = sum(len(own) - 1 for own in several)
    return Noise(math.sqrt(squares / freedom), freedom)


def quantile(freedom: int, share: float = 0.975) -> float:
    """The value below which a share of Student's t distribution lies.

    >>> round(quantile(1), 2), round(quantile(5), 2), round(quantile(200), 2)
    (12.71, 2.57, 1.97)
    """
    size = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def below(t: float) -> float:
        """Simpson's rule in the angle whose tangent is t / sqrt(freedom), in which the density is a power of a cosine."""
        end, pieces = math.atan(t / math.sqrt(freedom)), 200
        weights = [1, *[4, 2] * (pieces // 2 - 1), 4, 1]
        heights = [math.cos(end * i / pieces) ** (freedom - 1) for i in range(pieces + 1)]
        whole = sum(w * h for w, h in zip(weights, heights, strict=True)) * end / pieces / 3
        return float(0.5 + size * math.sqrt(freedom) * whole)

    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return low


def chance(wins: int, losses: int) -> float:
    """How often a fair coin is as one-sided as this, or more (the sign test, both sides).

    >>> chance(4, 0), chance(1, 1)
    (0.125, 1.0)
    """
    tosses = wins + losses
    tail = sum(math.comb(tosses, k) for k in range(max(wins, losses), tosses + 1))
    return min(1.0, tail / math.pow(2, tosses - 1))


class Gain(NamedTuple):
    """By how much a model is better than another, and what that must exceed to count."""

    by: float
    margin: float


def gain_of(own: Sequence[float], other: Sequence[float], measure: Measure, noise: Noise | None) -> Gain:
    """The distance of two means; any counts where nothing tells how far seeds lie apart."""
    return Gain(measure.gain(own, other), 0.0 if noise is None else noise.margin(len(own), len(other)))


def compared(gains: Mapping[str, Gain | None]) -> Verdict:
    """A verdict on models that should be ahead, by how much they are; None for one that was not run."""
    run = [gain for gain in gains.values() if gain is not None]
    if not run or len(run) < len(gains):
        return "open"
    ahead = sum(gain.by > gain.margin for gain in run)
    behind = any(gain.by < -gain.margin for gain in run)
    if ahead == len(run):
        return "holds here"
    if ahead:
        return "mixed" if behind else "holds in part"
    return "does not hold here" if behind else "not told apart"


def rested_on(gains: Mapping[str, Gain | None], measure: Measure, noise: Noise | None) -> str:
    """From where on a distance counted, and why, in words."""
    if noise is None:
        return "One seed each: any distance counts."
    margins = [f"{gain.margin:.{measure.digits}f}" for gain in gains.values() if gain is not None]
    least, most = min(margins, key=float), max(margins, key=float)
    counts = least if least == most else f"{least} to {most}"
    return (
        f"A distance counts from {counts}: seeds of one model have a standard deviation of "
        f"{noise.deviation:.{measure.digits}f} ({noise.freedom} degree{'s' if noise.freedom > 1 else ''} of freedom)."
    )


def against(
    ours: Figures,
    others: Figures,
    wanted: Sequence[str],
    needed: Sequence[str],
    measure: Measure,
    noise: Noise | None = None,
) -> Finding:
    """Whether each of the wanted is better than the best of the others, of which all that are needed must have been run.

    ``noise`` is that of all models like these; where it is not given, these tell it themselves.
    """
    missing = [name for name in needed if name not in others]
    if not others or not ours:
        return NOT_RUN
    best, noise = measure.best(others), noise or pooled(ours, others)
    gains = {name: gain_of(ours[name], others[best], measure, noise) if name in ours else None for name in wanted}
    said = [
        f"{name} not run" if gain is None else f"{name} {measure.told(ours[name])} ({measure.distance(gain.by)})"
        for name, gain in gains.items()
    ]
    words = f"Best of the others: {best} {measure.told(others[best])} {measure.unit}. {', '.join(said)}."
    words += f" {rested_on(gains, measure, noise)}"
    if missing:
        return Finding("open", f"{words} Not run: {', '.join(missing)}.")
    return Finding(compared(gains), words, weak=noise is None)


def pairwise(
    better: Figures, worse: Figures, pairs: Mapping[str, str], measure: Measure, noise: Noise | None = None
) -> Finding:
    """Whether each first model is better than its second."""
    if not any(one in better and other in worse for one, other in pairs.items()):
        return NOT_RUN
    own = ({one: better[one] for one in pairs if one in better}, {two: worse[two] for two in pairs.values() if two in worse})
    noise = noise or pooled(*own)
    gains = {
        one: gain_of(better[one], worse[other], measure, noise) if one in better and other in worse else None
        for one, other in pairs.items()
    }
    said = []
    for (one, other), gain in zip(pairs.items(), gains.values(), strict=True):
        told = f"{one} not run"
        if gain is not None:
            told = f"{one} {measure.told(better[one])} for {other} {measure.told(worse[other])} ({measure.distance(gain.by)})"
        said.append(told)
    words = f"{', '.join(said)} ({measure.unit}). {rested_on(gains, measure, noise)}"
    return Finding(compared(gains), words, weak=noise is None)


def best(figures: Figures, name: str, rivals: Sequence[str], measure: Measure, noise: Noise | None = None) -> Finding:
    """Whether one model is the best: better than each of its rivals, none of which has a better mean."""
    found = favourite(figures, name, rivals, measure, noise)
    first = measure.best({one: figures[one] for one in (name, *rivals) if one in figures}) == name if name in figures else False
    return found if first or found.verdict != "holds in part" else found._replace(verdict="not told apart")


def favourite(figures: Figures, name: str, rivals: Sequence[str], measure: Measure, noise: Noise | None = None) -> Finding:
    """Whether one model is better than each of its rivals."""
    if name not in figures or not any(rival in figures for rival in rivals):
        return NOT_RUN
    noise = noise or pooled({one: figures[one] for one in (name, *rivals) if one in figures})
    gains = {rival: gain_of(figures[name], figures[rival], measure, noise) if rival in figures else None for rival in rivals}
    said = [
        f"{rival} not run" if gain is None else f"{rival} {measure.told(figures[rival])} ({measure.distance(-gain.by)})"
        for rival, gain in gains.items()
    ]
    words = f"{name} {measure.told(figures[name])}; {', '.join(said)} ({measure.unit}). {rested_on(gains, measure, noise)}"
    return Finding(compared(gains), words, weak=noise is None)
