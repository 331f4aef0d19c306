"""``miras eval perplexity``: perplexity and bits per byte of a text, whole and by position."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ..types import require
from .extras import needed
from .measuring import about, add_shared, bar, loaded, numbers, precision, table

if TYPE_CHECKING:
    from ..eval import Perplexity, Sliding, Streaming


def add_perplexity(command: argparse.ArgumentParser) -> None:
    """The options of ``miras eval perplexity``."""
    command.description = (
        "Perplexity, nats a token and bits per byte of a text, each token scored once, and the same by position. Sliding: "
        "windows that start from fresh memories. Streaming: one pass, the memory carried over the whole text."
    )
    add_shared(command)
    command.add_argument(
        "--data", metavar="FILE", type=Path, required=True, help="a text, .jsonl, .parquet, packed or not, or a folder"
    )
    command.add_argument("--data.field", dest="field", metavar="NAME", default="text", help="the text of a line (default text)")
    command.add_argument(
        "--data.on_bad", dest="on_bad", choices=("error", "skip"), default="error", help="what to do with bad lines"
    )
    command.add_argument("--span", metavar="A:B", help="bytes A to B - 1 of a plain text, such as 95000000:100000000 of enwik8")
    command.add_argument("--separate", action="store_true", help="start each document from fresh memories")
    command.add_argument("--mode", choices=("sliding", "streaming"), default="sliding", help="(default sliding)")
    command.add_argument("--context", type=int, metavar="N", help="sliding: tokens of a window (default 2048)")
    command.add_argument("--stride", type=int, metavar="N", help="sliding: how far a window moves (default half of --context)")
    command.add_argument("--stretch", type=int, metavar="N", help="streaming: tokens read at once (default 2048)")
    command.add_argument(
        "--rows", type=int, metavar="N", help="streaming: parts, or separate documents, read side by side (default 1)"
    )
    command.add_argument("--buckets", metavar="N[,N...]", help="positions to tell losses by: a width, or edges")
    command.add_argument("--json", metavar="OUT", type=Path, help="write all numbers to a file")
    command.set_defaults(run=run_perplexity, parser=command)


def run_perplexity(arguments: argparse.Namespace) -> None:
    """``miras eval perplexity``."""
    needed("eval", "numpy", "eval")
    from ..eval import documents_of, perplexity, text_of
    from ..files import check_target, write_json

    mode = mode_of(arguments)
    edges = None if arguments.buckets is None else numbers("--buckets", arguments.buckets)
    if arguments.json is not None:
        check_target(arguments.json, "cannot write", (arguments.data, arguments.model))
    documents, warnings = documents_of(
        arguments.data, field=arguments.field, span=span_of(arguments.span), on_bad=arguments.on_bad
    )
    model = loaded(arguments)
    text = text_of(documents, model.tokenizer, str(arguments.data))
    for warning in warnings:
        print(warning)
    with bar(arguments.data.name, "tokens") as progress:
        found = perplexity(
            model.model,
            model.tokenizer,
            text,
            mode=mode,
            separate=arguments.separate,
            buckets=edges[0] if edges is not None and len(edges) == 1 else edges,
            autocast=precision(arguments),
            progress=progress,
        )
    if arguments.json is not None:
        write_json(arguments.json, {**about(arguments, model), "span": arguments.span, **found.to_dict()})
    print(told(found))


def mode_of(arguments: argparse.Namespace) -> Sliding | Streaming:
    """How to read; an option of the other way is refused."""
    from ..eval import Sliding, Streaming

    own = {"sliding": ("context", "stride"), "streaming": ("stretch", "rows")}
    given = {name: getattr(arguments, name) for name in ("context", "stride", "stretch", "rows")}
    for name, value in given.items():
        fits = value is None or name in own[arguments.mode]
        require(fits, f"--{name} is no option of --mode {arguments.mode}, which takes {' and '.join(own[arguments.mode])}")
    chosen = {name: value for name, value in given.items() if value is not None}
    if arguments.mode == "streaming":
        return Streaming(**chosen)
    return Sliding(batch_tokens=arguments.batch_tokens, **chosen)


def span_of(text: str | None) -> tuple[int, int] | None:
    """The two numbers of A:B."""
    if text is None:
        return None
    parts = text.split(":")
    require(len(parts) == 2 and all(part.isdecimal() for part in parts), f"--span takes A:B, such as 0:1000, got {text!r}")
    return int(parts[0]), int(parts[1])


def told(found: Perplexity) -> str:
    """The result for people."""
    rows = [["positions", "tokens", "bits/byte", "nats/token", "perplexity"]]
    places = [(f"{bucket.begin:,}-{bucket.end:,}", bucket.loss) for bucket in found.buckets]
    for name, loss in [*places, ("all", found.loss)]:
        number = f"{loss.perplexity:,.2f}" if math.isfinite(loss.perplexity) else "-"
        rows.append([name, f"{loss.tokens:,}", f"{loss.bits_per_byte:.4f}", f"{loss.nats_per_token:.4f}", number])
    how = ", ".join(f"{key} {value}" for key, value in found.mode.to_dict().items() if key != "mode")
    rate = found.loss.tokens / max(found.seconds, 1e-9)
    words = f"{found.word_perplexity:,.2f}" if math.isfinite(found.word_perplexity) else "-"
    return (
        f"{found.title}: {found.loss.bytes:,} bytes, {found.mode.to_dict()['mode']}, {how}\n{table(rows)}\n"
        f"Perplexity is that of tokens; of its {found.words:,} words it is {words}.\n"
        f"Took {found.seconds:.1f} s ({rate:,.0f} tokens a second)."
    )
