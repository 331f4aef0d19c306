"""``miras train`` with nothing given, as a newcomer runs it: seconds to the first step and in all, bits per byte.

    OMP_NUM_THREADS=2 python benchmarks/first_run.py --out benchmarks/results/first-run-cpu.json

Seconds count from the start of the process, imports and tokenising included (the cache is empty). The load of the machine
before and after is kept, since others who work on it slow the run down and do not change what it reaches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from miras.lab.provenance import provenance
from miras.train.metrics import lines


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "miras", "train", "--data.cache", f"{place}/cache", "--run.folder", f"{place}/run"]
        process = subprocess.Popen(command, cwd=place)
        metrics, first = Path(place) / "run" / "metrics.jsonl", None
        while process.poll() is None:
            if first is None and lines(metrics):
                first = time.monotonic() - began
            time.sleep(0.02)
        total = time.monotonic() - began
        assert process.returncode == 0 and first is not None
        found = lines(metrics)
        about = json.loads((Path(place) / "run" / "run.json").read_text())
    steps = [line for line in found if "loss" in line]
    result = {
        "seconds_to_first_step": round(first, 2),
        "seconds": round(total, 2),
        "valid_bits_per_byte": [line["valid_bits_per_byte"] for line in found if "valid_loss" in line][-1],
        "validation": {line["step"]: line["valid_bits_per_byte"] for line in found if "valid_loss" in line},
        "median_tokens_per_second": statistics.median(line["tokens_per_second"] for line in steps),
        "mean_share_of_time_waiting_for_data": statistics.mean(line["data_share"] for line in steps),
        "steps": len(steps),
        "parameters": about["parameters"],
        "data": about["data"],
        "threads": about["starts"][0]["threads"],
        "load_before_and_after": [load, os.getloadavg()[0]],
        **provenance("accelerate", "transformers"),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
