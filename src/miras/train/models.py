"""The model that a configuration asks for, and the objective that training minimises.

R rows, T tokens of a sequence, S documents in a packed batch
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .. import presets
from ..data.tokenizer import Tokenizer
from ..hf import MirasConfig, MirasForCausalLM
from ..hf.loading import check_kind
from ..hf.loss import chunked_cross_entropy
from ..spec import Spec
from ..types import require
from .config import ModelConfig
from .options import called


class Objective(nn.Module):
    """The model and its loss as one module, which is what an engine wraps: only one number leaves it."""

    def __init__(self, model: MirasForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor, bounds: Tensor | None, items: int) -> Tensor:
        """The sum of -log p(target) over the tokens that have one, divided by ``items``.

        Args:
            inputs, targets: ``[R,T]``, or ``[1,R*T]`` where documents are isolated.
            bounds: ``[S+1]`` the documents' bounds, or None.
            items: how many targets the whole step has, over all micro-batches and processes.
        """
        hidden = self.model.model(input_ids=inputs, cu_seqlens=bounds, use_cache=False).last_hidden_state
        head, size = self.model.lm_head, self.model.config.loss_chunk
        return chunked_cross_entropy(head, hidden.flatten(0, 1), targets.flatten(), size, items)


# what a configuration of training calls the fields of a model's
FIELDS = {
    "layers": "num_hidden_layers",
    "dim": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "chunk_size": "chunk_size",
    "window": "sliding_window",
    "rope": "rope",
    "convolution": "conv_kernel",
    "silu": "silu",
    "output_gate": "output_gate",
    "value_norm": "value_norm",
    "step_sum": "step_sum",
    "step": "step_start",
    "step_limit": "step_limit",
    "decay": "decay_start",
    "decay_limit": "decay_limit",
    "pace": "gate_pace",
    "start": "weight_start",
}


def model_changes(config: ModelConfig) -> dict[str, Any]:
    """The fields of the language model's configuration that differ from its size's."""
    changes = {name: getattr(config, key) for key, name in FIELDS.items() if getattr(config, key) is not None}
    if config.spec is not None:
        changes["spec"] = spec_of(config.spec)
    elif config.choices:
        changes["spec"] = chosen_spec(config.name, config.choices)
    return changes


def spec_of(text: str) -> Spec:
    """The memory that JSON describes."""
    require(Path(text).suffix != ".json", f'model.spec takes the JSON itself: --model.spec "$(cat {text})"')
    try:
        return Spec.from_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"model.spec is not JSON, as miras.Spec.to_json writes it: {error}") from None


def chosen_spec(name: str, choices: tuple[str, ...]) -> Spec:
    """A named configuration's preset with arguments of one's own, ``argument=value`` each.

    >>> chosen_spec("moneta-anchored-tiny", ("q=3", "link=exact")).retention
    Lq(q=3.0, link='exact', anchor=True, floor=0.0001)
    """
    preset = presets.PRESETS.get(name.split("-")[0])
    require(preset is not None, f"model.choices are arguments of a preset, and {name} names none of them")
    assert preset is not None
    given = {"anchor": True} if "anchored" in name.split("-") else {}
    return called(preset, choices, "model.choices", **given)


def model_config(config: ModelConfig, tokenizer: Tokenizer) -> MirasConfig:
    """The configuration of the language model: a named one with the changes asked for, that fits the tokenizer."""
    changes = model_changes(config)
    if Path(config.name).is_dir():
        require(not changes, f"model.name {config.name} is a saved model, whose sizes are fixed: got {', '.join(changes)}")
        check_kind(config.name)
        found: MirasConfig = MirasConfig.from_pretrained(config.name)
    else:
        found = MirasConfig.preset(config.name, **changes)
    own = tokenizer.vocab_size
    require(
        own <= found.vocab_size,
        f"the tokenizer {tokenizer.name} has {own} tokens and the model {config.name} room for {found.vocab_size}: "
        f"give --model.vocab_size {-(-own // 64) * 64}, or another tokenizer",
    )
    found.eos_token_id = found.bos_token_id = tokenizer.end
    if found.pad_token_id is not None and found.pad_token_id >= own:
        found.pad_token_id = None
    return found


def build_model(config: ModelConfig, tokenizer: Tokenizer) -> MirasForCausalLM:
    """The model, freshly drawn, or loaded where its name is a folder."""
    found = model_config(config, tokenizer)
    if Path(config.name).is_dir():
        model: MirasForCausalLM = MirasForCausalLM.from_pretrained(config.name, config=found)
        return model
    return MirasForCausalLM(found)
