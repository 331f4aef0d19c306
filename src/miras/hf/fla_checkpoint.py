"""Checkpoints that flash-linear-attention saved, as models of this library: the same function, other names.

What a checkpoint's configuration asks for and a Miras model does not have is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedConfig

from ..types import require
from .configuration import MirasConfig
from .fla_families import FAMILIES, Family, Options
from .modeling import MirasForCausalLM

# options of every family, with the only values that can be represented
ALLOWED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("swish",),
    "attn": (None,),
    "attnres_block_size": (None,),
    "conv_bias": (False, None),
    "norm_first": (False,),
    "share_conv_kernel": (False,),
}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_heads")
COMMON: Options = {"norm_eps": 1e-6, "initializer_range": 0.02}
TOKENS: Options = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False}
# how fla computes or trains a model, or what its tensors say as well
INDIFFERENT = {
    "attn_mode",
    "auto_map",
    "elementwise_affine",
    "fuse_cross_entropy",
    "fuse_linear_cross_entropy",
    "fuse_norm",
    "fuse_swiglu",
    "hidden_ratio",
    "intermediate_size",
    "max_position_embeddings",
    "torch_dtype",
    "use_cache",
    "use_gk",
    "use_gv",
    "use_l2warp",
    "use_output_norm",
}


class Checkpoint:
    """Tensors by name, each taken once; what is asked for and not there, or there and never taken, is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, Tensor] = {}
        files = sorted(folder.glob("model*.safetensors"))
        require(bool(files), f"there are no model*.safetensors in {folder}: save the model with safe_serialization")
        for file in files:
            try:
                self.tensors.update(load_file(file))
            except SafetensorError as error:
                raise ValueError(f"{file} is not a complete safetensors file: {error}") from error
        # tables that fla's rotary positions keep beside the weights
        self.tensors = {name: x for name, x in self.tensors.items() if not name.endswith("rotary.inv_freq")}

    def take(self, name: str) -> Tensor:
        """A tensor, once."""
        require(name in self.tensors, f"the checkpoint in {self.folder} has no tensor {name}")
        return self.tensors.pop(name)

    def finish(self) -> None:
        """Refuse what has no place."""
        rest = ", ".join(sorted(self.tensors)[:4])
        require(not self.tensors, f"the checkpoint in {self.folder} has tensors that this import has no place for: {rest}")


class Mixer:
    """The tensors of one mixer, under fla's short names, each taken once."""

    def __init__(self, checkpoint: Checkpoint, number: int) -> None:
        self.checkpoint, self.prefix = checkpoint, f"model.layers.{number}.attn."

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.checkpoint.tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.checkpoint.take(self.prefix + name)


def from_fla(folder: str | Path, *, dtype: torch.dtype | str | None = None, ignore: Collection[str] = ()) -> MirasForCausalLM:
    """The model that fla's ``save_pretrained`` wrote, ready to read.

    Args:
        folder: with config.json and safetensors; its ``model_type`` is gated_deltanet, delta_net, gla or transformer.
        dtype: of the weights, or its name; as they were saved when not given or "auto".
        ignore: options of the checkpoint that are known not to matter, where this import refuses them.
    """
    folder = Path(folder)
    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    known = wanted.is_floating_point if isinstance(wanted, torch.dtype) else dtype in (None, "auto")
    require(known, f"dtype must be a floating-point dtype of torch, its name, 'auto' or None, got {dtype!r}")
    family, options = _options(folder, ignore)
    checkpoint = Checkpoint(folder)
    tensors = _tensors(checkpoint, family, options)
    checkpoint.finish()
    fields = family.fields(options)
    if "model.layers.0.mixer.gates.log_alpha.down" in tensors:
        fields["gate_rank"] = len(tensors["model.layers.0.mixer.gates.log_alpha.down"])
    config = MirasConfig(
        spec=family.preset,
        intermediate_size=len(tensors["model.layers.0.mlp.up_proj.weight"]),
        rms_norm_eps=options["norm_eps"],
        **{name: options[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "initializer_range")},
        **{name: options[name] for name in TOKENS},
        **fields,
    )
    kind = tensors["model.embed_tokens.weight"].dtype if wanted is None else wanted
    with torch.device("meta"):
        model = MirasForCausalLM(config)
    for name, x in model.state_dict().items():
        want, found = list(x.shape), list(tensors[name].shape)
        require(found == want, f"the checkpoint in {folder} has {found} for {name}, its configuration asks for {want}")
    model.load_state_dict({name: x.to(kind, copy=True) for name, x in tensors.items()}, assign=True)
    model.tie_weights()
    model.eval()
    return model


def _options(folder: Path, ignore: Collection[str]) -> tuple[Family, Options]:
    """What the checkpoint's configuration says, with what cannot be represented refused."""
    path = folder / "config.json"
    require(path.is_file(), f"{folder} is not a model folder: it has no config.json")
    try:
        found: Options = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    kind = found.pop("model_type", None)
    require(kind in FAMILIES, f"{folder} holds a model of type {kind!r}: those that can be read are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    allowed = {**ALLOWED, **family.allowed}
    for name, values in allowed.items():
        value = found.get(name, values[0])
        fits = value in values or name in ignore
        require(fits, f"{name}={value!r} of the {kind} model in {folder} cannot be represented: only {values[0]!r} can")
    generic = PreTrainedConfig().to_dict()
    strange = sorted(set(found) - {*allowed, *INDIFFERENT, *SIZES, *TOKENS, *COMMON, *family.defaults, *generic, *ignore})
    require(
        not strange,
        f"this import does not know the option {', '.join(strange)} of the {kind} model in {folder}: "
        "pass ignore=(name,) if it changes nothing",
    )
    options = {**COMMON, **TOKENS, **family.defaults, **found}
    missing = [name for name in SIZES if name not in options]
    require(not missing, f"{path} does not give {', '.join(missing)}")
    if "num_kv_heads" in options and options["num_kv_heads"] is None:
        options["num_kv_heads"] = options["num_heads"]
    return family, options


def _tensors(checkpoint: Checkpoint, family: Family, options: Options) -> dict[str, Tensor]:
    """Every tensor under the name it has here."""
    take = checkpoint.take
    tensors = {"model.embed_tokens.weight": take("model.embeddings.weight"), "model.norm.weight": take("model.norm.weight")}
    tied = options["tie_word_embeddings"]
    head = tensors["model.embed_tokens.weight"] if tied else take("lm_head.weight")
    checkpoint.tensors.pop("lm_head.weight", None)
    tensors["lm_head.weight"] = head
    for number in range(options["num_hidden_layers"]):
        block = f"model.layers.{number}"
        tensors[f"{block}.mixer_norm.weight"] = take(f"{block}.attn_norm.weight")
        for name in ("mlp_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            tensors[f"{block}.{name}.weight"] = take(f"{block}.{name}.weight")
        mixer = family.mixer(Mixer(checkpoint, number), options)
        tensors.update({f"{block}.mixer.{name}": x for name, x in mixer.items()})
    return tensors
