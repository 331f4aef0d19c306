"""Stream 200,000 tokens through a model on the CPU: its memory does not grow, its speed does not fall, nothing overflows.

python experiments/streaming/run.py --model yaad-anchored-small --out experiments/streaming/results.json

Every ``--stretch`` tokens it notes the resident memory, the tokens a second and whether all logits and states are
finite. The claim: after the first 5,000 tokens resident memory stays within 5 % of its mean.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from miras.hf import MirasCache, MirasConfig, MirasForCausalLM  # noqa: E402
from miras.lab.provenance import provenance  # noqa: E402

SETTLED = 5000


def resident() -> float:
    """The process's resident memory in MiB, without what glibc keeps of what was freed, which grows for a while."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@torch.no_grad()
def stream(name: str, tokens: int, stretch: int) -> Iterator[dict[str, Any]]:
    """Random tokens through one cache: a line for each stretch."""
    torch.manual_seed(0)
    model = MirasForCausalLM(MirasConfig.preset(name)).eval()
    cache = MirasCache(len(model.model.layers))
    for read in range(stretch, tokens + 1, stretch):
        ids = torch.randint(model.config.vocab_size, (1, stretch))
        began = time.perf_counter()
        logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
        taken = time.perf_counter() - began
        states = [x for x in pytree.tree_leaves(cache.states) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        finite = all(bool(x.isfinite().all()) for x in (logits, *states))
        yield {"tokens": read, "mib": round(resident(), 2), "tokens_a_second": round(stretch / taken, 1), "finite": finite}


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """How far memory strays from its mean, and the speed of the first and the last fifth."""
    settled = [line for line in lines if line["tokens"] > SETTLED]
    mean = statistics.mean(line["mib"] for line in settled)
    fifth = max(1, len(settled) // 5)
    speed = [line["tokens_a_second"] for line in settled]
    return {
        "tokens": lines[-1]["tokens"],
        "memory_mib": round(mean, 1),
        "memory_strays": max(abs(line["mib"] - mean) for line in settled) / mean,
        "tokens_a_second_first_fifth": statistics.median(speed[:fifth]),
        "tokens_a_second_last_fifth": statistics.median(speed[-fifth:]),
        "finite": all(line["finite"] for line in lines),
    }


def main() -> int:
    """Stream, write what was seen, fail if the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="yaad-anchored-small", help="a named configuration")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--stretch", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("experiments/streaming/results.json"))
    given = parser.parse_args()
    lines = []
    for line in stream(given.model, given.tokens, given.stretch):
        lines.append(line)
        if line["tokens"] % (10 * given.stretch) == 0:
            print(line, file=sys.stderr, flush=True)
    found = {"model": given.model, "threads": torch.get_num_threads(), **provenance("transformers"), **summary(lines)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found | {"lines": lines[:: max(1, len(lines) // 40)]}, indent=1) + "\n")
    print({name: value for name, value in found.items() if name != "lines"})
    return 0 if found["finite"] and found["memory_strays"] < 0.05 else 1


if __name__ == "__main__":
    raise SystemExit(main())
