"""The language model: decoding equals the full pass, padding and packing change nothing, losses and gradients are right."""

import copy
import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from transformers import AutoModelForCausalLM

from miras import presets
from miras.hf import MirasCache, MirasConfig, MirasForCausalLM, MirasModel
from miras.hf.loss import chunked_cross_entropy

CHUNK = 4
# every kind of memory and state: deep, on a simplex, with a link, momentum, delta rule, cache, hybrid, shifted tokens
KINDS = ["yaad", "moneta", "memora", "titans_lmm", "gated_deltanet", "transformer", "yaad-h", "rwkv7"]
each_kind = pytest.mark.parametrize("name", KINDS)


def build(name, dtype=torch.float64, **changes):
    """A preset's model; with "-h" behind its name a hybrid, with "-shared" one whose keys alike share their steps."""
    torch.manual_seed(0)
    name, _, kind = name.partition("-")
    config = MirasConfig(
        **{
            "spec": name,
            "vocab_size": 40,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "sliding_window": 5 if kind == "h" else None,
            **({"step_sum": 2.0, "step_start": 1.9, "step_limit": 2.0} if kind == "shared" else {}),
            "chunk_size": CHUNK,
            "initializer_range": 0.3,
            "pad_token_id": 0,
            **changes,
        }
    )
    return MirasForCausalLM(config).to(dtype).eval()


def tiny(name):
    torch.manual_seed(0)
    return MirasForCausalLM(MirasConfig.preset(f"{name}-tiny")).eval()


def tokens(*shape, seed=0):
    return torch.randint(3, 40, shape, generator=torch.Generator().manual_seed(seed))


def offloaded(model, folder, block):
    """A saved model with one of its two blocks on the disk."""
    model.save_pretrained(folder)
    places = dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"), "cpu")
    places[f"model.layers.{block}"] = "disk"
    return AutoModelForCausalLM.from_pretrained(folder, device_map=places, offload_folder=str(folder / "away")).eval()


def close(got, want, tolerance=1e-9):
    assert got.shape == want.shape and (got - want).abs().max() <= tolerance * want.abs().max()


@torch.no_grad()
@each_kind
def test_prefill_and_decoding_equal_the_full_pass_for_every_split(name):
    model, ids = build(name), tokens(2, 2 * CHUNK + 3)
    whole = model(ids).logits
    for cut in range(1, 2 * CHUNK + 2):
        out = model(ids[:, :cut], use_cache=True)
        close(out.logits, whole[:, :cut])
        for t in range(cut, ids.shape[1]):
            out = model(ids[:, t : t + 1], past_key_values=out.past_key_values)
            close(out.logits, whole[:, t : t + 1])
    assert out.past_key_values.get_seq_length() == ids.shape[1]


@pytest.mark.parametrize("loss_chunk", [0, 5, 2048])
@each_kind
def test_gradients_by_torch_func_are_those_of_autograd(name, loss_chunk):
    """Of a whole model, whose loss computes its logits again."""
    model, ids = build(name, loss_chunk=loss_chunk), tokens(2, 2 * CHUNK + 3)
    own = dict(model.named_parameters())
    loss = lambda p: torch.func.functional_call(model, p, (ids,), {"labels": ids}).loss  # noqa: E731
    found = torch.func.grad(loss)(own)
    model(ids, labels=ids).loss.backward()
    for key, parameter in own.items():
        close(found[key], parameter.grad)


@pytest.mark.parametrize("name", [*presets.PRESETS, "yaad-h", "yaad-shared"])
def test_a_model_on_no_device_gives_the_shapes_of_one_on_the_cpu(name):
    """Read, trained and gone on with, also where tensors are made on no device by default."""
    model, ids = build(name, torch.float32), tokens(2, CHUNK + 3)
    bare, nowhere = copy.deepcopy(model).to("meta"), ids.to("meta")

    def shapes(model, ids):
        out = model(ids, labels=ids, use_cache=True)
        out.loss.backward()
        more = model(ids[:, :1], past_key_values=out.past_key_values)
        leaves = pytree.tree_leaves((out.logits, out.loss, more.logits, more.past_key_values.states))
        return [(x.shape, x.dtype) for x in leaves if isinstance(x, torch.Tensor)]

    want = shapes(model, ids)
    assert shapes(bare, nowhere) == want
    with torch.device("meta"):
        assert shapes(bare, nowhere) == want


