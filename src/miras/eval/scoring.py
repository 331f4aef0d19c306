"""What a model gives the tokens that came: -log p of each, and whether it was the likeliest.

B rows, T tokens, C channels, M tokens that are scored
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..types import require

if TYPE_CHECKING:
    from ..hf import MirasCache, MirasForCausalLM

Progress = Callable[[int, int], None]
# tokens in one call of the model, padding among them
BATCH_TOKENS = 16384


class Scores(NamedTuple):
    """``nats`` ``[M]``: -log p of a token; ``likeliest`` ``[M]``: whether none had a larger p."""

    nats: Tensor
    likeliest: Tensor


def unwrapped(model: Any) -> MirasForCausalLM:
    """The language model inside one of PEFT's, whose adapters are in its layers; any other as it is."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return model  # type: ignore[no-any-return]
    prompts = model.active_peft_config.is_prompt_learning
    require(not prompts, "PEFT's learned prompts are put before the tokens, which are then others than those that are measured")
    return model.get_base_model()  # type: ignore[no-any-return]


@contextmanager
def reading(model: MirasForCausalLM, autocast: torch.dtype | None = None) -> Iterator[None]:
    """Without gradients, in evaluation mode, which is put back after; under autocast to a dtype where one is given."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.device.type, dtype=autocast, enabled=autocast is not None):
            yield
    finally:
        for part in training:
            part.training = True


def hidden_of(model: MirasForCausalLM, tokens: Tensor, cache: MirasCache | None = None) -> Tensor:
    """Hidden states ``[B,T,C]`` of tokens ``[B,T]``, going on from a cache where there is one.

    Every form is causal, so rows may be filled up on the right with any token.
    """
    out = model.model(input_ids=tokens.to(model.device), past_key_values=cache, use_cache=cache is not None)
    hidden: Tensor = out.last_hidden_state
    return hidden


def score(model: MirasForCausalLM, hidden: Tensor, targets: Tensor) -> Scores:
    """Scores of targets ``[M]`` after hidden states ``[M,C]``; logits of ``config.loss_chunk`` tokens exist at once."""
    size = model.config.loss_chunk or max(len(targets), 1)
    nats, likeliest = [], []
    for some, wanted in zip(torch.split(hidden, size), torch.split(targets.to(hidden.device), size), strict=True):
        logits = model.lm_head(some)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        nats.append(F.cross_entropy(logits, wanted, reduction="none"))
        likeliest.append(logits.argmax(-1) == wanted)
    return Scores(torch.cat(nats), torch.cat(likeliest))


def padded(rows: Sequence[Tensor]) -> Tensor:
    """Rows of unequal length as one tensor ``[B,T]``, filled up on the right with token 0."""
    return pad_sequence(list(rows), batch_first=True).long()


def check_tokens(tokens: Tensor, model: MirasForCausalLM) -> None:
    """Refuse tokens that the model does not have."""
    vocab = model.config.vocab_size
    if tokens.numel():
        largest = int(tokens.max())
        require(largest < vocab, f"token {largest} is not one of the model's {vocab}: is this its tokenizer?")


def check_batch(batch_tokens: int) -> None:
    """Refuse a batch of nothing."""
    require(batch_tokens >= 1, f"batch_tokens must be 1 or more, got {batch_tokens}")
