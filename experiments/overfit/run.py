"""Tiny models learn two pages of text by heart, on the CPU, in minutes: under 0.1 nats a byte.

    PYTHONPATH=src python experiments/overfit/run.py          # writes results.json beside this file
    PYTHONPATH=src python experiments/overfit/run.py --table  # prints what is there as a table

The text is the beginning of this repository's licence. A model sees stretches of it that begin anywhere; it is measured on the
whole text, cut into stretches of the same length, each read with an empty memory. Only the first bytes of a stretch cannot be
known: about log(bytes) nats of it.

B batch, T time
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from miras.hf import MirasConfig, MirasForCausalLM  # noqa: E402
from miras.lab.provenance import provenance  # noqa: E402

HERE = Path(__file__).parent
MODELS = "yaad-tiny,moneta-tiny,memora-tiny,gated_deltanet-tiny"
GOAL = 0.1


def text_of(size: int) -> Tensor:
    """The first bytes of the licence, ``[N]``."""
    content = (ROOT / "LICENSE").read_bytes()
    if not 0 < size <= len(content):
        raise ValueError(f"--bytes must be in 1 to {len(content)}, the licence's length, got {size}")
    return torch.tensor(list(content[:size]))


def stretches(text: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Stretches that begin anywhere, ``[B,T]``."""
    starts = torch.randint(len(text) - length + 1, (batch,), generator=generator)
    return text[starts[:, None] + torch.arange(length)]


@torch.no_grad()
def nats_a_byte(model: MirasForCausalLM, text: Tensor, length: int) -> float:
    """The mean loss over the whole text in stretches of a length, the last one ending with the text."""
    model.eval()
    starts = torch.tensor([*range(0, len(text) - length, length), len(text) - length])
    ids = text[starts[:, None] + torch.arange(length)]
    loss: float = model(ids, labels=ids).loss.item()
    return loss


def learn(
    name: str,
    text: Tensor,
    *,
    steps: int,
    batch: int,
    length: int,
    rate: float,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> dict[str, Any]:
    """Train a named configuration on stretches of a text; what it reached, and how it went there."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = MirasForCausalLM(MirasConfig.preset(name, **changes))
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.1)
    losses, norms, begin, work = [], [], time.perf_counter(), time.process_time()
    for step in range(1, steps + 1):
        ids = stretches(text, batch, length, generator)
        loss = model(ids, labels=ids).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0:
            say(f"{name} step {step} loss {sum(losses[-50:]) / 50:.3f} largest norm {max(norms[-50:]):.1f}")
    seconds, work = time.perf_counter() - begin, time.process_time() - work
    return {
        "model": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "first_loss": losses[0],
        "nats_a_byte": nats_a_byte(model, text, length),
        "largest_gradient_norm": max(norms),
        "finite": all(map(math.isfinite, losses)),
        "seconds": round(seconds, 1),
        # of one core: what a machine that does nothing else would take
        "processor_seconds": round(work, 1),
        "curve": [round(loss, 4) for loss in losses[:: max(1, steps // 20)]],
    }


def table(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| model | parameters | nats a byte | seconds of one core |", "|---|---|---|---|"]
    for row in found["models"]:
        lines.append(
            f"| `{row['model']}` | {row['parameters']:,} | {row['nats_a_byte']:.3f} | {row['processor_seconds']:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Train each, write what was found, fail where one did not learn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--bytes", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="bytes of a stretch")
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--rate", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    parser.add_argument("--table", action="store_true", help="print the table of a result that is there")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.out.read_text())))
        return 0
    torch.set_num_threads(1)
    text = text_of(given.bytes)
    how = {name: getattr(given, name) for name in ("steps", "batch", "length", "rate", "seed")}
    say = functools.partial(print, file=sys.stderr, flush=True)
    models = []
    for name in given.models.split(","):
        models.append(learn(name, text, **how, chunk_size=given.chunk, say=say))
        print({key: value for key, value in models[-1].items() if key != "curve"}, flush=True)
    found = {"goal": GOAL, "bytes": given.bytes, "chunk": given.chunk, **how, "models": models, **provenance("transformers")}
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0 if all(row["nats_a_byte"] < GOAL for row in models) else 1


if __name__ == "__main__":
    raise SystemExit(main())
