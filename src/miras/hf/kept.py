"""A memory that can be kept: read a text once, save what was read, go on from it later or elsewhere.

B rows, T tokens
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoTokenizer
from transformers.utils import ModelOutput

from miras import __version__

from ..nn.block import BlockState
from ..types import require, require_text, whole
from . import memory_file
from .cache import MirasCache, tensors

if TYPE_CHECKING:
    from .modeling import MirasForCausalLM


class KeptMemory(NamedTuple):
    """What a model has read: the state of every block, and the last token, which the blocks have not seen yet.

    That token is what the next one follows from, so that generation can go on with or without a further prompt. A memory is
    never changed: reading on gives another one.

    Attributes:
        states: one a block.
        last: ``[B,1]``, the last token read.
        tokens: how many were read, the last among them.
        model: the model that read them.
    """

    states: tuple[BlockState, ...]
    last: Tensor
    tokens: int
    model: MirasForCausalLM

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors, which is what its file takes but for the header."""
        return sum(x.numel() * x.element_size() for state in self.states for x in tensors(state))

    def cache(self) -> MirasCache:
        """A cache that goes on from here. To transformers it counts as no columns, so no mask has to cover what was read."""
        cache = MirasCache(len(self.states))
        cache.model = self.model.config
        for layer, state in zip(cache.layers, self.states, strict=True):
            layer.advance(state, 0)
        return cache

    def inputs(self, ids: Tensor | None = None) -> dict[str, Any]:
        """What ``model.generate`` takes to go on with the tokens ``ids`` ``[B,T]`` or ``[T]``, or without any.

        A memory of one row goes on with any number of rows. The sequences that come back begin with the last token read.
        """
        cache, last = self.cache(), self.last
        if ids is not None:
            require(isinstance(ids, Tensor), f"ids must be a tensor of tokens, got {type(ids).__name__}")
            ids = _checked(ids[None] if ids.dim() == 1 else ids, self.model).to(last.device)
            if len(last) == 1 and len(ids) > 1:
                last = last.expand(len(ids), 1)
                cache.batch_repeat_interleave(len(ids))
            require(len(ids) == len(last), f"ids have {len(ids)} rows, the memory has {len(last)}")
            last = torch.cat([last, ids], 1)
        # a model that is told to keep no cache would read all it wrote again, on top of what the memory holds
        return {"input_ids": last, "attention_mask": torch.ones_like(last), "past_key_values": cache, "use_cache": True}

    def after(self, generated: Any) -> KeptMemory:
        """The memory after what ``model.generate(**memory.inputs(...), return_dict_in_generate=True)`` returned."""
        whole = isinstance(generated, ModelOutput)
        require(whole, f"generate returned a {type(generated).__name__}: give it return_dict_in_generate=True")
        cache, sequences = generated.past_key_values, generated.sequences
        require(isinstance(cache, MirasCache) and cache.states is not None, "generate returned no cache: leave use_cache on")
        unseen = sequences.shape[1] - cache.get_seq_length()
        require(unseen == 1, f"the cache must be one token behind the sequences, but is {unseen} behind")
        beams = hasattr(generated, "beam_indices")
        require(not beams, "beams go on in other rows than the sequences come back in: read() the one to keep")
        over = [] if cache.over is None else cache.over.nonzero().flatten().tolist()
        require(
            not over,
            f"rows {over} ended before the others, and a memory is kept of rows that end together: generate them apart, or "
            "with min_new_tokens as large as max_new_tokens",
        )
        return KeptMemory(cache.states, sequences[:, -1:].clone(), self.tokens - 1 + sequences.shape[1], self.model)

    def save(self, path: str | Path) -> None:
        """Write it as a safetensors file, whose header names the model; a file of that name is replaced."""
        found: dict[str, Tensor] = {"last": self.last.detach().to("cpu", copy=True).contiguous()}
        tree = [memory_file.flatten(state, f"blocks.{number}", found) for number, state in enumerate(self.states)]
        header = memory_file.Header(
            memory=str(self.model.config.memory),
            model=memory_file.identity(self.model.config),
            weights=memory_file.digest(self.model),
            tokens=self.tokens,
            versions={"miras": __version__, "torch": str(torch.__version__)},
            tree=tree,
        )
        memory_file.write(Path(path), found, header)

    @classmethod
    def load(cls, path: str | Path, model: MirasForCausalLM) -> KeptMemory:
        """The memory that ``save`` wrote, refused unless this model, wherever it runs, is the one that made it."""
        require(hasattr(model, "config"), f"model must be a model that was loaded, got {model!r}")
        found, header = memory_file.read(Path(path))
        memory_file.check_model(header, model, Path(path))
        devices = [next(block.parameters()).device for block in model.model.layers]
        try:
            states = [memory_file.rebuild(tree, found, device) for tree, device in zip(header.tree, devices, strict=True)]
            last = found["last"].to(_device(model))
        except KeyError as error:
            raise ValueError(f"{path} is not a complete memory file: it has no tensor {error}") from None
        exact = model.dtype == torch.float64
        fits = all((x.dtype == torch.float64) == exact for state in states for x in tensors(state) if x.is_floating_point())
        other = f"{path} was read in another precision than this model's {model.dtype}"
        require(fits, f"{other}: load the model in that, or read again")
        return cls(tuple(states), last, header.tokens, model)


