"""kill -9 at random moments, again and again, then on to the end: are the final weights those of a run that nobody touched?

    PYTHONPATH=src python experiments/kills/run.py            # ten kills; writes results.json beside this file

Two trainings of the same configuration on the CPU, one calm, one killed. A kill falls at a random time after its process has
begun, while it starts, trains, validates or saves. Compared is every byte of the final checkpoint's weights and moments.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from miras.lab.provenance import provenance  # noqa: E402
from miras.train.checkpoint import MODEL, OPTIMISER, damage, digest, found  # noqa: E402
from miras.train.metrics import lines  # noqa: E402

HERE = Path(__file__).parent
OPTIONS = (
    "--optim.steps 300 --save.every 5 --log.eval_every 50 --log.eval_sequences 16 --log.sample 0 --data.length 64 "
    "--data.batch 8 --engine.threads 1 --engine.device cpu --model.name yaad-tiny"
)


def start(folder: Path) -> subprocess.Popen[str]:
    """A process that goes on with the run in a folder, or begins it."""
    command = [sys.executable, "-m", "miras", "train", "--resume", "--run.folder", str(folder), *OPTIONS.split()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(folder: Path) -> None:
    """Train to the end."""
    process = start(folder)
    output, _ = process.communicate()
    assert process.returncode == 0, output


def steps_of(folder: Path) -> int:
    """Steps that the metrics know of."""
    return sum("loss" in line for line in lines(folder / "metrics.jsonl"))


def kill_once(folder: Path, chance: random.Random, longest: float) -> dict[str, object]:
    """Start, wait for a random time, kill; what was there then."""
    before = steps_of(folder)
    process, began = start(folder), time.monotonic()
    wait = chance.uniform(0.5, longest)
    while time.monotonic() - began < wait and process.poll() is None:
        time.sleep(0.001)
    if process.poll() is not None:
        raise RuntimeError(f"the run ended before it could be killed: {process.communicate()[0]}")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    whole = [place.name for place in found(folder / "checkpoints") if damage(place) is None]
    left = [place.name for place in (folder / "checkpoints").glob("*.partial")]
    return {
        "after_seconds": round(wait, 3),
        "steps_before": before,
        "steps_after": steps_of(folder),
        "newest_whole_checkpoint": whole[0] if whole else None,
        "half_written": left,
    }


def main() -> None:
    """Run both, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds after which a process is killed at the latest")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        calm, killed = Path(place) / "calm", Path(place) / "killed"
        finish(calm)
        kills = []
        for number in range(arguments.kills):
            kills.append(kill_once(killed, chance, arguments.longest))
            print(number + 1, kills[-1], flush=True)
        finish(killed)
        hashes = {
            run.name: {name: digest(found(run / "checkpoints")[0] / name) for name in (MODEL, OPTIMISER)}
            for run in (calm, killed)
        }
        losses = [[line["loss"] for line in lines(run / "metrics.jsonl") if "loss" in line] for run in (calm, killed)]
    result = {
        "identical": hashes["calm"] == hashes["killed"] and losses[0] == losses[1],
        "steps": len(losses[0]),
        "final_loss": losses[0][-1],
        "sha256": hashes,
        "kills": kills,
        "options": OPTIONS,
        "seed": arguments.seed,
        **provenance("accelerate", "safetensors"),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print("bit-identical" if result["identical"] else "DIFFERENT", hashes)
    sys.exit(0 if result["identical"] else 1)


if __name__ == "__main__":
    main()
