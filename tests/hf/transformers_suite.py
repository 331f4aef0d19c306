"""transformers' own common tests of models and of generation, for the memory that MIRAS_SUITE names.

Their mixins are in transformers' source tree, not in its wheel. ``test_transformers_suite.py`` runs this file inside a copy of
that tree, where the relative imports below lead to them.
"""

import os
import unittest

import torch

from miras.hf import MirasConfig, MirasForCausalLM, MirasModel

from ...generation.test_utils import GenerationTesterMixin
from ...test_configuration_common import ConfigTester
from ...test_modeling_common import ModelTesterMixin, ids_tensor

NAME = os.environ["MIRAS_SUITE"]


class MirasModelTester:
    """A small configuration and inputs for it, under the names that the mixins look for."""

    batch_size = 3
    seq_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 2

    def get_config(self):
        return MirasConfig(
            spec=NAME.removesuffix("-h"),
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=37,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            sliding_window=5 if NAME.endswith("-h") else None,
            chunk_size=4,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size - 3) + 3
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.tril(torch.ones_like(ids))}


class MirasModelTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (MirasModel, MirasForCausalLM)
    # a memory has no attention map
    has_attentions = False

    def setUp(self):
        self.model_tester = MirasModelTester()
        self.config_tester = ConfigTester(self, config_class=MirasConfig, hidden_size=32, num_attention_heads=2)

    def test_config(self):
        self.config_tester.run_common_tests()

    def _check_past_key_values_for_generate(self, batch_size, past_key_values, seq_length, config):
        """States are not keys and values by position: there is one a block."""
        self.assertEqual(len(past_key_values), config.num_hidden_layers)
