"""What the drift experiment says, in a few sentences; every number in them is looked up."""

from __future__ import annotations

import math

from measure import DECAY, KEYS, SMALL_STEP, STEPS, STRONG_DECAY
from rows import CLOSE, SHARE, Results, close, largest, learned, percent, wrapped


def growth(results: Results, name: str, keys: str, step: float) -> float:
    """The slope of log drift of y over log chunk size, from chunks of 4 to 64 tokens."""
    low, high = (results.drift("y", name, keys, step, chunk) for chunk in (4, 64))
    return math.log(high / low) / math.log(64 / 4)


def conclusions(results: Results) -> str:
    """What the numbers say, in a few sentences; every number is looked up."""
    same = max(max(row["drift"].values()) for row in results.where(chunk=1))
    rounding = f"A chunk of one token is the recurrence: the largest drift of any model is {same:.0e}, rounding."
    said = [rounding, of_linear(results), of_anchors(results), of_moneta(results), of_memora(results), of_sizes(results)]
    return "\n".join(wrapped(text, "- ") for text in said)


def of_linear(results: Results) -> str:
    """Yaad and Titans."""
    low, high = STEPS
    slopes = [growth(results, "Yaad", keys, low) for keys in KEYS]
    return f"""**Yaad and Titans** move linearly in the recurrence too; in a chunk their gradients are older, nothing else.
        With random keys the outputs of Yaad drift by {results.both("Yaad", "random", low)} at a step of {low:g}, and by
        {results.both("Yaad", "random", high)} at a step of {high:g}. Keys that resemble their neighbours make it
        {results.both("Yaad", "correlated", low)}, and {results.both("Yaad", "correlated", high)}: what a
        chunk's tokens would have told each other gets lost. Titans does the same
        ({results.both("Titans", "random", low)} with random keys and the small step). At the small step the drift
        grows like the chunk size to the power {slopes[0]:.2f} (random keys) and {slopes[1]:.2f} (correlated)."""


def of_anchors(results: Results) -> str:
    """What an anchor changes."""
    low, anchored = STEPS[0], "Yaad, anchored"

    def share(name: str, chunk: int, decay: float) -> str:
        (row,) = results.where(name=name, keys="random", step=low, chunk=chunk, decay=decay)
        return percent(row["drift"]["y"] / row["moved"]["y"]) + " %"

    longest = percent(results.drift("y", anchored, "random", low, 256, STRONG_DECAY))
    return f"""**Anchors** with the same gates bring that to {results.both(anchored, "random", low)}; with the decay of
        {STRONG_DECAY:g} that anchored models can afford it is {results.both(anchored, "random", low, STRONG_DECAY)}
        (correlated keys: {results.both(anchored, "correlated", low, STRONG_DECAY)}), and chunks of 256 add little,
        {longest} %: what has drifted is forgotten. They also move less. As a share of how far the outputs moved, the drift
        at chunk 16 is {share("Yaad", 16, DECAY)} without an anchor, {share(anchored, 16, DECAY)} with one,
        {share(anchored, 16, STRONG_DECAY)} with the strong decay; at chunk 256 {share("Yaad", 256, DECAY)},
        {share(anchored, 256, DECAY)} and {share(anchored, 256, STRONG_DECAY)}."""


def of_moneta(results: Results) -> str:
    """Moneta, and why it drifts more."""
    low, high = STEPS
    moved = [results.where(name=n, keys="random", step=low, chunk=16)[0]["moved"]["y"] for n in ("Moneta", "Yaad")]
    return f"""**Moneta** drifts more, {results.both("Moneta", "random", low)}, because it moves more: the gradient of a
        third power is several times larger, and the same relative step takes its outputs {percent(moved[0])} % away from
        where they were, Yaad's {percent(moved[1])} %. The retention is not to blame: with the l2 bias (last table) it drifts by
        {results.both("Lq(q=4, link=paper)", "random", low)}, less than L2. At a step of {SMALL_STEP:g} Moneta drifts by
        {results.both("Moneta", "random", SMALL_STEP)}; at {high:g} nothing of its recurrence is left at any chunk size
        above 1. With p = 3 a smaller step helps more than a smaller chunk."""


def of_memora(results: Results) -> str:
    """Memora's two chunk forms."""
    low = STEPS[0]
    smallest = percent(results.drift("y", "Memora, lag", "random", low, 2))
    weights = " and ".join(percent(results.drift(w, "Memora, dual", "random", low, 64)) for w in ("W1", "W2"))
    return f"""**Memora** with `chunk="lag"` is a model of its own rather than an approximation that smaller chunks improve:
        {smallest} % at chunk 2, {results.both("Memora, lag", "random", low)}. After its first token it moves weights by
        amounts, the recurrence by shares of themselves. `chunk="dual"` does follow its recurrence:
        {results.both("Memora, dual", "random", low)}; its weights ({weights} % at 64) better than its reads inside a
        chunk, which take the softmax's slope at uniform weights."""


def of_sizes(results: Results) -> str:
    """Which chunk to take."""
    low, high = STEPS

    def sizes(keys: str, step: float) -> str:
        own = results.where(name="Yaad", keys=keys, step=step, decay=DECAY)
        return f"{largest(own, close)} ({largest(own, learned)})"

    return f"""**Which chunk is safe**: for Yaad to stay within {100 * CLOSE:g} % of its recurrence (in brackets: for the drift
        to be at most {100 * SHARE:g} % of what was learned), chunks of up to {sizes("random", low)} tokens with random keys and
        {sizes("correlated", low)} with correlated ones at a step of {low:g}, {sizes("random", high)} and
        {sizes("correlated", high)} at {high:g}. Beyond that a chunk is a different model, which may be as good; train it in the
        chunks it will run in."""
