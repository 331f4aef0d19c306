"""Named configurations: what their names mean, how many parameters they have, what they refuse."""

import itertools

import pytest
import torch

import miras
from miras import Spec, presets
from miras.hf import SIZES, MirasConfig, MirasForCausalLM

NAMED = {"120m": 120e6, "340m": 340e6, "760m": 760e6, "1.3b": 1.3e9}
PINNED = {"yaad-tiny": 166592, "yaad-small": 4280576, "yaad-120m": 120303936, "yaad-340m-h": 338949888}
ANCHORED = ["titans_lmm", "moneta", "yaad", "memora"]


def count(config):
    with torch.device("meta"):
        return MirasForCausalLM(config).num_parameters()


@pytest.mark.parametrize("size", NAMED)
def test_sizes_have_the_parameters_their_names_say(size):
    names = [f"{name}-{size}{hybrid}" for name, hybrid in itertools.product(("yaad", "gated_deltanet"), ("", "-h"))]
    for name in [*names, f"memora-anchored-{size}", f"transformer-{size}"]:
        assert abs(count(MirasConfig.preset(name)) / NAMED[size] - 1) < 0.05, name


def test_every_preset_meets_its_name():
    for name in presets.PRESETS:
        assert abs(count(MirasConfig.preset(f"{name}-120m")) / 120e6 - 1) < 0.05, name


def test_a_size_for_comparisons_leaves_the_embeddings_out():
    """Every preset, anchored and hybrid ones too, has as many parameters beside its embedding, whatever the vocabulary."""
    names = [*presets.PRESETS, *(f"{name}-anchored" for name in ANCHORED)]
    for size, wanted in (("600k", 6e5), ("4m", 4.2e6), ("30m", 30e6)):
        sized = [f"{name}-{size}" for name in names] + [f"{name}-{size}-h" for name in ("moneta", "yaad", "memora")]
        for name, vocab in itertools.product(sized, (259, 50304)):
            config = MirasConfig.preset(name, vocab_size=vocab)
            assert abs((count(config) - vocab * config.hidden_size) / wanted - 1) < 0.015, name


def test_counts_are_pinned():
    """A change here changes what the names mean."""
    found = {name: count(MirasConfig.preset(name)) for name in PINNED}
    assert found == PINNED


def test_sizes_are_those_of_the_paper():
    shapes = {name: (size.depth, size.dim, size.heads) for name, size in SIZES.items() if size.parameters and size.embedded}
    assert shapes == {"120m": (12, 768, 16), "340m": (24, 1024, 16), "760m": (24, 1536, 16), "1.3b": (24, 2048, 16)}


def test_names_say_what_is_anchored_and_what_is_a_hybrid():
    assert MirasConfig.preset("yaad-340m").memory == presets.yaad()
    assert MirasConfig.preset("yaad-anchored-340m").memory == presets.yaad(anchor=True)
    for name in ANCHORED:
        assert MirasConfig.preset(f"{name}-anchored-tiny").memory.retention.anchor
    hybrid = MirasConfig.preset("gla-tiny-h")
    mixers = [type(hybrid.mixer(number)).__name__ for number in range(4)]
    assert mixers == ["MirasLayer", "SlidingWindowAttention"] * 2
    assert MirasConfig.preset("yaad-tiny", chunk_size=7, vocab_size=11).chunk_size == 7
    assert miras.MirasConfig is MirasConfig


def test_tokens_of_the_byte_tokenizer_are_those_of_its_vocabulary_alone():
    own = MirasConfig.preset("yaad-tiny")
    assert (own.pad_token_id, own.bos_token_id, own.eos_token_id) == (256, 257, 258)
    for vocab in (256, 50304):
        assert MirasConfig.preset("yaad-tiny", vocab_size=vocab).pad_token_id is None


def test_the_recipe_follows_the_configuration():
    plain = MirasConfig.preset("yaad-tiny").recipe
    assert plain == miras.nn.RECIPES["yaad"]
    changed = MirasConfig.preset(
        "yaad-tiny",
        rope=True,
        conv_kernel=0,
        value_norm=True,
        gate_rank=7,
        gate_pace=0.1,
        step_start=0.5,
        step_limit=2.0,
        decay_start=0.01,
        decay_limit=0.1,
    ).recipe
    assert [MirasConfig.preset("yaad-tiny", silu=given).recipe.silu for given in (True, False)] == [True, False]
    assert [MirasConfig.preset("yaad-tiny", step_sum=given).recipe.step_sum for given in (None, 2.0, 0)] == [1.0, 2.0, None]
    assert changed.rope == 1e4 and changed.convolution is None and changed.value_norm
    assert {(gate.rank, gate.pace) for gate in changed.gates} == {(7, 0.1)}
    assert changed.gate("eta").start == 0.5 and changed.gate("eta").limit == 2.0 and changed.gate("log_alpha").start == 0.01
    assert changed.gate("log_alpha").link == "bounded_decay" and changed.gate("log_alpha").limit == 0.1
    assert MirasConfig.preset("transformer-tiny", rope=False).recipe.rope is None
    assert MirasConfig.preset("gated_deltanet-tiny").recipe.output_gate == "silu"
    for given, want in (("sigmoid", "sigmoid"), ("none", None)):
        assert MirasConfig.preset("gated_deltanet-tiny", output_gate=given).recipe.output_gate == want


def test_a_spec_in_every_form_and_through_json(tmp_path):
    spec = presets.yaad(anchor=True)
    for given in (spec, spec.to_dict()):
        config = MirasConfig(spec=given, hidden_size=32, num_attention_heads=2)
        config.save_pretrained(tmp_path)
        again = MirasConfig.from_pretrained(tmp_path)
        assert again.memory == spec and isinstance(again.memory, Spec) and again.to_dict() == config.to_dict()


