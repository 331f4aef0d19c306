"""What transformers' own common tests ask of a causal language model, in short."""

import copy
import inspect

import pytest
import torch
from test_model import build, close, tokens
from transformers.modeling_layers import GradientCheckpointingLayer

from miras.hf import MirasForCausalLM, MirasModel

each_kind = pytest.mark.parametrize("name", ["yaad", "moneta", "memora", "gated_deltanet", "yaad-h"])


@torch.no_grad()
@each_kind
def test_outputs_do_not_depend_on_anything_else(name):
    """Twice the same, alone or in a batch, from tokens or embeddings, as a tuple or by name, of a copy."""
    model, ids = build(name), tokens(3, 9)
    want = model(ids).logits
    assert torch.equal(model(ids).logits, want)
    for row in range(3):
        close(model(ids[row : row + 1]).logits, want[row : row + 1])
    close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, want)
    close(model(ids, attention_mask=torch.ones_like(ids)).logits, want)
    close(model(ids, position_ids=torch.arange(9)[None]).logits, want)
    assert torch.equal(model(ids, return_dict=False)[0], want)
    assert torch.equal(copy.deepcopy(model)(ids).logits, want)


@each_kind
def test_weights_by_name(name, tmp_path):
    model, ids = build(name, torch.float32), tokens(1, 5)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = MirasForCausalLM(model.config).eval()
    assert not torch.equal(other(ids).logits, model(ids).logits)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(other(ids).logits, model(ids).logits)
    named = dict(model.named_parameters())
    assert set(named) | {"lm_head.weight"} == set(model.state_dict()) and not list(model.buffers())


@each_kind
def test_a_model_on_no_device_becomes_one_that_starts_as_usual(name):
    """Built without memory, then given some: every parameter is started, and started as in a plain build."""
    config = build(name, torch.float32).config
    with torch.device("meta"):
        model = MirasForCausalLM(config)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    for module in model.modules():
        module._is_hf_initialized = False
    torch.manual_seed(0)
    model.tie_weights()
    model.init_weights()
    plain = dict(build(name, torch.float32).named_parameters())
    for parameter_name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), parameter_name
        if parameter.numel() > 30:
            want = plain[parameter_name]
            assert (parameter.mean() - want.mean()).abs() < 0.3, parameter_name
            assert 0.7 * want.std() - 1e-6 <= parameter.std() <= 1.4 * want.std() + 1e-6, parameter_name


def test_recomputing_is_switched_in_every_block():
    model = build("yaad-h")
    assert not model.is_gradient_checkpointing
    model.gradient_checkpointing_enable()
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    assert len(blocks) == 2 and all(block.gradient_checkpointing for block in blocks)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing and not any(block.gradient_checkpointing for block in blocks)


def test_embeddings_and_head_are_where_tools_look():
    model = build("yaad")
    assert model.get_input_embeddings() is model.model.embed_tokens and model.get_output_embeddings() is model.lm_head
    assert isinstance(model.base_model, MirasModel) and model.can_generate()
    assert next(iter(inspect.signature(model.forward).parameters)) == "input_ids"
    # nothing looks at padding's embedding
    assert (model.model.embed_tokens.weight[0] == 0).all()


def test_gradients_reach_embeddings_given_from_outside():
    model, ids = build("yaad"), tokens(1, 6)
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    out = model(inputs_embeds=embeds, output_hidden_states=True)
    out.hidden_states[0].retain_grad()
    out.logits.sum().backward()
    assert embeds.grad.abs().sum() > 0 and out.hidden_states[0].grad is not None
    model.enable_input_require_grads()
    model.requires_grad_(False)
    assert model(ids).logits.requires_grad
