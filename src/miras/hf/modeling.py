"""The language model for Hugging Face's tools: one model class, configured.

B batch, T time, C channels, R sequences, N tokens that are there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from .. import checks
from ..algorithm import NonParametric
from ..memorize import Backend
from ..nn import Block, MirasLayer, Packing
from ..nn.convolution import ShortConvolution, TokenShift
from ..nn.extras import Extras
from ..nn.gates import Gate, Ridge
from ..nn.initial import InitialMemory
from ..nn.norm import Gained, RMSNorm
from ..types import require
from .cache import MirasCache, check_cache
from .configuration import MirasConfig
from .generation import MirasGenerationMixin
from .kept import KeptMemory, read
from .layout import packing_of
from .loading import whole
from .loss import check_side, chunked_cross_entropy, next_labels
from .saving import save_with_card

OWN_START = (Gained, ShortConvolution, TokenShift, Gate, Ridge, InitialMemory, Extras)


class MirasDecoderLayer(GradientCheckpointingLayer, Block):
    """A :class:`miras.nn.Block` that can be recomputed in the backward pass."""


class MirasPreTrainedModel(PreTrainedModel):
    """What the models share: how they start, how they are saved."""

    config_class = MirasConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["MirasDecoderLayer"]  # noqa: RUF012
    # a base model is loaded from a language model's checkpoint without its head
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    # what a memory has read cannot be taken back, so nothing may be drafted
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Parts that know how they start do so; projections and embeddings are normal."""
        if isinstance(module, OWN_START):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """As in transformers, whole or not at all: a :class:`ValueError` where the checkpoint is another model's or damaged.

        Missing or unexpected tensors are refused, but for the head where another class saved the checkpoint (a base model from
        a language model's, and the other way round). ``ignore_mismatched_sizes=True`` lets other sizes through;
        ``output_loading_info=True`` everything, for whoever looks at what was missing.
        """
        return whole(super().from_pretrained, pretrained_model_name_or_path, model_args, kwargs)

    def memories(self) -> list[MirasLayer]:
        """The layers that hold a memory, from the first block to the last: all but attention."""
        layers = [layer for layer in self.modules() if isinstance(layer, MirasLayer)]
        return [layer for layer in layers if not isinstance(layer.spec.algorithm, NonParametric)]

    def set_backend(self, backend: Backend) -> None:
        """Let every memory run by a backend of :func:`miras.memorize`; one that is named is used or refused, never replaced."""
        memories = self.memories()
        require(
            bool(memories) or backend in ("auto", "torch"), f"this model has attention alone: backend {backend!r} runs memories"
        )
        for layer in memories:
            checks.how(layer.spec, layer.form, layer.chunk_size, backend, layer.recompute)
            layer.backend = backend

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; special tokens that are gone are none any more."""
        made = super().resize_token_embeddings(*args, **kwargs)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            for holder in (self.config, self.generation_config):
                given = getattr(holder, name, None)
                left = [one for one in given if one < self.config.vocab_size] if isinstance(given, list) else given
                if isinstance(left, int) and left >= self.config.vocab_size:
                    left = None
                if left != given:
                    setattr(holder, name, None if left == [] else left)
        return made

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: the model makes its own cache."""
        return False

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing: what is saved already says where its classes are."""

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """As in transformers, with a model card, and with a file that finds these classes where miras is installed."""
        save_with_card(self, save_directory, super().save_pretrained, kwargs)


class MirasModel(MirasPreTrainedModel):
    """Embeddings, blocks and a last norm: tokens ``[B,T]`` to hidden states ``[B,T,C]``."""

    def __init__(self, config: MirasConfig) -> None:
        config.check()
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            MirasDecoderLayer(config.mixer(number), config.intermediate_size, norm_eps=config.rms_norm_eps)
            for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: MirasCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run the blocks over the tokens that are there.

        Args:
            input_ids: ``[B,T]``, or give ``inputs_embeds`` ``[B,T,C]``.
            attention_mask: ``[B,T]`` or with the past's columns in front; 0 marks padding, on either side.
            position_ids: ``[B,T]``; where they do not go on by one, a new sequence starts. They mean nothing else.
            past_key_values: where an earlier call ended.
            inputs_embeds: ``[B,T,C]``.
            use_cache: whether to return where this call ends.
            output_hidden_states: whether to return what each block gave.
            cu_seqlens: ``[R+1]``, the bounds of sequences packed in a batch of 1.
            cu_seq_lens_q: the same, by the name that transformers' collator gives it.
            kwargs: what transformers passes to all models and this one has no use for.
        """
        cu_seqlens = cu_seq_lens_q if cu_seqlens is None else cu_seqlens
        require((input_ids is None) != (inputs_embeds is None), "give exactly one of input_ids and inputs_embeds")
        given = input_ids if inputs_embeds is None else inputs_embeds
        dims, shape = (2, "input_ids must be [B,T]") if inputs_embeds is None else (3, "inputs_embeds must be [B,T,C]")
        require(given is not None and given.dim() == dims, f"{shape}, got {list(given.shape) if given is not None else None}")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = self._cache(past_key_values, use_cache, len(x))
        packing = packing_of(x.shape[0], x.shape[1], attention_mask, position_ids, cu_seqlens)
        every = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden = self._blocks(x, cache, packing, bool(every))
        return BaseModelOutputWithPast(
            last_hidden_state=hidden[-1],
            past_key_values=cache,
            hidden_states=hidden if every else None,
        )

    def _cache(self, past: MirasCache | None, use_cache: bool | None, batch: int) -> MirasCache | None:
        """The cache that was given, or an empty one where one is wanted; recomputed blocks keep none."""
        wanted = self.config.use_cache if use_cache is None else use_cache
        recomputed = self.gradient_checkpointing and self.training
        if past is None and (not wanted or recomputed):
            return None
        cache = MirasCache(len(self.layers)) if past is None else past
        return check_cache(cache, self.config, len(self.layers), batch)

    def _blocks(self, x: Tensor, cache: MirasCache | None, packing: Packing | None, every: bool) -> tuple[Tensor, ...]:
        """The last block's output, normalised, ``[B,T,C]``; before it, where ``every`` is asked for, each block's input."""
        batch, time = x.shape[:2]
        states = None if cache is None else cache.states
        several = packing is not None and len(packing.cu_seqlens) - 1 > batch
        require(not several or states is None, "a sequence starts inside this call, but past_key_values is not at its start")
        hidden, bounds = [x] if every else [], None
        if packing is not None:
            x, bounds = packing.pack(x), packing.cu_seqlens
        for number, block in enumerate(self.layers):
            x, end = block(x, None if states is None else states[number], None, bounds)
            if cache is not None:
                if several:
                    assert packing is not None
                    end = pytree.tree_map_only(Tensor, lambda s: s[packing.last.to(s.device)], end)
                cache.layers[number].advance(end, time)
            if every and number + 1 < len(self.layers):
                hidden.append(x if packing is None else packing.unpack(x))
        x = self.norm(x)
        return (*hidden, x if packing is None else packing.unpack(x))