def read(
    model: MirasForCausalLM,
    text: str | Tensor | Sequence[int],
    *,
    memory: KeptMemory | None = None,
    tokenizer: Any = None,
    stretch: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> KeptMemory:
    """See :meth:`MirasForCausalLM.read`."""
    require(whole(stretch, 1), f"stretch must be an integer of 1 or more, got {stretch!r}")
    ids = _checked(_ids(model, text, memory, tokenizer), model).to(_device(model))
    require(ids.shape[1] > 0, "there is nothing to read: the text has no tokens")
    cache, total = MirasCache(len(model.model.layers)), ids.shape[1]
    if memory is not None:
        start = memory.inputs(ids)
        ids, cache = start["input_ids"], start["past_key_values"]
    before = ids.shape[1] - total
    if ids.shape[1] == 1:
        # one token alone: the blocks have seen nothing, which an empty stretch says in their own words
        model.model(input_ids=ids[:, :0], past_key_values=cache)
    for begin in range(0, ids.shape[1] - 1, stretch):
        end = min(begin + stretch, ids.shape[1] - 1)
        model.model(input_ids=ids[:, begin:end], past_key_values=cache)
        if progress is not None:
            progress(end - before, total)
    if progress is not None:
        progress(total, total)
    assert cache.states is not None
    return KeptMemory(cache.states, ids[:, -1:].clone(), total + (0 if memory is None else memory.tokens), model)


def tokenizer_of(model: MirasForCausalLM) -> Any:
    """The tokenizer in the folder that a model was loaded from."""
    folder = model.config.name_or_path
    advice = "give tokenizer=, or tokens instead of a text"
    require(bool(folder), f"the model was not loaded from a folder, so there is no tokenizer for a text: {advice}")
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"there is no tokenizer in {folder}: {advice}") from error


def _device(model: MirasForCausalLM) -> torch.device:
    """Where tokens go in: the model's device, or the CPU where its weights are offloaded and brought in by hooks."""
    return torch.device("cpu") if model.device.type == "meta" else model.device


def _ids(model: MirasForCausalLM, text: str | Tensor | Sequence[int], memory: KeptMemory | None, tokenizer: Any) -> Tensor:
    """Tokens ``[B,T]`` of a text or of tokens; what marks a text's beginning is put in front of the first one alone."""
    if isinstance(text, str):
        require_text(text)
        tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
        text = tokenizer(text, add_special_tokens=memory is None, verbose=False).input_ids
    fits = isinstance(text, Iterable) and not isinstance(text, Mapping)
    require(fits, f"give a text, a tensor or a list of tokens, got {type(text).__name__}")
    ids = text if isinstance(text, Tensor) else _tokens(list(text))
    return ids[None] if ids.dim() == 1 else ids


def _tokens(given: list[Any]) -> Tensor:
    try:
        # what is no whole number keeps its dtype, by which it is refused
        return torch.tensor(given) if given else torch.zeros(0, dtype=torch.long)
    except (TypeError, ValueError) as error:
        raise ValueError(f"tokens must be integers, got {given[:3]!r}") from error


def _checked(ids: Tensor, model: MirasForCausalLM) -> Tensor:
    """Tokens ``[B,T]``, refused where they are none of the model's."""
    whole = ids.dim() == 2 and not ids.is_floating_point()
    require(whole, f"tokens must be integers, [T] or [B,T], got {ids.dtype} {list(ids.shape)}")
    if ids.numel():
        low, high, vocab = int(ids.min()), int(ids.max()), model.config.vocab_size
        wrong = low if low < 0 else high
        require(low >= 0 and high < vocab, f"token {wrong} is not one of the model's {vocab}: is this its tokenizer?")
    return ids
