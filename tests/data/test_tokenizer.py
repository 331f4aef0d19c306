import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from miras.data.tokenizer import Bytes, tokenizer_of

TEXT = "héllo\n\tworld 漢字  \x00\x7f def f(x):\r\n"


@pytest.fixture
def backend():
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT * 3, "the cat sat on the mat " * 5], trainer)
    return backend


def test_bytes_for_transformers_gives_the_same_numbers(tmp_path):
    own, other = Bytes(), Bytes().hugging_face()
    assert other(TEXT)["input_ids"] == own.encode([TEXT])[0].tolist() == list(TEXT.encode())
    assert other.decode(other(TEXT)["input_ids"]) == own.decode(list(TEXT.encode())) == TEXT
    assert other.eos_token_id == own.end and len(other) == own.vocab_size
    other.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(TEXT)["input_ids"] == list(TEXT.encode())


def test_a_tokenizer_json_alone_in_a_folder_or_by_name(tmp_path, backend):
    backend.save(str(tmp_path / "tokenizer.json"))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        mine = tokenizer_of(str(name))
        assert mine.encode([TEXT, "the cat"])[0].tolist() == backend.encode(TEXT).ids
        assert mine.end == backend.token_to_id("<|endoftext|>") and mine.vocab_size == backend.get_vocab_size()
        # the file above names no decoder, so only plain letters come back as they were
        assert mine.fingerprint == tokenizer_of(str(tmp_path)).fingerprint


def test_a_folder_of_transformers(tmp_path):
    Bytes().hugging_face().save_pretrained(tmp_path)
    mine = tokenizer_of(str(tmp_path))
    assert mine.encode([TEXT])[0].tolist() == list(TEXT.encode()) and mine.decode([104, 258]) == "h"


def test_gpt2s_two_files(tmp_path, backend):
    table = json.loads(backend.to_str())["model"]
    (tmp_path / "encoder.json").write_text(json.dumps(table["vocab"]))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in table["merges"]) + "\n")
    mine = tokenizer_of(str(tmp_path))
    ids = mine.encode([TEXT])[0].tolist()
    assert ids == backend.encode(TEXT).ids and mine.decode([*ids, mine.end]) == TEXT
    (tmp_path / "vocab.bpe").write_text("a b c\n")
    with pytest.raises(ValueError, match="each line has two parts"):
        tokenizer_of(str(tmp_path))


def test_the_end_of_a_document(tmp_path, backend):
    other = Backend(models.WordLevel({"cat": 0, "stop": 1}, unk_token="cat"))
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"names no end-of-text token: give one of its tokens as --data\.end"):
        tokenizer_of(str(tmp_path))
    assert tokenizer_of(str(tmp_path), "stop").end == 1
    with pytest.raises(ValueError, match="has no token 'halt'"):
        tokenizer_of(str(tmp_path), "halt")
    with pytest.raises(ValueError, match="bytes closes a document by its id 258"):
        tokenizer_of("bytes", "stop")


def test_no_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer: looked for"):
        tokenizer_of(str(tmp_path))
    with pytest.raises(ValueError, match="no such tokenizer"):
        tokenizer_of(str(tmp_path / "a" / "b"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a tokenizer\.json"):
        tokenizer_of(str(tmp_path))
