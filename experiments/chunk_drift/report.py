"""The page and the picture of the drift experiment, made from its file of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from findings import conclusions
from measure import CHUNKS, DECAY, DELTA, KEYS, MODELS, MU, RETENTION_CHUNKS, SMALL_STEP, STEPS, STRONG_DECAY
from rows import CLOSE, SHARE, Results, Row, close, largest, learned, percent, wrapped

from miras.files import write_figure
from miras.lab.tables import Table, markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"Yaad": "#117733", "Titans": "#332288", "Moneta": "#CC6677", "Memora, dual": "#999933", "Memora, lag": "#882255"}
MARKERS = {"Yaad": "o", "Titans": "s", "Moneta": "^", "Memora, dual": "D", "Memora, lag": "v"}


def named(name: str, decay: float) -> str:
    """A model in a table; the strong decay is said."""
    return name if decay == DECAY else f"{name}, decay {decay:g}"


def groups(steps: tuple[float, ...] = STEPS) -> list[tuple[str, str, float]]:
    """The ways of drawing keys and steps: title, keys, step."""
    return [(f"{keys} keys, step {step:g}", keys, step) for keys in KEYS for step in steps]


def models() -> list[tuple[str, float]]:
    """Every model at every decay it was measured at."""
    return [(n, d) for n, s in MODELS.items() for d in ((DECAY, STRONG_DECAY) if s.retention.anchored else (DECAY,))]


def table_of_models(results: Results, whats: tuple[str, ...]) -> Table:
    """Drift by chunk size, in percent, and how far learning moved the same quantity."""
    table: dict[str, list[list[str]]] = {}
    for title, keys, step in groups((*STEPS, SMALL_STEP)):
        table[title] = []
        for name, decay in models():
            own = results.where(part="models", name=name, keys=keys, step=step, decay=decay)
            if own:
                cells = [" / ".join(percent(row["drift"][w]) for w in whats) for row in own if row["chunk"] > 1]
                moved = " / ".join(percent(own[0]["moved"][w]) for w in whats)
                table[title].append([named(name, decay), moved, *cells])
    return Table(["model", "moved", *(str(c) for c in CHUNKS[1:])], table, numeric=True)


def table_of_retentions(results: Results) -> Table:
    """Drift of y, W1 and W2 at the chunk sizes measured for every retention."""
    table: dict[str, list[list[str]]] = {}
    for title, keys, step in groups():
        names = dict.fromkeys(row["name"] for row in results.where(part="retentions"))
        table[title] = []
        for name in names:
            own = results.where(part="retentions", name=name, keys=keys, step=step)
            cells = [percent(row["drift"][w]) for row in own for w in ("y", "W1", "W2")]
            table[title].append([name, percent(own[0]["moved"]["y"]), *cells])
    headings = ["retention", "y moved", *(f"{w} at {c}" for c in RETENTION_CHUNKS for w in ("y", "W1", "W2"))]
    return Table(headings, table, numeric=True)


def table_of_largest(results: Results) -> Table:
    """The largest chunk sizes that stay close, and whose drift is small next to what was learned."""
    rows = []
    for name, decay in models():
        cells = []
        for _, keys, step in groups((SMALL_STEP, *STEPS)):
            own = results.where(part="models", name=name, keys=keys, step=step, decay=decay)
            cells.append(f"{largest(own, close)} / {largest(own, learned)}" if own else "")
        rows.append([named(name, decay), *cells])
    return Table(["model", *(title for title, *_ in groups((SMALL_STEP, *STEPS)))], {"": rows}, numeric=True)


def page(rows: list[Row]) -> str:
    """The page."""
    results = Results(rows)
    made = "; ".join(sorted({f"commit {r['commit']}, {r['date']}, torch {r['torch']}, {r['processor']}" for r in rows}))
    parts = {
        "What it says": conclusions(results),
        "Which chunk is close": wrapped(
            f"""Two chunk sizes: the largest up to which outputs and both weights stay within {100 * CLOSE:g} % of the exact
            ones, and the largest up to which their drift is at most {100 * SHARE:g} % of how far they moved. 1 is the
            recurrence itself; what was not measured is left empty."""
        )
        + f"\n\n{markdown(table_of_largest(results))}",
        "Outputs, by chunk size": f"Drift of y in percent.\n\n{markdown(table_of_models(results, ('y',)))}",
        "Weights, by chunk size": "Drift of W1 / W2 after the last token, in percent.\n\n"
        + markdown(table_of_models(results, ("W1", "W2"))),
        "Every non-linear retention": "An MLP memory with the l2 bias and gradient descent; drift in percent.\n\n"
        + markdown(table_of_retentions(results)),
    }
    sections = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items())
    return f"{introduction(rows[0])}\n\n{sections}\n\nRun with {made}.\n"


def introduction(row: Row) -> str:
    """What was done."""
    text = f"""The [chunk form](../chunk.md) takes the gradients of a chunk at its start. Here it is compared with the recurrent
        form, token for token: {row["tokens"]} tokens, {row["dim"]} channels, float64, median of {row["repeats"]} repeats with
        keys, values and initial weights of their own. The drift of x is the norm of x - exact over the norm of exact, in
        percent: of all outputs (y) and of the final weights (W1, W2). "Moved" is the same for a memory that has learned
        nothing: how far the recurrence itself went from the initial weights. Keys and queries have length 1 and are independent
        ("random") or follow an AR(1) process with a correlation of {KEYS["correlated"]:g} from token to token ("correlated");
        values are standard normal. Gates are constant: a step of {STEPS[0]:g} or {STEPS[1]:g} times the standard deviations of
        W and A (times 1 - mu with momentum), a decay (minus log alpha) of {DECAY:g} unless said, delta {DELTA:g}, mu {MU:g}.
        Weights start with unit standard deviation, logits with 1.5."""
    return f"""# How far chunks drift from the exact recurrence