class MirasForCausalLM(MirasPreTrainedModel, MirasGenerationMixin):
    """The model with a head that predicts the next token.

    >>> import torch
    >>> from miras.hf import MirasConfig, MirasForCausalLM
    >>> model = MirasForCausalLM(MirasConfig.preset("yaad-tiny")).eval()
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0).shape
    torch.Size([1, 7])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: MirasConfig) -> None:
        super().__init__(config)
        self.model = MirasModel(config)
        self.vocab_size = config.vocab_size
        self._side_known = False
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: MirasCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token, and the loss where there are labels; other arguments as in :class:`MirasModel`.

        Args:
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, output_hidden_states,
                cu_seqlens, cu_seq_lens_q: as in :meth:`MirasModel.forward`.
            labels: ``[B,T]``, the tokens themselves (they are shifted here), -100 where there is nothing to learn. The first
                token of a sequence, whatever stands before it, is never a label, nor is padding.
            logits_to_keep: logits of the last so many tokens, or of those given; 0 for all.
            num_items_in_batch: divides the loss instead of the number of labels, for accumulated gradients.
            kwargs: ``shift_labels`` ``[B,T]``, each token's successor, already shifted, in place of ``labels`` (not by name: a
                Trainer takes every argument named so for one that its data must have); what transformers passes to all models
                and this one has no use for.

        While it trains with labels the model returns no logits, unless ``config.loss_chunk`` is 0.
        """
        cu_seqlens = cu_seq_lens_q if cu_seqlens is None else cu_seqlens
        shift_labels: Tensor | None = kwargs.get("shift_labels")
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            cu_seqlens=cu_seqlens,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        loss = logits = None
        if labels is not None and shift_labels is None:
            require(labels.shape == hidden.shape[:2], f"labels must be {list(hidden.shape[:2])}, got {list(labels.shape)}")
            packing = packing_of(labels.shape[0], labels.shape[1], attention_mask, position_ids, cu_seqlens)
            shift_labels = next_labels(labels, packing)
            counted = num_items_in_batch is not None and packing is not None
            if counted and attention_mask is not None and not self._side_known:
                # a tokenizer pads on one side: the first batch with padding tells, and a GPU is not waited for again
                self._side_known = check_side(attention_mask[:, -labels.shape[1] :])
        if shift_labels is not None:
            loss = self._loss(hidden, shift_labels, num_items_in_batch)
        if loss is None or not self.training or self.config.loss_chunk == 0:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden[:, kept, :])
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )

    def _loss(self, hidden: Tensor, following: Tensor, items: Tensor | int | None) -> Tensor:
        """-log p of each token's successor, which is given, ``[B,T]``."""
        fits = following.shape == hidden.shape[:2]
        require(fits, f"shift_labels must be {list(hidden.shape[:2])}, got {list(following.shape)}")
        flat = following.to(hidden.device).flatten()
        return chunked_cross_entropy(self.lm_head, hidden.flatten(0, 1), flat, self.config.loss_chunk, items)

    @torch.no_grad()
    def read(
        self,
        text: str | Tensor | Sequence[int],
        *,
        memory: KeptMemory | None = None,
        tokenizer: Any = None,
        stretch: int = 2048,
        progress: Callable[[int, int], None] | None = None,
    ) -> KeptMemory:
        """Read a text of any length, in stretches; the memory of it can be saved and gone on from.

        Args:
            text: a text, or its tokens, ``[T]`` or ``[B,T]``.
            memory: what was read before, to read on from.
            tokenizer: for a text; the one in the folder the model was loaded from when not given.
            stretch: tokens that are read at once.
            progress: called with the number of tokens read and of all.
        """
        return read(self, text, memory=memory, tokenizer=tokenizer, stretch=stretch, progress=progress)
