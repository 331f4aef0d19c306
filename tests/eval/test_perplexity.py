"""Losses against a plain loop over the model's own logits, in float64: windows, streams, documents, buckets, bytes."""

import copy
import itertools
import math

import peft
import pytest
import torch
from tiny_models import build
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from miras.eval import Sliding, Streaming, modes, perplexity, text_of
from miras.eval.windows import edges_of, windows

TEXT = "The rain fell in torrents, naïvely; except at occasional intervals. " * 3
DOCUMENTS = [TEXT[:70], "short", TEXT[10:160]]
START = 258


def log_probabilities(model, tokens):
    """log p of every token but the first, read in one call."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, :-1]
    return logits.log_softmax(-1)[range(len(tokens) - 1), tokens[1:]].tolist()


def by_hand(model, tokens, context, stride):
    """(position in its window, -log p) of every token, from a loop over the definition: the window that scores a token is
    the first that reaches it."""
    scored = {}
    for begin in range(0, len(tokens), stride):
        window = tokens[begin : begin + context + 1]
        if len(window) > 1:
            for offset, value in enumerate(log_probabilities(model, window)):
                scored.setdefault(begin + offset + 1, (offset, -value))
    return scored


@pytest.mark.parametrize(("context", "stride"), [(32, 16), (50, 7), (64, 64), (1000, None), (2, 1), (2, 2)])
def test_sliding_is_a_loop_over_windows(model, tokenizer, context, stride):
    tokens = [START, *TEXT.encode()]
    loop = by_hand(model, tokens, context, stride or context // 2)
    found = perplexity(model, tokenizer, TEXT, mode=Sliding(context=context, stride=stride, batch_tokens=3 * context))
    assert len(loop) == len(TEXT.encode()) == found.loss.tokens == found.loss.bytes
    assert found.loss.nats == pytest.approx(sum(value for _, value in loop.values()), rel=1e-12)
    assert found.loss.bits_per_byte == pytest.approx(found.loss.nats / math.log(2) / len(TEXT.encode()))
    assert found.loss.perplexity == pytest.approx(math.exp(found.loss.nats_per_token))


def test_word_perplexity_counts_words_as_lm_eval_does(model, tokenizer):
    """Over all documents together, whatever the tokenizer: lm-eval's own count and its own exp of the mean."""
    metrics = pytest.importorskip("lm_eval.api.metrics")
    wikitext = pytest.importorskip("lm_eval.tasks.wikitext.preprocess_wikitext")
    texts = [" = A title = \n\nOne  page of\ttext .\n", "another one"]
    found = perplexity(model, tokenizer, texts, mode=Sliding(context=64), separate=True)
    alone = [perplexity(model, tokenizer, text, mode=Sliding(context=64)).loss.nats for text in texts]
    scored = [
        wikitext.process_results({"page": text}, (-nats,))["word_perplexity"] for text, nats in zip(texts, alone, strict=True)
    ]
    assert found.words == sum(words for _, words in scored)
    assert found.word_perplexity == pytest.approx(metrics.weighted_perplexity(scored), rel=1e-9)
    assert found.to_dict()["word_perplexity"] == found.word_perplexity


def test_losses_by_position(model, tokenizer):
    loop = by_hand(model, [START, *TEXT.encode()], 40, 40)
    found = perplexity(model, tokenizer, TEXT, mode=Sliding(context=40, stride=40), buckets=16)
    assert [(bucket.begin, bucket.end) for bucket in found.buckets] == [(0, 16), (16, 32), (32, 40)]
    for bucket in found.buckets:
        inside = [value for offset, value in loop.values() if bucket.begin <= offset < bucket.end]
        assert bucket.loss.tokens == len(inside)
        assert bucket.loss.nats == pytest.approx(sum(inside), rel=1e-12)


