"""How soon small language models learn bytes of text, on the CPU, in a few minutes each: what stands around a memory.

    python experiments/first_steps/language.py enwik8.xz --model yaad --output-gate sigmoid

Two blocks of 128 channels; the bits a byte of the last 40 steps are the result. B batch, T bytes of a sequence
``gates.py`` uses the same small models to see how fast gates may learn.
"""

from __future__ import annotations

import argparse
import lzma
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from miras.hf import MirasConfig, MirasForCausalLM
from miras.train.schedule import rate_at

B, T, WARM, LATE = 8, 512, 15, 40
BYTES = 20_000_000
SIZES = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256}


class Step(NamedTuple):
    """Bits a byte, and the norm of the gradient before it was clipped."""

    bits: float
    norm: float


def text_of(path: Path) -> torch.Tensor:
    """The first bytes of a file, packed by xz or not."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        return torch.frombuffer(bytearray(file.read(BYTES)), dtype=torch.uint8).long()


def draws(text: torch.Tensor, batch: int, length: int) -> Iterator[torch.Tensor]:
    """Batches ``[B,T]`` of a text, the same for every model."""
    draw = torch.Generator().manual_seed(1)
    while True:
        starts = torch.randint(0, len(text) - length - 1, (batch,), generator=draw)
        yield torch.stack([text[start : start + length] for start in starts])


def train(
    model: MirasForCausalLM,
    text: torch.Tensor,
    steps: int,
    rate: float,
    batch: int = B,
    length: int = T,
    stop: int | None = None,
) -> list[Step]:
    """Every step, AdamW with a short warm-up and half a cosine, of which the first ``stop`` steps are taken.

    A model whose numbers overflow ends with a step of which nothing is known.
    """
    wide, narrow = ([p for p in model.parameters() if (p.dim() >= 2) == wanted] for wanted in (True, False))
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    taken, began, batches = [], time.perf_counter(), draws(text, batch, length)
    for step in range(stop or steps):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step, steps=steps, peak=rate, warmup=WARM / steps, final=0.1)
        ids = next(batches)
        try:
            loss = model(input_ids=ids, labels=ids).loss
        except ValueError as error:  # a gate that is no number is refused: what was learned is lost
            print(f"step {step + 1}/{steps}: {error}", flush=True)
            return [*taken, Step(math.nan, math.inf)]
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if math.isfinite(norm):
            optimiser.step()
        optimiser.zero_grad()
        taken.append(Step(loss.item() / math.log(2), norm))
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{steps}: {taken[-1].bits:.3f} bits/byte, {time.perf_counter() - began:.0f} s", flush=True)
    return taken


def late(taken: list[Step]) -> float:
    """The mean of the last steps' bits a byte."""
    last = taken[-LATE:]
    return sum(step.bits for step in last) / len(last)


def measured_or_told(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    page: Path,
    table: Callable[[Path], str],
    measure: Callable[..., None],
) -> None:
    """What the other scripts here do with ``text``, ``--results`` and ``--table``: measure on the text, or write the page."""
    torch.set_num_threads(1)
    if given.table:
        page.write_text(table(given.results))
    elif given.text is None or not given.text.is_file():
        parser.error(f"there is no file {given.text}")
    else:
        measure(text_of(given.text), given.results)


def main() -> None:
    """Train one model and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text, packed by xz or not; its first 20 MB are taken")
    parser.add_argument("--model", default="yaad", help="a preset, or PRESET-anchored")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--batch", type=int, default=B)
    parser.add_argument("--length", type=int, default=T, help=f"bytes of a sequence (default {T})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-gate", choices=("silu", "sigmoid", "none"), help="the model's own when not given")
    parser.add_argument("--silu", action=argparse.BooleanOptionalAction, help="of q, k and v; the model's own when not given")
    parser.add_argument("--convolution", type=int, help="taps of the convolution, 0 for none; the model's own when not given")
    parser.add_argument(
        "--rope", action=argparse.BooleanOptionalAction, help="rotary positions; the model's own when not given"
    )
    parser.add_argument("--pace", type=float, help="how fast gates learn beside the rest; the model's own when not given")
    parser.add_argument("--step-sum", type=float, help="what steps of keys alike add up to; the model's own when not given")
    parser.add_argument("--chunk-size", type=int, help="tokens of a chunk; the model's own when not given")
    given = parser.parse_args()
    if not given.text.is_file():
        parser.error(f"there is no file {given.text}")
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    asked = {
        "output_gate": given.output_gate,
        "silu": given.silu,
        "conv_kernel": given.convolution,
        "rope": given.rope,
        "gate_pace": given.pace,
        "step_sum": given.step_sum,
        "chunk_size": given.chunk_size,
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    model = MirasForCausalLM(MirasConfig.preset(f"{given.model}-4m", **SIZES, **changes))
    taken = train(model, text_of(given.text), given.steps, given.rate, given.batch, given.length)
    print(f"{given.model} {changes}: {late(taken):.3f} bits/byte, largest gradient norm {max(step.norm for step in taken):.1e}")


if __name__ == "__main__":
    main()
