"""What ``generate`` of transformers has to be told of a state: where it begins, and that what is padding is not read.

B batch, T time
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from .cache import Ending, MirasCache


class MirasGenerationMixin(GenerationMixin):
    """transformers' loops over a :class:`MirasCache`; they look for the second half of this name among a model's bases."""

    model: Any

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Begin with an empty cache, so that a long prompt may be read in stretches."""
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = MirasCache(len(self.model.layers))

    def _prefill(
        self, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> CausalLMOutputWithPast:
        """Read the prompt; from here on the cache knows how rows end."""
        cache = model_kwargs.get("past_key_values")
        if isinstance(cache, MirasCache):
            cache.ending = None
        made: CausalLMOutputWithPast = super()._prefill(input_ids, generation_config, model_kwargs, *args, **kwargs)
        ends = generation_config.eos_token_id
        if isinstance(cache, MirasCache) and ends is not None:
            cache.ending = Ending(cache.get_seq_length(), tuple(ends) if isinstance(ends, list | tuple) else (ends,))
        return made

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: MirasCache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in transformers, but that a row which has ended reads no padding while others go on."""
        given = {"past_key_values": past_key_values, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        made: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, next_sequence_length, **given, **kwargs)
        ending = past_key_values.ending if isinstance(past_key_values, MirasCache) else None
        # a row alone ends the loop with itself, and asking would wait for the device at every token
        if past_key_values is not None and ending is not None and len(input_ids) > 1:
            over = ending.over(input_ids, past_key_values.get_seq_length())
            if bool(over.any()):
                mask = made.get("attention_mask")
                mask = torch.ones_like(made["input_ids"]) if mask is None else mask.clone()
                mask[over, -1] = 0
                made["attention_mask"] = mask
        return made
