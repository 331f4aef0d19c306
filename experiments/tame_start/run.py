"""How tame the deep presets are at the start: the response of y to 1e-6 on k, and of bf16 to float32, up to 4096 tokens.

python experiments/tame_start/run.py
"""

from __future__ import annotations

import argparse

import torch

from miras import Spec, presets
from miras.diagnostics import layer_noise
from miras.nn import MirasLayer

SPECS: dict[str, Spec] = {
    "ttt_linear": presets.ttt_linear(),
    "ttt_mlp": presets.ttt_mlp(),
    "titans_lmm": presets.titans_lmm(),
    "titans_lmm, anchored": presets.titans_lmm(anchor=True),
    "yaad": presets.yaad(),
    "yaad, anchored": presets.yaad(anchor=True),
    "memora": presets.memora(),
    "memora, anchored": presets.memora(anchor=True),
    "moneta": presets.moneta(),
    "moneta, anchored": presets.moneta(anchor=True),
}


def main() -> None:
    """Print a table, the worst of several seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    places = [64, 1024, given.length]
    print(f"| preset | {' | '.join(f'response to {place}' for place in places)} | bf16, mean | bf16, last 64 |")
    print("|---|---|---|---|---|---|")
    for name, spec in SPECS.items():
        found = []
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            found.append(layer_noise(MirasLayer(128, 2, spec), torch.randn(1, given.length, 128), seed=seed))
        response, low = (torch.stack(each) for each in zip(*found, strict=True))
        cells = [f"{response[:, :place].max():.1e}" for place in places]
        cells += [f"{100 * low.mean(1).max():.1f}%", f"{100 * low[:, -64:].mean(1).max():.1f}%"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
