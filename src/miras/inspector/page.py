"""One HTML page that holds a reading and shows it without a network.

T time, H heads
"""

from __future__ import annotations

import html
import json
import math
import re
from importlib.resources import files
from typing import Any

from .packing import Packer, thinned
from .reading import Layer, Reading

# bytes of numbers above which gates are averaged over some tokens; surprise stays token by token
BUDGET = 1_500_000
SCRIPTS = ("numbers.js", "plots.js", "map.js", "page.js")


def page(reading: Reading, source: str) -> str:
    """The page of a reading of a text named ``source``."""
    packer = Packer()
    content = _content(reading, source, packer)
    fill = {
        "/*style*/": _file("page.css"),
        "/*script*/": "\n".join(map(_file, SCRIPTS)),
        "TITLE": html.escape(f"{source} read by {reading.model}"),
        "CONTENT": json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "NUMBERS": packer.text(),
    }
    # one pass, so that nothing that was filled in is looked at again
    return re.sub(r"\{\{(.+?)\}\}", lambda place: fill[place[1]], _file("page.html"))


def _file(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _content(reading: Reading, source: str, packer: Packer) -> dict[str, Any]:
    """Everything but the numbers, and where those are."""
    tokens = reading.tokens
    every = _thinning(reading)
    return {
        "model": reading.model,
        "source": source,
        "total": tokens.total,
        "ids": tokens.ids,
        "pieces": tokens.pieces,
        "special": [number for number, special in enumerate(tokens.special) if special],
        "mean_loss": _plain(reading.loss[1:].mean().item()),
        "loss": packer.add(reading.loss[None]),
        "every": every,
        "layers": [_layer(layer, every, packer) for layer in reading.layers],
    }


def _plain(value: float) -> float | None:
    """A number as JSON has it."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _thinning(reading: Reading) -> int:
    """Over how many tokens gates are averaged: no more than keeps the page within its budget."""
    time = len(reading.tokens.ids)
    heads = sum(layer.heads * len(layer.trace.bands) for layer in reading.layers if layer.trace is not None)
    every = 1
    while 3 * heads * time / every > BUDGET:
        every *= 2
    return every


def _layer(layer: Layer, every: int, packer: Packer) -> dict[str, Any]:
    shown: dict[str, Any] = {"title": layer.title, "heads": layer.heads, "chunk": layer.chunk, "absent": layer.absent}
    trace = layer.trace
    if trace is None or trace.surprise is None:
        return {**shown, "memory": False}
    gates = []
    for name, band in trace.bands.items():
        sides = {how: packer.add(thinned(side, every, how), log=True) for how, side in band._asdict().items()}
        gates.append({"name": name, **sides})
    series = {
        "surprise": packer.add(trace.surprise, log=True),
        "error": None if trace.error is None else packer.add(trace.error, log=True),
        "clipped": None if trace.clipped is None else packer.add(trace.clipped),
        # [W,H,N] by row
        "norms": None if trace.norms is None else packer.add(trace.norms),
        "moved": None if trace.moved is None else packer.add(trace.moved),
        "zeros": None if trace.zeros is None else packer.add(trace.zeros),
    }
    weights = 0 if trace.norms is None else trace.norms.shape[0]
    return {**shown, "memory": True, "ends": trace.ends, "weights": weights, "gates": gates, **series}
