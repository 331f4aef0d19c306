"""What ``generate`` of transformers has to be told of a state: where it begins, and that what is padding is not read.

B batch, T time
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, StoppingCriteriaList

from .cache import MirasCache


class Ending(StoppingCriteriaList):
    """What ends rows, whatever it is, which tells a cache of those that it ends."""

    def __init__(self, criteria: StoppingCriteriaList, cache: MirasCache) -> None:
        super().__init__(criteria)
        self.cache = cache

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """The rows ``[B]`` of ids ``[B,T]`` that end with their last token."""
        rows: Tensor = super().__call__(input_ids, scores, **kwargs)
        self.cache.end(rows)
        return rows


class MirasGenerationMixin(GenerationMixin):
    """transformers' loops over a :class:`MirasCache`; they look for the second half of this name among a model's bases."""

    model: Any

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Begin with an empty cache, so that a long prompt may be read in stretches; no row of it has ended."""
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = MirasCache(len(self.model.layers))
        cache = model_kwargs.get("past_key_values")
        if isinstance(cache, MirasCache):
            cache.begin()

    def _sample(
        self, input_ids: Tensor, logits_processor: Any, stopping_criteria: StoppingCriteriaList, *args: Any, **kwargs: Any
    ) -> Any:
        """As in transformers; the cache is told of the rows that end, where padding follows them."""
        cache = kwargs.get("past_key_values")
        # without an end among the tokens transformers lets all rows write on until the last has ended
        if isinstance(cache, MirasCache) and any(hasattr(one, "eos_token_id") for one in stopping_criteria):
            stopping_criteria = Ending(stopping_criteria, cache)
        return super()._sample(input_ids, logits_processor, stopping_criteria, *args, **kwargs)

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
        over = past_key_values.over if isinstance(past_key_values, MirasCache) else None
        # a row alone ends the loop with itself, and asking would wait for the device at every token
        if over is not None and len(input_ids) > 1 and bool(over.any()):
            mask = made.get("attention_mask")
            mask = torch.ones_like(made["input_ids"]) if mask is None else mask.clone()
            mask[over, -1] = 0
            made["attention_mask"] = mask
        return made