CASES = {
    "no size": (lambda: MirasConfig.preset("yaad"), "unknown configuration 'yaad': a name is PRESET-SIZE"),
    "no name": (lambda: MirasConfig.preset(None), "a configuration is named by a text such as yaad-340m, got None"),
    "unknown size": (lambda: MirasConfig.preset("yaad-2b"), "sizes are tiny, small, 600k, 4m, 30m, 120m, 340m, 760m, 1.3b"),
    "unknown preset": (lambda: MirasConfig.preset("llama-tiny"), "presets are retnet"),
    "no anchor": (
        lambda: MirasConfig.preset("gla-anchored-tiny"),
        "gla has no anchored form: those that have are titans_lmm, moneta, yaad, memora",
    ),
    "a slip in a field": (
        lambda: MirasConfig.preset("yaad-tiny", hiden_size=32),
        "MirasConfig has no field 'hiden_size', did you mean hidden_size?",
    ),
    "heads": (lambda: MirasConfig(hidden_size=10, num_attention_heads=3), "hidden_size=10 is not a multiple of"),
    "no blocks": (lambda: MirasConfig(num_hidden_layers=0), "num_hidden_layers must be an integer of 1 or more, got 0"),
    "unknown spec": (lambda: MirasConfig(spec="yaadd"), "unknown preset 'yaadd'"),
    "padding": (
        lambda: MirasConfig(vocab_size=8, pad_token_id=8),
        "pad_token_id must lie below vocab_size=8 or be None",
    ),
    "window": (lambda: MirasConfig(sliding_window=0), "sliding_window must be an integer of 1 or more, or None, got 0"),
    "window in words": (lambda: MirasConfig(sliding_window="32"), "sliding_window must be an integer of 1 or more, or None"),
    "loss chunk": (lambda: MirasConfig(loss_chunk=-1), "loss_chunk must be an integer of 0 or more, got -1"),
    "no loss chunk": (lambda: MirasConfig(loss_chunk=None), "loss_chunk must be an integer of 0 or more, got None"),
    "taps": (lambda: MirasConfig(conv_kernel=2.5), "conv_kernel must be an integer of 0 or more, or None, got 2.5"),
    "rotary base": (lambda: MirasConfig(rope_base=0), "rope_base must be > 0, got 0"),
    "norm": (lambda: MirasConfig(rms_norm_eps=-1), "rms_norm_eps must be > 0, got -1"),
    "spread": (lambda: MirasConfig(initializer_range=-1), "initializer_range must be >= 0, got -1"),
    "a word for a switch": (lambda: MirasConfig(value_norm="no"), "value_norm must be True or False, got 'no'"),
    "a vocabulary that is true": (lambda: MirasConfig(vocab_size=True), "vocab_size must be an integer of 1 or more, got True"),
    "negative padding": (lambda: MirasConfig(pad_token_id=-100), "pad_token_id must lie below vocab_size=32000 or be None"),
    "a base where nothing turns": (
        lambda: MirasConfig(rope_base=1e6),
        "rope_base=1000000.0 is of rotary positions, and there are none: rope=True",
    ),
    "a word for positions": (lambda: MirasConfig(rope="no"), "MirasConfig's rope must be True or False or None, got 'no'"),
    "a word for silu": (lambda: MirasConfig(silu="false"), "MirasConfig's silu must be True or False or None"),
    "a word for a number": (
        lambda: MirasConfig(rms_norm_eps="1e-6"),
        "MirasConfig's rms_norm_eps must be a number, got '1e-6'",
    ),
    "tied by a word": (lambda: MirasConfig(tie_word_embeddings="no"), "tie_word_embeddings must be True or False, got 'no'"),
    "a true window": (lambda: MirasConfig(sliding_window=True), "sliding_window must be an integer of 1 or more, or None"),
    "an end outside": (lambda: MirasConfig(eos_token_id=[2, 40000]), "eos_token_id must lie below vocab_size=32000 or be None"),
    "a start outside": (lambda: MirasConfig(bos_token_id=32000), "bos_token_id must lie below vocab_size=32000 or be None"),
    "Llama's base": (lambda: MirasConfig(rope_theta=1e6), "MirasConfig has no rope_theta: did you mean rope_base?"),
    "fla's taps": (lambda: MirasConfig(conv_size=4), "MirasConfig has no conv_size: did you mean conv_kernel?"),
    "another's word": (lambda: MirasConfig(num_layers=24), "MirasConfig has no num_layers: did you mean num_hidden_layers?"),
}


@pytest.mark.parametrize("name", CASES)
def test_refuses(name):
    make, message = CASES[name]
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("slip", "meant"), [("num_hidden_layer", "num_hidden_layers"), ("hiden_size", "hidden_size")])
def test_a_slip_is_not_kept_in_silence(slip, meant):
    with pytest.raises(ValueError, match=f"has no {slip}: did you mean {meant}"):
        MirasConfig(**{slip: 4})
    # what other tools write into a configuration is kept, as everywhere in Hugging Face
    assert MirasConfig(num_key_value_heads=4).num_key_value_heads == 4


def test_a_rotary_base_is_that_of_all_that_turns():
    assert MirasConfig.preset("transformer-tiny", rope_base=1e6).recipe.rope == 1e6
    assert MirasConfig.preset("retnet-tiny").recipe.rope == 1e4
    hybrid = MirasConfig.preset("transformer-tiny-h", rope_base=5e5)
    assert hybrid.recipe.rope == hybrid.mixer(1).rope == 5e5
    assert MirasConfig.preset("yaad-tiny-h", rope_base=5e5).recipe.rope is None