@pytest.mark.parametrize("name", ["yaad-anchored-tiny", "gated_deltanet-tiny", "transformer-tiny", "memora-tiny-h"])
@pytest.mark.parametrize("stretch", [7, 64, 1000])
def test_streaming_is_one_long_call(name, tokenizer, stretch):
    model = build(name)
    whole = log_probabilities(model, [START, *TEXT.encode()])
    found = perplexity(model, tokenizer, TEXT, mode=Streaming(stretch=stretch), buckets=[50, 100])
    assert found.loss.nats == pytest.approx(-sum(whole), rel=1e-9)
    assert [bucket.loss.nats for bucket in found.buckets] == pytest.approx(
        [-sum(whole[:50]), -sum(whole[50:100]), -sum(whole[100:])], rel=1e-9
    )


def test_what_is_carried_does_not_grow(model, tokenizer, monkeypatch):
    sizes, inner = [], modes.hidden_of

    def spy(model, tokens, cache=None):
        hidden = inner(model, tokens, cache)
        sizes.append(cache.nbytes)
        return hidden

    monkeypatch.setattr(modes, "hidden_of", spy)
    perplexity(model, tokenizer, TEXT * 4, mode=Streaming(stretch=64))
    assert len(sizes) > 10 and len(set(sizes[:-1])) == 1


