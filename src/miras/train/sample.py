"""Text from a trained model, to look at when its training ends."""

from __future__ import annotations

from pathlib import Path

import torch

from ..hf.loading import load

HOW = {"do_sample": True, "temperature": 0.8, "top_k": 50}


def sample(folder: Path, prompt: str, tokens: int, *, seed: int, device: torch.device) -> str:
    """A prompt, or a document's start where it is empty, and what a saved model adds to it, until the document ends."""
    model, tokenizer = load(folder)
    model.to(device)
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    if ids.shape[1] == 0:
        ids = torch.tensor([[tokenizer.eos_token_id]])
    torch.manual_seed(seed)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": pad}
    ids = ids.to(device)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **ends, **HOW)
    return str(tokenizer.decode(found[0], skip_special_tokens=True))
