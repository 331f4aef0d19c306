"""The families of models that flash-linear-attention saves, in this library's words: configuration and names of tensors.

C channels of the input, H heads, G heads that share one, K key channels, D channels of a head, W taps
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ..types import require

Options = dict[str, Any]
GATES = {"swish": "silu", "silu": "silu", "sigmoid": "sigmoid"}


class Layer(Protocol):
    """The tensors of one mixer, under fla's short names, each taken once."""

    def __contains__(self, name: str) -> bool: ...

    def __getitem__(self, name: str) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the checkpoints of one ``model_type`` are read.

    Attributes:
        preset: the memory.
        defaults: the options that are looked at, with fla's default for checkpoints from before there was one.
        fields: fields of the configuration, from the options.
        mixer: tensors of a mixer under our names.
        allowed: options with the only values that can be represented.
    """

    preset: str
    defaults: Options
    fields: Callable[[Options], Options]
    mixer: Callable[[Layer, Options], dict[str, Tensor]]
    allowed: dict[str, tuple[Any, ...]] = field(default_factory=dict)


def spread(x: Tensor, heads: int, groups: int) -> Tensor:
    """The rows of every head as often as several heads share it: ``[H D,...] -> [H G D,...]``."""
    return x.reshape(heads, -1, *x.shape[1:]).repeat_interleave(groups, 0).flatten(0, 1)


def groups_of(options: Options, many: str, few: str) -> tuple[int, int]:
    """How many heads there are of what is shared, and how many share one."""
    shared, all_heads = options[few], options[many] or options[few]
    require(all_heads % shared == 0, f"{many}={all_heads} is not a multiple of {few}={shared}")
    return shared, all_heads // shared


def convolution(layer: Layer, options: Options, shared: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Three filters ``[H K,1,W]`` behind one another."""
    if not options["use_short_conv"]:
        return {}
    q, k, v = (layer[f"{name}_conv1d.weight"].squeeze(1) for name in "qkv")
    return {"convolution.weight": torch.cat([shared(q), shared(k), v])}


def step(layer: Layer) -> dict[str, Tensor]:
    """fla's beta has no bias."""
    weight = layer["b_proj.weight"]
    return {"gates.eta.up": weight, "gates.eta.bias": weight.new_zeros(len(weight))}


def gated_deltanet_fields(options: Options) -> Options:
    """A gate, a decay as Mamba's; value heads may share keys."""
    activation = options["output_gate_activation"]
    require(activation in GATES, f"output_gate_activation={activation!r} is not one of {', '.join(GATES)}")
    return {
        "num_attention_heads": options["num_v_heads"] or options["num_heads"],
        "head_dim": options["head_dim"],
        "value_head_dim": int(options["head_dim"] * options["expand_v"]),
        "conv_kernel": options["conv_size"] if options["use_short_conv"] else 0,
        "output_gate": GATES[activation] if options["use_gate"] else "none",
        "step_limit": 2.0 if options["allow_neg_eigval"] else None,
    }


def gated_deltanet_mixer(layer: Layer, options: Options) -> dict[str, Tensor]:
    """log alpha = -exp(A_log) softplus(a x + dt_bias)."""
    heads, groups = groups_of(options, "num_v_heads", "num_heads")

    def shared(x: Tensor) -> Tensor:
        return spread(x, heads, groups)

    return {
        "q_proj.weight": shared(layer["q_proj.weight"]),
        "k_proj.weight": shared(layer["k_proj.weight"]),
        "v_proj.weight": layer["v_proj.weight"],
        "o_proj.weight": layer["o_proj.weight"],
        **({"g_proj.weight": layer["g_proj.weight"]} if options["use_gate"] else {}),
        "norm.weight": layer["o_norm.weight"],
        "gates.log_alpha.up": layer["a_proj.weight"],
        "gates.log_alpha.bias": layer["dt_bias"],
        "gates.log_alpha.log_rate": layer["A_log"],
        **step(layer),
        **convolution(layer, options, shared),
    }


def expanded(options: Options) -> Options:
    """Widths of a head as shares of the hidden size."""
    heads, hidden = options["num_heads"], options["hidden_size"]
    return {
        "num_attention_heads": heads,
        "head_dim": round(hidden * options["expand_k"]) // heads,
        "value_head_dim": round(hidden * options["expand_v"]) // heads,
    }


