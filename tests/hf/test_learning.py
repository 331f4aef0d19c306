"""Tiny models learn to recall pairs they have just been shown: the loss falls well below that of guessing among the values."""

import math

import pytest
import torch

from miras.hf import MirasConfig, MirasForCausalLM

SYMBOLS, PAIRS = 8, 4


def batch(generator, rows=16):
    """Pairs of a key and a value, then each key again with its value, which is what is asked for."""
    keys = torch.rand(rows, SYMBOLS, generator=generator).argsort(1)[:, :PAIRS]
    values = SYMBOLS + torch.randint(SYMBOLS, (rows, PAIRS), generator=generator)
    order = torch.rand(rows, PAIRS, generator=generator).argsort(1)
    shown = torch.stack([keys, values], 2).flatten(1)
    asked = torch.stack([keys.gather(1, order), values.gather(1, order)], 2).flatten(1)
    labels = torch.full_like(asked, -100)
    labels[:, 1::2] = asked[:, 1::2]
    return torch.cat([shown, asked], 1), torch.cat([torch.full_like(shown, -100), labels], 1)


@pytest.mark.parametrize("name", ["yaad", "yaad-anchored", "memora", "moneta", "gated_deltanet"])
def test_tiny_models_learn_to_recall(name):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = MirasForCausalLM(MirasConfig.preset(f"{name}-tiny", chunk_size=16, value_norm=True))
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    losses = []
    for _ in range(110):
        ids, labels = batch(generator)
        loss = model(ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        if len(losses) >= 10 and sum(losses[-10:]) / 10 < 0.85 * math.log(SYMBOLS):
            return
    pytest.fail(f"the last losses are {losses[-10:]}")
