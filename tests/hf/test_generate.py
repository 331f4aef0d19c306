"""Generation by transformers' own loop: greedy, sampled, by beams, padded, continued, streamed."""

import copy

import pytest
import torch
from test_model import build, close, tokens
from torch.utils import _pytree as pytree
from transformers import StoppingCriteria, StoppingCriteriaList

from miras.hf import MirasCache, byte_tokenizer
from miras.hf.cache import tensors

QUIET = {"eos_token_id": None, "pad_token_id": 0}
each_kind = pytest.mark.parametrize(
    "name", ["yaad", "moneta", "memora", "gated_deltanet", "yaad-h", "yaad-shared", "transformer"]
)


def greedy(model, ids, steps):
    """Greedy decoding without a cache: the whole sequence again for each token."""
    for _ in range(steps):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    return ids


@torch.no_grad()
@each_kind
def test_greedy_generation_with_and_without_a_cache(name):
    model, ids = build(name), tokens(2, 6)
    want = greedy(model, ids, 7)
    assert torch.equal(model.generate(ids, max_new_tokens=7, do_sample=False, **QUIET), want)
    assert torch.equal(model.generate(ids, max_new_tokens=7, do_sample=False, use_cache=False, **QUIET), want)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, max_new_tokens=7, do_sample=False, **QUIET), want[:, 6:])


@torch.no_grad()
@each_kind
def test_left_padded_prompts_generate_what_each_does_alone(name):
    model, ids = build(name), tokens(3, 7)
    mask = torch.ones_like(ids)
    mask[0, :3], mask[1, :1] = 0, 0
    out = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, **QUIET)
    for row in range(3):
        own = ids[row : row + 1, mask[row] == 1]
        assert torch.equal(out[row : row + 1, 7:], greedy(model, own, 6)[:, own.shape[1] :])


@torch.no_grad()
@each_kind
def test_beams_find_the_same_with_and_without_a_cache(name):
    model, ids = build(name), tokens(2, 5)
    options = {"max_new_tokens": 6, "num_beams": 3, "num_return_sequences": 2, "do_sample": False, **QUIET}
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


@torch.no_grad()
def test_sampling_depends_on_the_seed_alone():
    model, ids = build("yaad"), tokens(1, 5)

    def sample(seed, **options):
        torch.manual_seed(seed)
        return model.generate(ids, max_new_tokens=8, do_sample=True, top_k=20, num_return_sequences=3, **options, **QUIET)

    assert torch.equal(sample(1), sample(1)) and not torch.equal(sample(1), sample(2))
    assert torch.equal(sample(1), sample(1, use_cache=False))


@torch.no_grad()
@each_kind
def test_generation_goes_on_from_a_cache(name):
    model, ids = build(name), tokens(2, 5)
    want = model.generate(ids, max_new_tokens=6, do_sample=False, return_dict_in_generate=True, **QUIET)
    some = model.generate(ids, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, **QUIET)
    assert isinstance(some.past_key_values, MirasCache)
    kept = copy.deepcopy(some.past_key_values)
    more = model.generate(some.sequences, past_key_values=some.past_key_values, max_new_tokens=2, do_sample=False, **QUIET)
    assert torch.equal(more, want.sequences)
    again = model.generate(some.sequences, past_key_values=kept, max_new_tokens=2, do_sample=False, **QUIET)
    assert torch.equal(again, more)


@torch.no_grad()
@each_kind
def test_a_row_that_ends_before_others_reads_no_padding(name):
    """So its memory goes on as if it had been alone: with the end that it wrote, and nothing behind."""
    model, ids, more = build(name), tokens(2, 5), tokens(2, 3, seed=4)
    all_there = {"attention_mask": torch.ones_like(ids)}
    free = model.generate(ids, **all_there, max_new_tokens=9, do_sample=False, **QUIET)
    end = next(int(x) for x in free[0, 6:9] if x not in free[1, 5:])
    ending = {"eos_token_id": end, "pad_token_id": 39, "do_sample": False}
    some = model.generate(ids, **all_there, max_new_tokens=9, return_dict_in_generate=True, **ending)
    after = some.sequences == 39
    after[:, :5] = False
    assert after[0].sum() >= 1 and not after[1].any()
    whole = torch.cat([some.sequences, more], 1)
    mask = torch.cat([(~after).long(), torch.ones_like(more)], 1)
    want = model.generate(whole, attention_mask=mask, max_new_tokens=4, do_sample=False, **QUIET)
    cache = some.past_key_values
    assert torch.equal(
        model.generate(whole, attention_mask=mask, past_key_values=cache, max_new_tokens=4, do_sample=False, **QUIET), want
    )
    # the same where the end is the padding too, and from a prompt with an end in it, read in stretches
    both = {**ending, **all_there, "pad_token_id": end, "max_new_tokens": 9}
    assert torch.equal(model.generate(ids, **both).masked_fill(after, 39), some.sequences)
    prompt = torch.cat([ids[:, :2], torch.full((2, 1), end), ids[:, 2:]], 1)
    four = {"max_new_tokens": 4, "min_new_tokens": 4, **ending}
    alone = [model.generate(row[None], attention_mask=torch.ones(1, 6), **four) for row in prompt]
    there = torch.ones_like(prompt)
    assert torch.equal(model.generate(prompt, attention_mask=there, prefill_chunk_size=2, **four), torch.cat(alone))


class Writes(StoppingCriteria):
    """Ends the rows whose last token is ``end``."""

    def __init__(self, end):
        self.end = end

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.end