def delta_net_fields(options: Options) -> Options:
    """Unit-length q and k, perhaps a gate."""
    return {
        **expanded(options),
        "conv_kernel": options["conv_size"] if options["use_short_conv"] else 0,
        "output_gate": "silu" if options["use_gate"] else "none",
        "step_limit": 2.0 if options["allow_neg_eigval"] else None,
    }


def delta_net_mixer(layer: Layer, options: Options) -> dict[str, Tensor]:
    """The names are nearly the same."""
    names = ("q_proj", "k_proj", "v_proj", "o_proj", *(("g_proj",) if options["use_gate"] else ()))
    return {
        **{f"{name}.weight": layer[f"{name}.weight"] for name in names},
        "norm.weight": layer["o_norm.weight"],
        **step(layer),
        **convolution(layer, options, lambda x: x),
    }


def gla_fields(options: Options) -> Options:
    """A decay of low rank; its rank is that of the tensors."""
    return {**expanded(options), "output_gate": "silu" if options["use_output_gate"] else "none"}


def gla_mixer(layer: Layer, options: Options) -> dict[str, Tensor]:
    """Keys, values and decays may be shared; the norm has two names, or no weights."""
    heads, groups = groups_of(options, "num_heads", "num_kv_heads")
    norms = [name for name in ("g_norm_swish_gate.weight", "g_norm.weight") if name in layer]
    values = layer["v_proj.weight"]
    norm = layer[norms[0]] if norms else values.new_ones(len(values) // heads)
    return {
        "q_proj.weight": layer["q_proj.weight"],
        "k_proj.weight": spread(layer["k_proj.weight"], heads, groups),
        "v_proj.weight": spread(values, heads, groups),
        "o_proj.weight": layer["o_proj.weight"],
        **({"g_proj.weight": layer["g_proj.weight"]} if options["use_output_gate"] else {}),
        "norm.weight": norm,
        "gates.log_alpha.down": layer["gk_proj.0.weight"],
        "gates.log_alpha.up": spread(layer["gk_proj.1.weight"], heads, groups),
        "gates.log_alpha.bias": spread(layer["gk_proj.1.bias"], heads, groups),
    }


def transformer_fields(options: Options) -> Options:
    """Softmax attention with rotary positions."""
    heads = options["num_heads"]
    return {
        "num_attention_heads": heads,
        "head_dim": options["hidden_size"] // heads,
        "rope": True,
        "rope_base": options["rope_theta"],
    }


def transformer_mixer(layer: Layer, options: Options) -> dict[str, Tensor]:
    """Keys and values may be shared."""
    heads, groups = groups_of(options, "num_heads", "num_kv_heads")
    return {
        "q_proj.weight": layer["q_proj.weight"],
        "k_proj.weight": spread(layer["k_proj.weight"], heads, groups),
        "v_proj.weight": spread(layer["v_proj.weight"], heads, groups),
        "o_proj.weight": layer["o_proj.weight"],
    }


SHORT_CONV: Options = {"use_short_conv": True, "conv_size": 4}
FAMILIES = {
    "gated_deltanet": Family(
        preset="gated_deltanet",
        defaults={
            "expand_v": 2.0,
            "head_dim": 256,
            "num_v_heads": None,
            "use_gate": True,
            "output_gate_activation": "swish",
            "allow_neg_eigval": False,
            **SHORT_CONV,
        },
        fields=gated_deltanet_fields,
        mixer=gated_deltanet_mixer,
    ),
    "delta_net": Family(
        preset="deltanet",
        defaults={"expand_k": 1.0, "expand_v": 1.0, "use_gate": False, "allow_neg_eigval": False, **SHORT_CONV},
        fields=delta_net_fields,
        mixer=delta_net_mixer,
        allowed={"use_beta": (True,), "qk_norm": ("l2",), "qk_activation": ("silu",)},
    ),
    "gla": Family(
        preset="gla",
        defaults={"expand_k": 0.5, "expand_v": 1.0, "num_kv_heads": None, "use_output_gate": True, "conv_size": 4},
        fields=gla_fields,
        mixer=gla_mixer,
        allowed={"feature_map": (None,), "use_short_conv": (False,), "clamp_min": (None,)},
    ),
    "transformer": Family(
        preset="transformer",
        defaults={"num_kv_heads": None, "rope_theta": 10000.0},
        fields=transformer_fields,
        mixer=transformer_mixer,
        allowed={"qkv_bias": (False,), "qk_norm": (False,), "window_size": (None,)},
    ),
}
