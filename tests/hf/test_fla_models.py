"""Checkpoints that fla's own models wrote, against those models themselves.

fla's models and layers (the distribution flash-linear-attention) run as they are but for their Triton operations, which no CPU
can run: those give way to fla's naive operations and to plain PyTorch.
"""

import importlib
import importlib.util

import pytest
import torch
import torch.nn.functional as F
from fla_reference import (
    delta_rule_recurrence,
    heads_first,
    naive_parallel_attn,
    naive_recurrent_gated_delta_rule,
    naive_recurrent_gla,
    rms_norm,
    rotary_embedding_ref,
    short_convolution,
    unit_length,
)
from test_model import tokens

from miras.hf import from_fla

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("fla.models") is None, reason="needs flash-linear-attention's models"),
    pytest.mark.filterwarnings("ignore"),
]
SMALL = {
    "hidden_size": 32,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 40,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
MODELS = [
    ("GatedDeltaNet", {"head_dim": 16}),
    ("GatedDeltaNet", {"head_dim": 8, "expand_v": 1.0, "num_v_heads": 4, "allow_neg_eigval": True}),
    ("GatedDeltaNet", {"head_dim": 16, "use_gate": False, "fuse_norm": False}),
    ("DeltaNet", {}),
    ("DeltaNet", {"use_gate": True, "expand_k": 0.5, "tie_word_embeddings": True, "use_short_conv": False}),
    ("GLA", {}),
    ("GLA", {"num_heads": 4, "num_kv_heads": 2, "fuse_norm": False, "use_output_gate": False}),
    ("Transformer", {"rope_theta": 500.0}),
    ("Transformer", {"num_heads": 4, "num_kv_heads": 2, "tie_word_embeddings": True}),
]


def norm(self, x, residual=None, prenorm=False, residual_in_fp32=False):
    x = x if residual is None else x + residual
    y = rms_norm(x, self.weight, self.eps)
    return (y, x) if prenorm else y


def gated_norm(self, x, g, *args, **kwargs):
    assert self.activation in ("swish", "silu", "sigmoid")
    return rms_norm(x, self.weight, self.eps) * (torch.sigmoid(g) if self.activation == "sigmoid" else F.silu(g))


def convolution(self, x, **kwargs):
    return short_convolution(x, self.weight), None


def fused_convolution(x, weight, bias, activation, **kwargs):
    assert bias is None and activation == "silu"
    return short_convolution(x, weight[:, None]), None


def gated_delta_rule(*, q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, **kwargs):
    groups = v.shape[2] // q.shape[2]
    q, k = (unit_length(x).repeat_interleave(groups, 2) for x in (q, k))
    beta = torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)
    return naive_recurrent_gated_delta_rule(q, k, v, beta, -A_log.exp() * F.softplus(g + dt_bias))[0], None


def delta_rule(*, q, k, v, beta, use_qk_l2norm_in_kernel, **kwargs):
    assert use_qk_l2norm_in_kernel
    return heads_first(delta_rule_recurrence(*map(heads_first, (unit_length(q), unit_length(k), v, beta)))[0]), None


def linear_attention(*, q, k, v, gk=None, g=None, **kwargs):
    return naive_recurrent_gla(q, k, v, g if gk is None else gk)


def attention(q, k, v, causal, window_size):
    assert causal and window_size == (-1, -1)
    groups = q.shape[2] // k.shape[2]
    return naive_parallel_attn(q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2))[0]


def rotary(self, q, k, **kwargs):
    angle = torch.outer(torch.arange(q.shape[1], dtype=torch.float32), self.inv_freq)
    return (rotary_embedding_ref(x, angle.cos(), angle.sin()) for x in (q, k))


@pytest.fixture
def fla_models(monkeypatch):
    """fla's models, for a CPU."""
    modules, layers = importlib.import_module("fla.modules"), importlib.import_module("fla.layers")
    monkeypatch.setattr(modules.RMSNorm, "forward", norm)
    monkeypatch.setattr(modules.FusedRMSNormGated, "forward", gated_norm)
    monkeypatch.setattr(modules.ShortConvolution, "forward", convolution)
    monkeypatch.setattr(modules.RotaryEmbedding, "forward", rotary)
    mlp = importlib.import_module("fla.modules.mlp")
    monkeypatch.setattr(mlp, "swiglu_linear", lambda x, y, weight, bias: F.linear(F.silu(x) * y, weight, bias))
    replaced = {
        "gated_deltanet": {
            "causal_conv1d": fused_convolution,
            "chunk_gated_delta_rule": gated_delta_rule,
            "fused_recurrent_gated_delta_rule": gated_delta_rule,
        },
        "delta_net": {"chunk_delta_rule": delta_rule, "fused_recurrent_delta_rule": delta_rule},
        "gla": {"chunk_gla": linear_attention, "fused_recurrent_gla": linear_attention},
        "attn": {"flash_attn_func": attention},
    }
    for name, functions in replaced.items():
        for function, replacement in functions.items():
            monkeypatch.setattr(importlib.import_module(f"{layers.__name__}.{name}"), function, replacement)
    return importlib.import_module("fla.models")


@torch.no_grad()
@pytest.mark.parametrize("time", [9, 70])
@pytest.mark.parametrize(("name", "options"), MODELS)
def test_a_model_of_fla_and_its_import_give_the_same_logits(fla_models, name, options, time, tmp_path):
    """Short and long inputs: fla takes its recurrent operation up to 64 tokens, the chunk form above."""
    config = getattr(fla_models, f"{name}Config")(**{**SMALL, **options})
    theirs = getattr(fla_models, f"{name}ForCausalLM")(config).eval()
    theirs.save_pretrained(tmp_path)
    want = theirs(tokens(2, time), use_cache=False).logits
    got = from_fla(tmp_path)(tokens(2, time)).logits
    # both in float32
    assert got.shape == want.shape and (got - want).abs().max() < 1e-4 * want.abs().max()
    assert torch.equal(got.argmax(-1), want.argmax(-1))
