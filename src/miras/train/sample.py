"""Text from a trained model."""

from __future__ import annotations

from pathlib import Path

import torch

from ..hf.loading import load
from ..types import require


def sample(
    name: str | Path,
    prompt: str,
    tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    device: str | None = None,
) -> str:
    """A prompt and what a saved model makes of it.

    Args:
        name: a folder with a saved model and its tokenizer, or OWNER/NAME on the hub.
        prompt: where to begin.
        tokens: how many to add; fewer where the document ends before.
        temperature: 0 takes the likeliest token each time.
        top_k: draw from so many of the likeliest tokens.
        seed: of the draws.
        device: where to compute; a GPU where there is one when not given.
    """
    require(tokens > 0, f"tokens must be > 0, got {tokens}")
    require(top_k > 0, f"top_k must be > 0, got {top_k}")
    require(temperature >= 0, f"temperature must be >= 0, got {temperature}")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model, tokenizer = load(name)
    model.to(where)
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    if ids.shape[1] == 0:
        ids = torch.tensor([[tokenizer.eos_token_id]])
    torch.manual_seed(seed)
    how = {"do_sample": True, "temperature": temperature, "top_k": top_k} if temperature else {"do_sample": False}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": pad}
    ids = ids.to(where)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **ends, **how)
    return str(tokenizer.decode(found[0], skip_special_tokens=True))