@torch.no_grad()
@pytest.mark.parametrize("name", ["yaad", "moneta", "memora", "gated_deltanet"])
def test_decoding_is_close_in_float32_too(name):
    model, ids = tiny(name), tokens(1, 70)
    whole = model(ids).logits
    out = model(ids[:, :60], use_cache=True)
    for t in range(60, 70):
        out = model(ids[:, t : t + 1], past_key_values=out.past_key_values)
        close(out.logits, whole[:, t : t + 1], 1e-4)


@torch.no_grad()
@each_kind
def test_padding_on_either_side_changes_nothing(name):
    model, ids = build(name), tokens(3, 11)
    mask = torch.ones_like(ids)
    mask[0, :4], mask[1, 8:], mask[2, 5] = 0, 0, 0
    out = model(ids, attention_mask=mask, use_cache=True)
    longer = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], 1)
    step = model(tokens(3, 1, seed=2), attention_mask=longer, past_key_values=out.past_key_values).logits
    for row in range(3):
        own = torch.cat([ids[row, mask[row] == 1], tokens(3, 1, seed=2)[row]])[None]
        want = model(own).logits
        close(out.logits[row, mask[row] == 1], want[0, :-1])
        close(step[row], want[0, -1:])


@torch.no_grad()
@each_kind
def test_padding_may_come_with_a_later_call(name):
    """A row that has nothing new while others go on, and one that starts late."""
    model, ids = build(name), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :3], mask[1, 3:7] = 0, 0
    whole = model(ids, attention_mask=mask).logits
    first = model(ids[:, :3], attention_mask=mask[:, :3], use_cache=True)
    second = model(ids[:, 3:6], attention_mask=mask[:, :6], past_key_values=first.past_key_values)
    third = model(ids[:, 6:], attention_mask=mask, past_key_values=second.past_key_values)
    there = mask.bool()
    close(torch.cat([first.logits, second.logits, third.logits], 1)[there], whole[there])


@each_kind
def test_packed_documents_are_read_one_by_one(name):
    model, ids = build(name), tokens(1, 12)
    bounds = [0, 3, 8, 12]
    positions = torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(bounds)])[None]
    alone = torch.cat([model(ids[:, a:b]).logits for a, b in itertools.pairwise(bounds)], 1)
    by_bounds = model(ids, cu_seqlens=torch.tensor(bounds))
    by_positions = model(ids, position_ids=positions, use_cache=True)
    close(by_bounds.logits, alone)
    close(by_positions.logits, alone)
    # what is carried on is the last document
    more = model(ids[:, :2], past_key_values=by_positions.past_key_values).logits
    close(more, model(torch.cat([ids[:, 8:], ids[:, :2]], 1)).logits[:, 4:])
    # nothing leaks: an embedding of another document has no gradient
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    out = model(inputs_embeds=embeds, position_ids=positions)
    (leak,) = torch.autograd.grad(out.logits[:, 3:8].square().sum(), embeds)
    assert (leak[:, :3] == 0).all() and (leak[:, 8:] == 0).all() and (leak[:, 3:8] != 0).any()


