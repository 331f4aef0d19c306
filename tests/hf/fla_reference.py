"""fla's models as they compute, in plain PyTorch around fla's own naive operations, and checkpoints as fla writes them."""

import json
import warnings
from unittest import mock

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

with warnings.catch_warnings():
    # importing fla on a machine without a GPU warns of that and of what torch has deprecated
    warnings.simplefilter("ignore")
    from fla.modules.rotary.ops import rotary_embedding_ref
    from fla.ops.attn.naive import naive_parallel_attn
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.gla.naive import naive_recurrent_gla

COMMON = {
    "hidden_size": 32,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 40,
    "hidden_act": "swish",
    "norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn": None,
    "transformers_version": "5.22.2",
    "architectures": ["AModel"],
    "fuse_norm": True,
    "use_l2warp": False,
}
INNER = 48


def shapes(config):
    """Names and shapes of a mixer's tensors, as fla's layers have them."""
    dim, heads, kind = config["hidden_size"], config["num_heads"], config["model_type"]
    if kind == "gated_deltanet":
        more = config.get("num_v_heads") or heads
        keys, values, wide = heads * config["head_dim"], int(more * config["head_dim"] * config["expand_v"]), more
    else:
        keys, values = (int(dim * config.get(name, 1.0)) for name in ("expand_k", "expand_v"))
        wide = heads
    groups = heads // (config.get("num_kv_heads") or heads)
    found = {"q_proj.weight": (keys, dim), "k_proj.weight": (keys // groups, dim), "v_proj.weight": (values // groups, dim)}
    found["o_proj.weight"] = (dim, values)
    if kind == "transformer":
        return found
    if config.get({"gla": "use_output_gate"}.get(kind, "use_gate"), kind != "delta_net"):
        found["g_proj.weight"] = (values, dim)
    if kind == "gla":
        found |= {"gk_proj.0.weight": (16, dim), "gk_proj.1.weight": (keys // groups, 16), "gk_proj.1.bias": (keys // groups,)}
        name = "g_norm_swish_gate" if config.get("use_output_gate", True) else "g_norm"
        return found | ({f"{name}.weight": (values // wide,)} if config.get("elementwise_affine", True) else {})
    found |= {"b_proj.weight": (wide, dim), "o_norm.weight": (values // wide,)}
    if kind == "gated_deltanet":
        found |= {"a_proj.weight": (wide, dim), "A_log": (wide,), "dt_bias": (wide,)}
    if config.get("use_short_conv", True):
        widths = {"q": keys, "k": keys, "v": values}
        found |= {f"{name}_conv1d.weight": (width, 1, config.get("conv_size", 4)) for name, width in widths.items()}
    return found


def checkpoint(folder, **changes):
    """A folder as fla's save_pretrained leaves it, with random tensors; its configuration and its tensors."""
    config, generator = {**COMMON, **changes}, torch.Generator().manual_seed(0)
    dim = config["hidden_size"]
    names = {"model.embeddings.weight": (config["vocab_size"], dim), "model.norm.weight": (dim,)}
    if not config["tie_word_embeddings"]:
        names["lm_head.weight"] = (config["vocab_size"], dim)
    for number in range(config["num_hidden_layers"]):
        layer = {"attn_norm.weight": (dim,), "mlp_norm.weight": (dim,), "mlp.down_proj.weight": (dim, INNER)}
        layer |= {"mlp.gate_proj.weight": (INNER, dim), "mlp.up_proj.weight": (INNER, dim)}
        layer |= {f"attn.{name}": shape for name, shape in shapes(config).items()}
        names |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    tensors = {name: 0.3 * torch.randn(shape, generator=generator) + ("norm" in name) for name, shape in names.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return config, tensors


def rms_norm(x, weight, eps):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def short_convolution(x, weight):
    """silu of a causal depthwise convolution, x [B,T,D]."""
    padded = F.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0))
    return F.silu(F.conv1d(padded, weight, groups=len(weight))).transpose(1, 2)


def unit_length(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def heads_first(x):
    return x.transpose(1, 2)


def projected(x, layer, config):
    """q, k and v before they are split into heads."""
    q, k, v = (x @ layer[f"{name}_proj.weight"].T for name in "qkv")
    if "q_conv1d.weight" in layer:
        return (short_convolution(part, layer[f"{name}_conv1d.weight"]) for name, part in zip("qkv", (q, k, v), strict=True))
    return (q, k, v) if config["model_type"] in ("gla", "transformer") else map(F.silu, (q, k, v))


def finished(o, x, layer, config, norm, activation=F.silu):
    o = o if norm is None else rms_norm(o, norm, config["norm_eps"])
    o = o.flatten(2)
    if "g_proj.weight" in layer:
        o = o * activation(x @ layer["g_proj.weight"].T)
    return o @ layer["o_proj.weight"].T


def gated_deltanet(x, layer, config):
    q, k, v = projected(x, layer, config)
    wide = config.get("num_v_heads") or config["num_heads"]
    groups = wide // config["num_heads"]
    q, k = (unit_length(part.unflatten(2, (config["num_heads"], -1))).repeat_interleave(groups, 2) for part in (q, k))
    beta = torch.sigmoid(x @ layer["b_proj.weight"].T) * (2 if config.get("allow_neg_eigval") else 1)
    g = -layer["A_log"].exp() * F.softplus(x @ layer["a_proj.weight"].T + layer["dt_bias"])
    o, _ = naive_recurrent_gated_delta_rule(q, k, v.unflatten(2, (wide, -1)), beta, g)
    sigmoid = config.get("output_gate_activation") == "sigmoid"
    return finished(o, x, layer, config, layer["o_norm.weight"], torch.sigmoid if sigmoid else F.silu)


def delta_net(x, layer, config):
    q, k, v = (part.unflatten(2, (config["num_heads"], -1)) for part in projected(x, layer, config))
    beta = torch.sigmoid(x @ layer["b_proj.weight"].T) * (2 if config.get("allow_neg_eigval") else 1)
    inputs = (heads_first(part) for part in (unit_length(q), unit_length(k), v, beta))
    o, _ = delta_rule_recurrence(*inputs)
    return finished(heads_first(o), x, layer, config, layer["o_norm.weight"])


def gla(x, layer, config):
    heads, shared = config["num_heads"], config.get("num_kv_heads") or config["num_heads"]
    q, k, v = projected(x, layer, config)
    gk = F.logsigmoid(x @ layer["gk_proj.0.weight"].T @ layer["gk_proj.1.weight"].T + layer["gk_proj.1.bias"]) / 16
    k, v, gk = (part.unflatten(2, (shared, -1)).repeat_interleave(heads // shared, 2) for part in (k, v, gk))
    o, _ = naive_recurrent_gla(q.unflatten(2, (heads, -1)), k, v, gk)
    norm = layer.get("g_norm_swish_gate.weight", layer.get("g_norm.weight", v.new_ones(v.shape[-1])))
    return finished(o, x, layer, config, norm)


def transformer(x, layer, config):
    heads, shared = config["num_heads"], config.get("num_kv_heads") or config["num_heads"]
    q, k, v = projected(x, layer, config)
    q, k, v = q.unflatten(2, (heads, -1)), k.unflatten(2, (shared, -1)), v.unflatten(2, (shared, -1))
    half = q.shape[-1] // 2
    # angles are float32 in fla too
    # fla makes these angles in float32
    place, channel = (torch.arange(count, dtype=torch.float64) for count in (x.shape[1], half))
    angle = place[:, None] * config.get("rope_theta", 10000.0) ** -(channel / half)
    q, k = (rotary_embedding_ref(part, angle.cos().to(x), angle.sin().to(x)) for part in (q, k))
    k, v = (part.repeat_interleave(heads // shared, 2) for part in (k, v))
    return finished(naive_parallel_attn(q, k, v)[0], x, layer, config, None)


MIXERS = {"gated_deltanet": gated_deltanet, "delta_net": delta_net, "gla": gla, "transformer": transformer}


def logits(config, tensors, ids):
    """What fla's model gives for tokens [B,T], in float64, which fla's operations call float32 here."""
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double), mock.patch.object(torch, "float32", torch.float64):
        return _logits(config, {name: x.double() for name, x in tensors.items()}, ids)


def _logits(config, tensors, ids):
    x = tensors["model.embeddings.weight"][ids]
    for number in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        block = {name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)}
        mixer = {name.removeprefix("attn."): part for name, part in block.items() if name.startswith("attn.")}
        x = x + MIXERS[config["model_type"]](rms_norm(x, block["attn_norm.weight"], config["norm_eps"]), mixer, config)
        y = rms_norm(x, block["mlp_norm.weight"], config["norm_eps"])
        inner = F.silu(y @ block["mlp.gate_proj.weight"].T) * (y @ block["mlp.up_proj.weight"].T)
        x = x + inner @ block["mlp.down_proj.weight"].T
    x = rms_norm(x, tensors["model.norm.weight"], config["norm_eps"])
    return x @ tensors.get("lm_head.weight", tensors["model.embeddings.weight"]).T
