"""Tables of an experiment's results: losses by stage, what was chosen, losses by place."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..train.metrics import Line
from . import results
from .plan_file import Plan, Run
from .tables import Table

ABSENT = "-"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a table: the runs of one model and variant, over seeds."""

    stage: str
    name: str
    rows: tuple[Line, ...]

    def over_seeds(self, value: Callable[[Line], float | None]) -> list[float]:
        """A value of every run that was trained to its end and has it."""
        found = [value(row) for row in self.rows if row["status"] in results.TRAINED]
        return [number for number in found if number is not None]


def entries(plan: Plan, found: list[Line], stage: str) -> list[Entry]:
    """The runs of a stage that have a result, in the plan's order."""
    latest = results.latest(found)
    groups: dict[str, list[Line]] = {}
    for run in plan.of_stage(stage):
        if run.name in latest:
            groups.setdefault(title(run), []).append(latest[run.name])
    return [Entry(stage=stage, name=name, rows=tuple(rows)) for name, rows in groups.items()]


def title(run: Run) -> str:
    """The model and the variant of a run."""
    return f"{run.model}, {run.variant}" if run.variant else run.model


def unit_of(plan: Plan) -> str:
    """What a text's tokens are measured in: bits a byte where they are bytes, else perplexity."""
    tokenizers = {run.options.get("data.tokenizer", "bytes") for run in plan.runs}
    return "bits_per_byte" if tokenizers == {"bytes"} else "perplexity"


UNITS = {"bits_per_byte": "bits/byte", "perplexity": "perplexity"}


def read_of(row: Line, name: str) -> Line | None:
    """One of a run's reads, by its name in the plan."""
    return next((read for read in row.get("reads", ()) if read["read"] == name), None)


def reads_of(entry: Iterable[Entry]) -> list[str]:
    """The reads that any of the runs has, in the order in which they first occur."""
    return list(dict.fromkeys(read["read"] for one in entry for row in one.rows for read in row.get("reads", ())))


def with_read(own: Iterable[Entry], name: str) -> list[tuple[Entry, list[Line]]]:
    """The entries that have a read, each with that of every run."""
    found = [(entry, [read for row in entry.rows if (read := read_of(row, name)) is not None]) for entry in own]
    return [(entry, reads) for entry, reads in found if reads]


def shown(values: list[float], digits: int = 3) -> str:
    """A mean, and half the distance of the extremes where there are several."""
    if not values:
        return ABSENT
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {(max(values) - min(values)) / 2:.{digits}f}"


def stage_table(plan: Plan, own: list[Entry]) -> Table:
    """The runs of a stage, the best first by the last column of losses, on the text they were trained for, that they have."""
    unit = unit_of(plan)
    whole = [name for name in reads_of(own) if "/sliding/" in name]

    def of_read(name: str) -> Callable[[Line], float | None]:
        def value(row: Line) -> float | None:
            read = read_of(row, name)
            return None if read is None else read[unit]

        return value

    columns = [of_read(name) for name in whole]
    headings = ["model", "parameters", "rate", "seeds", "valid bits/byte", *(f"{name}, {UNITS[unit]}" for name in whole)]
    table = []
    for entry in own:
        first = entry.rows[0]
        losses = [entry.over_seeds(valid), *(entry.over_seeds(column) for column in columns)]
        size = (first.get("parameters") or {}).get("body")
        speed = entry.over_seeds(lambda row: row["tokens_per_second"] / 1e3)
        cells = [
            entry.name,
            f"{size / 1e6:.3g}M" if size else ABSENT,
            f"{first['options'].get('optim.lr', 0):g}",
            str(len(entry.rows)),
            *(shown(values) for values in losses),
            shown(speed, 0),
        ]
        bad = next((row for row in entry.rows if row["status"] not in results.TRAINED), None)
        if bad is not None:
            cells[4] = bad["status"]
        ranking = [values for values, name in zip(losses, ["", *whole], strict=True) if ":" not in name]
        rank = next((statistics.fmean(values) for values in reversed(ranking) if values), float("inf"))
        table.append((rank, cells))
    ranked = [cells for _, cells in sorted(table, key=lambda row: row[0])]
    # a processor's cores had other work too
    timed = any(row.get("device") != "cpu" for entry in own for row in entry.rows)
    kept = len(headings) + int(timed)
    return Table([*headings, "1000 tokens/s"][:kept], {"": [cells[:kept] for cells in ranked]}, numeric=True)