def test_packed_rows_and_padding_together():
    model, ids = build("yaad"), tokens(2, 8)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0]])
    positions = torch.tensor([[1, 1, 0, 1, 0, 1, 2, 3], [0, 1, 2, 0, 1, 2, 0, 0]])
    y = model(ids, attention_mask=mask, position_ids=positions).logits
    for row, a, b in ((0, 2, 4), (0, 4, 8), (1, 0, 3), (1, 3, 6)):
        close(y[row, a:b], model(ids[row : row + 1, a:b]).logits[0])


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_is_a_language_model(name):
    model, ids = build(name, torch.float32, initializer_range=0.1), tokens(2, 9)
    model.train()
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert loss.isfinite() and loss < 6
    for parameter_name, parameter in model.named_parameters():
        # a threshold that no error reaches has no gradient
        assert "delta" in parameter_name or parameter.grad.abs().max() > 0, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    with torch.no_grad():
        model.eval()
        ids = ids[:, :5]
        read = model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None)
        for _ in range(3):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(read, ids)


def test_the_loss_is_torchs_and_its_logits_are_not_kept():
    model, ids = build("gated_deltanet", loss_chunk=5), tokens(2, 9)
    labels = ids.clone()
    labels[0, :4] = -100
    out = model(ids, labels=labels)
    want = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    close(out.loss, want)
    model.train()
    training = model(ids, labels=labels)
    assert training.logits is None
    close(training.loss, want)
    parameters = list(model.parameters())
    got = torch.autograd.grad(training.loss, parameters)
    logits = model(ids).logits
    plain = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    for a, b in zip(got, torch.autograd.grad(plain, parameters), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    counted = model(ids, labels=labels, num_items_in_batch=torch.tensor(7))
    close(counted.loss * 7, want * 13)
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    close(model(ids, labels=ids, shift_labels=shifted).loss, want)
    close(model(ids, shift_labels=shifted).loss, want)
    model.config.loss_chunk = 0
    assert model(ids, labels=labels).logits.shape == (2, 9, 40)


def test_padding_on_the_left_is_told_once_where_labels_are_counted():
    """By whoever counts: first tokens among them, which no loss stands for."""
    left, right = torch.ones(2, 2, 5, dtype=torch.long)
    left[0, :2], right[0, 3:] = 0, 0
    ids = tokens(2, 5)

    def told(*masks, **given):
        model = build("yaad")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for mask in masks:
                model(ids, labels=ids, attention_mask=mask, **given)
        return [str(one.message) for one in caught]

    said = told(torch.ones_like(ids), left, left, num_items_in_batch=7)
    assert len(said) == 1 and 'tokenizer.padding_side = "right"' in said[0]
    assert told(left) == [] and told(right, right, num_items_in_batch=7) == []


def test_the_chunked_loss_keeps_few_logits():
    """The most logits that any tensor of the graph holds."""
    head, hidden, labels = torch.nn.Linear(8, 1000), torch.randn(64, 8, requires_grad=True), torch.randint(1000, (64,))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        chunked_cross_entropy(head, hidden, labels, 8).backward()
    assert max(saved) <= 8 * 1000


def test_the_loss_of_packed_documents_is_that_of_each():
    model, ids = build("yaad"), tokens(1, 9)
    packed = model(ids, labels=ids, cu_seqlens=torch.tensor([0, 4, 9])).loss
    one, two = model(ids[:, :4], labels=ids[:, :4]).loss, model(ids[:, 4:], labels=ids[:, 4:]).loss
    close(packed * 7, one * 3 + two * 4)
    nothing = model(ids, labels=torch.full_like(ids, -100)).loss
    assert nothing == 0


@pytest.mark.parametrize("marked", [True, False])
def test_the_loss_of_a_padded_batch_is_that_of_its_rows(marked):
    """A row's first token has nothing to be predicted from: padding before it is not there. Nor is padding to be learned."""
    model, ids = build("yaad"), tokens(3, 9)
    mask = torch.ones_like(ids)
    mask[0, :4], mask[1, 6:], mask[2, 3:5] = 0, 0, 0
    labels = ids.masked_fill(mask == 0, -100) if marked else ids
    rows = [ids[row, mask[row] == 1][None] for row in range(3)]
    want = sum(model(row, labels=row).loss * (row.shape[1] - 1) for row in rows)
    close(model(ids, attention_mask=mask, labels=labels).loss * (4 + 5 + 6), want)


def test_no_tokens_have_no_loss():
    nothing = torch.zeros(2, 0, dtype=torch.long)
    assert build("yaad")(nothing, labels=nothing).loss == 0


def test_the_cache_has_a_constant_size():
    for name in ("yaad", "titans_lmm", "gated_deltanet", "yaad-h"):
        model = build(name, torch.float32)
        with torch.no_grad():
            out = model(tokens(1, 9), use_cache=True)
            size = out.past_key_values.nbytes
            out = model(tokens(1, 50), past_key_values=out.past_key_values)
        assert out.past_key_values.nbytes == size > 0
        assert out.past_key_values.get_seq_length() == 59


def test_recomputed_blocks_give_the_same_gradients():
    model, ids = build("yaad-h"), tokens(2, 9)
    model.train()
    parameters = list(model.parameters())
    want = torch.autograd.grad(model(ids, labels=ids).loss, parameters)
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        for parameter, gradient in zip(parameters, want, strict=True):
            assert torch.allclose(parameter.grad, gradient, atol=1e-12)


def test_hidden_states_and_tuples():
    model, ids = build("yaad"), tokens(2, 6)
    out = model.model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 3 and torch.equal(out.hidden_states[-1], out.last_hidden_state)
    assert torch.equal(out.hidden_states[0], model.get_input_embeddings()(ids))
    padded = model.model(ids, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6]), output_hidden_states=True)
    close(padded.hidden_states[1][1], out.hidden_states[1][1])
    assert torch.equal(model(ids, return_dict=False, use_cache=False)[0], model(ids).logits)
    kept = model(ids, logits_to_keep=2).logits
    close(kept, model(ids).logits[:, -2:])
    close(model(ids, logits_to_keep=torch.tensor([1, 3])).logits, model(ids).logits[:, [1, 3]])


