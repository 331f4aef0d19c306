"""Tiny models and their tokenizer."""

import pytest
import torch
from tiny_models import build

from miras.hf import MirasConfig, MirasForCausalLM, byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def model():
    return build("yaad-anchored-tiny")


@pytest.fixture(scope="session")
def folder(tmp_path_factory, tokenizer):
    """A saved model."""
    torch.manual_seed(0)
    where = tmp_path_factory.mktemp("model")
    MirasForCausalLM(MirasConfig.preset("yaad-anchored-tiny", eos_token_id=None)).save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where