def all_alike(plan: Plan, found: list[Line]) -> Table | None:
    """Every model that read as many tokens, as long at a time, as most did, the best first; None where that is one stage's."""
    unit, own = unit_of(plan), [entry for stage in plan.stages for entry in entries(plan, found, stage)]
    wholes = [name for name in reads_of(own) if "/sliding/" in name and ":" not in name]
    if not wholes:
        return None
    lengths, groups = long_reads(own), dict[tuple[int, int], list[Entry]]()
    kinds = {run.name: (run.config({}).steps, run.config({}).data.length) for run in plan.runs}
    for entry, _ in with_read(own, wholes[-1]):
        groups.setdefault(kinds[entry.rows[0]["run"]], []).append(entry)
    alike = max(groups.values(), key=len, default=[])
    if len({entry.stage for entry in alike}) < 2:
        return None

    def far(row: Line) -> float | None:
        read = next((read for name in lengths if (read := read_of(row, name)) is not None), None)
        return None if read is None else read["places"][-1][unit]

    rows = []
    for entry in alike:
        near = entry.over_seeds(lambda row: (read_of(row, wholes[-1]) or {}).get(unit))
        rows.append(
            (statistics.fmean(near), [entry.name, entry.stage, str(len(near)), shown(near), shown(entry.over_seeds(far))])
        )
    heads = ["model", "stage", "seeds", f"{wholes[-1]}, {UNITS[unit]}", "far"]
    return Table(heads, {"": [cells for _, cells in sorted(rows, key=lambda row: row[0])]}, numeric=True)


def chooses(plan: Plan, stage: str) -> bool:
    """Whether a stage tries the same variants on several models and reads nothing: it chooses among them."""
    own = plan.of_stage(stage)
    return len({run.variant for run in own}) > 1 and not any(run.reads for run in own)


def choice_table(plan: Plan, found: list[Line], stage: str) -> Table:
    """Validation of each model under each variant, rates in their order; the best in bold, with a † at an end of the rates."""
    latest = results.latest(found)
    rates = {run.variant: run.options.get("optim.lr", 0.0) for run in plan.of_stage(stage)}
    variants = sorted(rates, key=lambda variant: rates[variant])
    ends = {variants[0], variants[-1]} if len(set(rates.values())) == len(variants) > 1 else set()
    table = []
    for model in dict.fromkeys(run.model for run in plan.of_stage(stage)):
        own = {run.variant: latest.get(run.name) for run in plan.of_stage(stage) if run.model == model}
        bits = {name: valid(row) for name, row in own.items() if row is not None and row["status"] in results.TRAINED}
        best = min((value for value in bits.values() if value is not None), default=None)
        cells = []
        for name in variants:
            row, value = own.get(name), bits.get(name)
            text = ABSENT if row is None else row["status"] if value is None else f"{value:.3f}"
            edge = " †" if name in ends else ""
            cells.append(f"**{text}**{edge}" if value is not None and value == best else text)
        table.append([model, *cells])
    return Table(["model, valid bits/byte", *variants], {"": table}, numeric=True)


def valid(row: Line) -> float | None:
    """The last validation."""
    return row["valid"]["bits_per_byte"] if row.get("valid") else None


def long_reads(own: list[Entry]) -> list[str]:
    """The reads that tell the loss by place."""
    return [name for name in reads_of(own) if "/long/" in name]


def place_table(plan: Plan, own: list[Entry], name: str) -> Table:
    """The loss by place in long windows, a column a stretch."""
    unit = unit_of(plan)
    long = with_read(own, name)
    edges = sorted({(place["from"], place["to"]) for _, reads in long for read in reads for place in read["places"]})
    table = []
    for entry, reads in long:
        found = [{(place["from"], place["to"]): place[unit] for place in read["places"]} for read in reads]
        cells = [shown([one[edge] for one in found if edge in one]) for edge in edges]
        table.append([entry.name, str(reads[0]["unit"]), *cells])
    return Table(["model", "trained at", *(f"{left}-{right}" for left, right in edges)], {"": table}, numeric=True)