def test_streaming_in_rows_reads_parts_of_the_text(model, tokenizer):
    tokens = [START, *TEXT.encode()]
    cuts = [(len(tokens) - 1) * row // 3 for row in range(4)]
    parts = [log_probabilities(model, tokens[begin : end + 1]) for begin, end in itertools.pairwise(cuts)]
    found = perplexity(model, tokenizer, TEXT, mode=Streaming(stretch=20, rows=3))
    assert found.loss.tokens == len(tokens) - 1
    assert found.loss.nats == pytest.approx(-sum(map(sum, parts)), rel=1e-9)


@pytest.mark.parametrize("mode", [Sliding(context=1000), Streaming(stretch=33), Streaming(stretch=33, rows=2)])
def test_documents_are_joined_by_a_token_that_is_not_scored(model, tokenizer, mode):
    tokens, scored = [], []
    for document in DOCUMENTS:
        tokens += [START, *document.encode()]
        scored += [False, *(True for _ in document.encode())]
    found = perplexity(model, tokenizer, DOCUMENTS, mode=mode)
    assert found.loss.tokens == found.loss.bytes == sum(scored)
    if mode != Streaming(stretch=33, rows=2):
        values = log_probabilities(model, tokens)
        wanted = sum(value for value, counts in zip(values, scored[1:], strict=True) if counts)
        assert found.loss.nats == pytest.approx(-wanted, rel=1e-9)


@pytest.mark.parametrize("mode", [Sliding(context=1000), Streaming(stretch=33), Streaming(stretch=64, rows=2)])
def test_separate_documents_start_from_fresh_memories(model, tokenizer, mode):
    wanted = sum(sum(log_probabilities(model, [START, *document.encode()])) for document in DOCUMENTS)
    assert perplexity(model, tokenizer, DOCUMENTS, mode=mode, separate=True).loss.nats == pytest.approx(-wanted, rel=1e-9)


def test_one_separate_document_is_left_whole(model, tokenizer):
    one = [perplexity(model, tokenizer, ["a document alone"], mode=Streaming(rows=rows), separate=True).loss for rows in (1, 4)]
    assert one[0] == one[1] != perplexity(model, tokenizer, ["a document alone"], mode=Streaming(rows=4)).loss


def test_a_model_with_an_adapter_is_measured_with_it(model, tokenizer):
    """And each of its parts is put back in the mode that it was in."""
    inner = copy.deepcopy(model)
    wrapped = peft.get_peft_model(inner, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    for name, weight in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    wrapped.train()
    inner.model.norm.eval()
    found = perplexity(wrapped, tokenizer, "some text").loss.nats
    assert inner.training and not inner.model.norm.training
    assert found == pytest.approx(perplexity(wrapped.merge_and_unload(), tokenizer, "some text").loss.nats)
    assert abs(found - perplexity(model, tokenizer, "some text").loss.nats) > 1e-6


def test_every_token_has_its_context():
    for targets, context, stride in itertools.product((1, 5, 16, 17), (2, 5, 16), (1, 2, 5, 16)):
        if stride <= context:
            seen = []
            for window in windows(targets, context, stride):
                assert 0 < window.end - window.begin <= context
                for offset in range(window.skip, window.end - window.begin):
                    seen.append(window.begin + offset + 1)
                    assert offset + 1 > min(context - stride, window.begin + offset)
            assert seen == list(range(1, targets + 1))


def words():
    """A tokenizer of words that drops the spaces between them."""
    vocabulary = {"<unk>": 0, "<end>": 1, "dark": 2, "né": 3, "日本": 4, ",": 5}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", unk_token="<unk>")


def test_bytes_belong_to_tokens():
    text = text_of("dark né, 日本  ", words())
    (document,) = text.documents
    assert document.tokens.tolist() == [2, 3, 5, 4] and document.widths.tolist() == [4, 4, 1, 9]
    assert text.bytes == len("dark né, 日本  ".encode())


def test_bytes_of_a_character_are_shared_by_its_tokens(tokenizer):
    text = text_of("aé日🎉b", tokenizer)
    assert text.documents[0].widths.tolist() == [1] * len("aé日🎉b".encode())


def test_a_long_text_is_tokenised_in_pieces(monkeypatch, tokenizer):
    from miras.eval import text as room

    whole = text_of(TEXT + "\n" + TEXT, tokenizer)
    monkeypatch.setattr(room, "PIECE", 20)
    pieces = text_of(TEXT + "\n" + TEXT, tokenizer)
    assert torch.equal(whole.documents[0].tokens, pieces.documents[0].tokens) and whole.bytes == pieces.bytes


def test_autocast_is_near_and_changes_no_weight(tokenizer):
    model = build("yaad-anchored-tiny").float().train()
    exact = perplexity(model, tokenizer, TEXT)
    rounded = perplexity(model, tokenizer, TEXT, autocast=torch.bfloat16)
    assert rounded.loss.nats != exact.loss.nats and rounded.loss.nats == pytest.approx(exact.loss.nats, rel=0.01)
    assert model.training and model.dtype == torch.float32


def test_progress_ends_at_the_end(model, tokenizer):
    for mode in (Sliding(context=32, batch_tokens=64), Streaming(stretch=32, rows=2)):
        seen = []
        perplexity(model, tokenizer, DOCUMENTS, mode=mode, progress=lambda done, total, seen=seen: seen.append((done, total)))
        assert [done for done, _ in seen] == sorted(done for done, _ in seen) and len(seen) > 1
        assert seen[-1][0] == seen[-1][1]


def test_edges():
    assert edges_of(None, 64, None) == (0, 8, 16, 24, 32, 40, 48, 56, 64)
    assert edges_of(None, 1000, 128) == (0, 128, 256, 512, 1000)
    assert edges_of(100, 250, 128) == (0, 100, 200, 250)
    assert edges_of([0, 10, 300], 250, None) == (0, 10, 250)
    assert edges_of(None, 3, None) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sliding(context=1), "context must be 2 tokens or more, got 1"),
        (lambda: Sliding(context=8, stride=9), "stride must be 1 to 8"),
        (lambda: Sliding(context=8, stride=0), "stride must be 1 to 8"),
        (lambda: Sliding(batch_tokens=0), "batch_tokens must be 1 or more"),
        (lambda: Streaming(stretch=0), "stretch must be 1 token or more"),
        (lambda: Streaming(rows=0), "rows must be 1 or more"),
        (lambda: edges_of([5, 5], 10, None), "must rise"),
        (lambda: edges_of(0, 10, None), "1 position or more"),
        (lambda: text_of("", words()), "has no text"),
    ],
)
def test_what_has_no_meaning_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_tokens_of_another_tokenizer_are_refused(tokenizer):
    with pytest.raises(ValueError, match="token 258 is not one of the model's 100"):
        perplexity(build("yaad-tiny", vocab_size=100, pad_token_id=0), tokenizer, "abc")
