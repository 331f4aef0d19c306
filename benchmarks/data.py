"""How fast batches are read: tokens a second from mapped shards, in the order of training, beside what training takes.

    python benchmarks/data.py --out benchmarks/results/data-cpu.json

A corpus of random tokens is written once; then steps of half a million tokens are read at random places, by one process, as
``miras train`` reads them without workers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from miras.data import Batches, Tokens
from miras.data.shards import Writer, dtype_for
from miras.lab.provenance import provenance

VOCABULARY = 32000


def written(folder: Path, tokens: int, document: int) -> Tokens:
    """Shards of random tokens in documents of one length."""
    writer = Writer(folder, "train", dtype_for(VOCABULARY), shard=1 << 26)
    generator = np.random.default_rng(0)
    for _ in range(tokens // document):
        writer.add(generator.integers(0, VOCABULARY, document))
        writer.close_document()
    meta = {"dtype": dtype_for(VOCABULARY).str, "splits": {"train": writer.finish()}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return Tokens(folder, "train")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        tokens = written(Path(place), arguments.tokens, 1000)
        for isolate in (False, True):
            batches = Batches(tokens, length=4096, batch=128, micro_batch=8, seed=0, isolate=isolate)
            seconds = []
            for step in range(arguments.steps):
                began = time.perf_counter()
                batches[step]
                seconds.append(time.perf_counter() - began)
            median = sorted(seconds)[len(seconds) // 2]
            rows.append({"isolate": isolate, "seconds_a_step": median, "tokens_per_second": 128 * 4096 / median})
            print(rows[-1], flush=True)
    result = {"tokens": arguments.tokens, "length": 4096, "batch": 128, "rows": rows, **provenance("numpy")}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