Made by `python experiments/chunk_drift/run.py` from `experiments/chunk_drift/results.jsonl`; do not edit.

{wrapped(text)}

![Drift of outputs and weights against the chunk size](chunk_drift.png)"""


def picture(rows: list[Row], path: Path) -> None:
    """Drift of outputs (above) and of the worse of the two weights (below), a column for each kind of keys and steps."""
    from matplotlib.figure import Figure

    results = Results(rows)
    figure = Figure(figsize=(14.5, 7.6), layout="constrained", dpi=110)
    axes = figure.subplots(2, len(groups()), sharex=True, sharey=True)
    for column, (title, keys, step) in enumerate(groups()):
        for line, whats in enumerate((("y",), ("W1", "W2"))):
            draw(axes[line][column], results, keys, step, whats)
        axes[0][column].set_title(title, fontsize=11)
        axes[1][column].set_xlabel("tokens of a chunk")
    axes[0][0].set_ylabel("drift of the outputs (%)")
    axes[1][0].set_ylabel("drift of the final weights (%),\nthe larger of W1 and W2")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, handlelength=3.5)
    figure.suptitle(
        "How far the chunk form drifts from the exact recurrence "
        f"(solid: as in the paper, dashed: anchored, dotted: {100 * CLOSE:g} %)"
    )
    write_figure(figure, path)


def draw(axes: Axes, results: Results, keys: str, step: float, whats: tuple[str, ...]) -> None:
    """One panel: a line for each model at the mild decay."""
    for name in MODELS:
        own = [row for row in results.where(part="models", name=name, keys=keys, step=step, decay=DECAY) if row["chunk"] > 1]
        base, anchored = name.removesuffix(", anchored"), name.endswith("anchored")
        axes.plot(
            [row["chunk"] for row in own],
            [100 * max(row["drift"][w] for w in whats) for row in own],
            label=name,
            color=COLOURS[base],
            marker=MARKERS[base],
            markersize=4.5,
            linestyle="--" if anchored else "-",
            markerfacecolor="white" if anchored else None,
            linewidth=1.6,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(0.05, 400)
    axes.set_xticks(CHUNKS[1:], [str(c) for c in CHUNKS[1:]])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.axhline(100 * CLOSE, color="black", linewidth=0.8, linestyle=":")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