@torch.no_grad()
@pytest.mark.parametrize("name", ["yaad", "moneta", "memora", "gated_deltanet"])
def test_autocast_and_low_precision(name):
    model, ids = tiny(name), tokens(1, 70)
    want = model(ids).logits
    with torch.autocast("cpu", torch.bfloat16):
        auto = model(ids, use_cache=True)
    low = model.to(torch.bfloat16)(ids, use_cache=True)
    for out in (auto, low):
        assert (out.logits.float() - want).norm() < 0.05 * want.norm()
    assert pytree.tree_leaves(low.past_key_values.states[0].memory)[0].dtype == torch.float32


CASES = {
    "tokens of no row": (lambda m: m(tokens(1, 3)[0]), r"input_ids must be \[B,T\], got \[3\]"),
    "embeddings of no row": (lambda m: m(inputs_embeds=torch.zeros(3, 16)), r"inputs_embeds must be \[B,T,C\], got \[3, 16\]"),
    "nothing": (lambda m: m(), "give exactly one of input_ids and inputs_embeds"),
    "both": (lambda m: m(tokens(1, 3), inputs_embeds=torch.zeros(1, 3, 16)), "give exactly one of input_ids"),
    "mask of four axes": (
        lambda m: m(tokens(1, 3), attention_mask=torch.ones(1, 1, 3, 3)),
        r"attention_mask must be \[1,3\] .* got \[1, 1, 3, 3\]",
    ),
    "short mask": (lambda m: m(tokens(1, 3), attention_mask=torch.ones(1, 2)), r"attention_mask must be \[1,3\]"),
    "mask to be added": (
        lambda m: m(tokens(1, 3), attention_mask=torch.tensor([[-torch.inf, 0.0, 0.0]])),
        "attention_mask must be 1 where there is a token and 0 elsewhere, got -inf: one to be added to scores is not taken",
    ),
    "mask to be added, of nothing": (
        lambda m: m(tokens(1, 3), attention_mask=torch.zeros(1, 3)),
        r"attention_mask must be 1 where .* got torch\.float32 of zeros alone: one to be added to scores is not taken",
    ),
    "numbers of documents": (
        lambda m: m(tokens(1, 4), attention_mask=torch.tensor([[1, 1, 2, 2]])),
        "got 2: documents that are packed are told by position_ids that begin again, or by cu_seqlens in a batch of 1",
    ),
    "positions": (lambda m: m(tokens(1, 3), position_ids=torch.ones(1, 2)), r"position_ids must be \[1,3\], got \[1, 2\]"),
    "bounds": (lambda m: m(tokens(2, 3), cu_seqlens=torch.tensor([0, 3])), "in a batch of 1, got a batch of 2"),
    "bounds and padding": (
        lambda m: m(tokens(1, 3), cu_seqlens=torch.tensor([0, 3]), attention_mask=torch.tensor([[0, 1, 1]])),
        "cu_seqlens and an attention_mask with padding were both given",
    ),
    "labels": (lambda m: m(tokens(1, 3), labels=tokens(1, 4)), r"labels must be \[1, 3\], got \[1, 4\]"),
    "another cache": (lambda m: m(tokens(1, 3), past_key_values=[1]), "past_key_values must be a MirasCache, got list"),
    "cache of other depth": (
        lambda m: m(tokens(1, 3), past_key_values=MirasCache(3)),
        "past_key_values has 3 blocks, the model has 2",
    ),
    "cache of other rows": (
        lambda m: m(tokens(1, 3), past_key_values=m(tokens(2, 3), use_cache=True).past_key_values),
        r"past_key_values holds 2 rows, the input has 1: its batch_repeat_interleave\(n\) makes n of each row",
    ),
    "cache of another memory": (
        lambda m: m(tokens(1, 3), past_key_values=build("memora")(tokens(1, 3), use_cache=True).past_key_values),
        r"past_key_values was made by another model: spec is MLP \+ L2 \+ KL.* there, MLP \+ Huber .* here$",
    ),
    "cache of other chunks": (
        lambda m: m(tokens(1, 3), past_key_values=build("yaad", chunk_size=8)(tokens(1, 3), use_cache=True).past_key_values),
        "past_key_values was made by another model: chunk_size is 8 there, 4 here$",
    ),
    "start inside": (
        lambda m: m(
            tokens(1, 3),
            position_ids=torch.tensor([[3, 0, 1]]),
            past_key_values=m(tokens(1, 3), use_cache=True).past_key_values,
        ),
        "a sequence starts inside this call, but past_key_values is not at its start",
    ),
    "cropped": (
        lambda m: m(tokens(1, 3), use_cache=True).past_key_values.crop(-1),
        "a MirasCache cannot be cropped",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refuses(name):
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message) as error:
        call(build("yaad"))
    assert "\n" not in str(error.value)


def test_an_empty_prompt_gives_nothing():
    model = build("yaad")
    assert model(torch.zeros(1, 0, dtype=torch.long)).logits.shape == (1, 0, 40)


def test_the_base_model_stands_alone():
    whole, ids = build("yaad"), tokens(1, 4)
    model = MirasModel(whole.config).to(whole.dtype)
    model.load_state_dict(whole.model.state_dict())
    assert torch.equal(whole.lm_head(model(ids).last_hidden_state), whole(ids).logits)


@pytest.mark.parametrize("name", ["yaad", "titans_lmm", "gated_deltanet", "mesa", "rwkv7"])
def test_transformers_leaves_the_parts_that_know_how_they_start_alone(name):
    """Its own way to start linear layers would give gates half their range, which is chaos for a deep memory."""
    model = tiny(name)
    mixer = model.model.layers[0].mixer
    for gate_name, gate in mixer.gates.items():
        if gate_name in ("eta", "log_alpha", "delta", "mu") and not isinstance(gate.recipe.start, tuple):
            with torch.no_grad():
                value = gate(torch.zeros(1, 1, 64)).value / gate.unit
            assert value.abs().mean().item() == pytest.approx(gate.recipe.start, rel=1e-3)
    assert all(0.9 < weight.std() < 1.1 for weight in mixer.memory.weights)
    assert 0.05 < mixer.q_proj.weight.std() < 0.07
