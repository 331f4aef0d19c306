"""Whether tiny language models learn associative recall, on the CPU, in a minute or so each.

    python experiments/first_steps/run.py --models yaad-tiny,gated_deltanet-tiny --steps 400

B batch, P pairs
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from miras.hf import MirasConfig, MirasForCausalLM

MODELS = "yaad-tiny,yaad-anchored-tiny,memora-tiny,moneta-tiny,gated_deltanet-tiny"
KEYS, VALUES = 32, 32


def recall_batch(batch: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """P pairs of a key and a value, then the keys in another order, each with its value; labels at those values alone."""
    keys = torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :pairs]
    values = KEYS + torch.randint(VALUES, (batch, pairs), generator=generator)
    order = torch.rand(batch, pairs, generator=generator).argsort(1)
    shown = torch.stack([keys, values], 2).flatten(1)
    asked = torch.stack([keys.gather(1, order), values.gather(1, order)], 2).flatten(1)
    labels = torch.full_like(asked, -100)
    labels[:, 1::2] = asked[:, 1::2]
    return torch.cat([shown, asked], 1), torch.cat([torch.full_like(shown, -100), labels], 1)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of labels that the likeliest token equals."""
    there = labels[:, 1:] != -100
    return (logits[:, :-1].argmax(-1) == labels[:, 1:])[there].float().mean().item()


def train(
    name: str, steps: int, batch: int, pairs: int, rate: float, seed: int, changes: dict[str, str | float | None]
) -> dict[str, float]:
    """Loss of the first and the last batches, accuracy on fresh ones, seconds."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = MirasForCausalLM(MirasConfig.preset(name, chunk_size=16, value_norm=True, **changes))
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.1)
    losses, norms, begin = [], [], time.perf_counter()
    for _ in range(steps):
        ids, labels = recall_batch(batch, pairs, generator)
        loss = model(ids, labels=labels).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        ids, labels = recall_batch(4 * batch, pairs, generator)
        logits = model(ids).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).item()
    first = sum(losses[:5]) / 5
    found = {"first loss": first, "last loss": loss, "accuracy": accuracy(logits, labels)}
    return found | {"largest gradient norm": max(norms), "seconds": seconds}


def main() -> None:
    """Train each model and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-gate", choices=("silu", "sigmoid", "none"), help="the model's own when not given")
    parser.add_argument("--silu", action=argparse.BooleanOptionalAction, help="of q, k and v; the model's own when not given")
    parser.add_argument("--pace", type=float, help="how fast gates learn beside the rest; the model's own when not given")
    parser.add_argument("--step-sum", type=float, help="what steps of keys alike add up to; the model's own when not given")
    parser.add_argument("--step-start", type=float, help="the relative step a deep memory starts with")
    parser.add_argument("--step-limit", type=float, help="its largest")
    given = parser.parse_args()
    torch.set_num_threads(1)
    changes = {
        "output_gate": given.output_gate,
        "silu": given.silu,
        "gate_pace": given.pace,
        "step_sum": given.step_sum,
        "step_start": given.step_start,
        "step_limit": given.step_limit,
    }
    print("| model | first loss | last loss | accuracy | largest gradient norm | seconds |\n|---|---|---|---|---|---|")
    for name in given.models.split(","):
        found = train(name, given.steps, given.batch, given.pairs, given.rate, given.seed, changes)
        cells = " | ".join(f"{value:.3g}" for value in found.values())
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