@torch.no_grad()
@pytest.mark.parametrize("by", ["criterion", "string"])
@pytest.mark.parametrize("name", ["yaad", "gated_deltanet", "yaad-h"])
def test_rows_may_end_by_anything(name, by):
    """By a string or a criterion as by an end among the tokens; without such an end nothing is padding."""
    model, ids, more = build(name, vocab_size=259), tokens(2, 5) + 60, tokens(2, 3, seed=4)
    # tokens that the byte tokenizer has a character for
    letters = [token for token in range(259) if not 32 < token < 127]
    plain = {"max_new_tokens": 9, "do_sample": False, "suppress_tokens": letters, "pad_token_id": 256}
    free = model.generate(ids, eos_token_id=None, **plain)
    end = next(int(x) for x in free[0, 6:9] if x not in free[1, 5:])
    way = {"stopping_criteria": StoppingCriteriaList([Writes(end)])}
    way = way if by == "criterion" else {"stop_strings": [chr(end)], "tokenizer": byte_tokenizer()}
    some = model.generate(ids, eos_token_id=258, **plain, **way, return_dict_in_generate=True)
    after = some.sequences == 256
    assert after[0].sum() >= 1 and not after[1].any()
    whole, mask = torch.cat([some.sequences, more], 1), torch.cat([(~after).long(), torch.ones_like(more)], 1)
    again = {"attention_mask": mask, "max_new_tokens": 1, "eos_token_id": None, "pad_token_id": 256, "do_sample": False}
    told = {"output_logits": True, "return_dict_in_generate": True}
    want = model.generate(whole, **again, **told)
    close(model.generate(whole, past_key_values=some.past_key_values, **again, **told).logits[0], want.logits[0])
    # the next turn knows nothing of how rows ended in this one
    assert some.past_key_values.over is None
    # and without an end among the tokens rows write on together
    on = model.generate(ids, eos_token_id=None, **plain, **way, return_dict_in_generate=True)
    assert torch.equal(on.sequences, free) and on.past_key_values.over is None


@torch.no_grad()
def test_beams_after_rows_that_ended_read_on():
    model, ids, more = build("yaad"), tokens(2, 5), tokens(2, 3, seed=4)
    free = model.generate(ids, max_new_tokens=9, do_sample=False, **QUIET)
    end = next(int(x) for x in free[0, 6:9] if x not in free[1, 5:])
    some = model.generate(
        ids, max_new_tokens=9, do_sample=False, eos_token_id=end, pad_token_id=39, return_dict_in_generate=True
    )
    whole = torch.cat([some.sequences, more], 1)
    mask = torch.cat([torch.ones_like(ids), (some.sequences[:, 5:] != 39).long(), torch.ones_like(more)], 1)
    beams = {"attention_mask": mask, "max_new_tokens": 5, "num_beams": 2, "do_sample": False, **QUIET}
    cache = some.past_key_values
    cache.batch_repeat_interleave(2)
    assert torch.equal(model.generate(whole, past_key_values=cache, **beams), model.generate(whole, **beams))


@torch.no_grad()
@each_kind
def test_a_cache_holds_no_more_than_its_states(name):
    """Not the tokens of the call that a state was cut from."""
    model, held = build(name), {}
    cache = model(tokens(1, 200), use_cache=True, logits_to_keep=1).past_key_values
    for state in cache.states:
        held |= {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors(state)}
    assert sum(held.values()) <= cache.nbytes


@torch.no_grad()
def test_a_long_prompt_may_be_read_in_stretches():
    model, ids = build("yaad"), tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, **QUIET}
    assert torch.equal(model.generate(ids, prefill_chunk_size=4, **options), model.generate(ids, **options))


@torch.no_grad()
def test_the_cache_can_be_reordered_selected_repeated_and_reset():
    model, ids = build("yaad-h"), tokens(3, 6)
    cache = model(ids, use_cache=True).past_key_values
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    close(model(tokens(3, 1), past_key_values=cache).logits, model(torch.cat([ids[[2, 0, 0]], tokens(3, 1)], 1)).logits[:, -1:])
    cache = model(ids, use_cache=True).past_key_values
    cache.batch_select_indices(torch.tensor([1]))
    cache.batch_repeat_interleave(2)
    step = tokens(1, 1).expand(2, 1)
    close(model(step, past_key_values=cache).logits, model(torch.cat([ids[[1, 1]], step], 1)).logits[:, -1:])
    assert cache.batch_size == 2 and cache.get_seq_length() == 7 and cache.layers[0].get_max_length() == -1
    cache.reset()
    assert cache.states is None and cache.get_seq_length() == 0 and cache.model is None
    close(model(ids, past_key_values=cache).logits, model(ids).logits)


@torch.no_grad()
def test_streams_token_by_token():
    """transformers hands each token out as it comes."""

    class Collector:
        def __init__(self):
            self.parts, self.ended = [], False

        def put(self, value):
            self.parts.append(value.flatten())

        def end(self):
            self.ended = True

    model, ids, collector = build("yaad"), tokens(1, 4), Collector()
    out = model.generate(ids, max_new_tokens=5, do_sample=False, streamer=collector, **QUIET)
    assert collector.ended and len(collector.parts) == 6 and torch.equal(torch.cat(collector.parts), out[0])


@torch.no_grad()
def test_states_can_be_cloned_and_continued():
    """A state can be cloned and continued: it is plain tensors."""
    model, ids = build("yaad"), tokens(1, 6)
    states = model(ids, use_cache=True).past_key_values.states
    cache = MirasCache(2)
    for layer, state in zip(cache.layers, pytree.tree_map_only(torch.Tensor, torch.clone, states), strict=True):
        layer.advance(state, 6)
    close(model(tokens(1, 2), past_key_values=cache).logits, model(torch.cat([ids, tokens(1, 2)], 1)).logits[:, 6:])
