"""Tokenizers: bytes, or any fast tokenizer of Hugging Face's, GPT-2's own two files included."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..types import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
# the pairs of files that GPT-2's tokenizer has been published as
GPT2_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))


class Tokenizer(ABC):
    """Text to numbers and back.

    Attributes:
        name: what the user asked for.
        vocab_size: every id is below it.
        end: the id that closes a document.
        fingerprint: the same for two tokenizers that give the same numbers.
    """

    name: str
    vocab_size: int
    end: int
    fingerprint: str

    @abstractmethod
    def encode(self, texts: list[str]) -> list[NDArray[np.int64]]:
        """The ids of each text, without any special token."""

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """The text of some ids; the end of a document is left out."""

    @abstractmethod
    def hugging_face(self) -> PreTrainedTokenizerFast:
        """The same tokenizer for ``transformers``, to be saved beside a model."""


class Bytes(Tokenizer):
    """UTF-8 bytes: ids 0 to 255 are themselves, 258 closes a document; 256 and 257 are left for padding and a beginning.

    >>> Bytes().encode(["hé"])[0].tolist(), Bytes().decode([104, 195, 169, 258])
    ([104, 195, 169], 'hé')
    """

    def __init__(self) -> None:
        self.name, self.vocab_size, self.end, self.fingerprint = "bytes", 259, 258, "bytes"

    def encode(self, texts: list[str]) -> list[NDArray[np.int64]]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts]

    def decode(self, ids: list[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def hugging_face(self) -> PreTrainedTokenizerFast:
        from ..hf.tokenizer import byte_tokenizer

        return byte_tokenizer()


class Subwords(Tokenizer):
    """A fast tokenizer of Hugging Face's."""

    def __init__(self, name: str, inner: PreTrainedTokenizerFast, end: str | None = None) -> None:
        token = end or inner.eos_token
        require(token is not None, f"the tokenizer {name} names no end-of-text token: give one of its tokens as --data.end")
        number = inner.get_vocab().get(token, -1)
        require(
            number >= 0,
            f"the tokenizer {name} has no token {token!r} to end a document with: give one of its own as --data.end",
        )
        self.name, self.inner, self.end = name, inner, number
        self.vocab_size = max(inner.get_vocab().values()) + 1
        written = inner.backend_tokenizer.to_str() + f"/{self.end}"
        self.fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]

    def encode(self, texts: list[str]) -> list[NDArray[np.int64]]:
        encodings = self.inner.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: list[int]) -> str:
        return str(self.inner.decode([token for token in ids if token != self.end]))

    def hugging_face(self) -> PreTrainedTokenizerFast:
        return self.inner


def tokenizer_of(name: str, end: str | None = None) -> Tokenizer:
    """The tokenizer of a name: ``bytes``, a folder, a ``tokenizer.json``, or a name on the Hugging Face hub.

    Args:
        name: what to load.
        end: the token that closes a document, where the tokenizer names none itself.
    """
    if name == "bytes":
        require(end is None, f"--data.end is for other tokenizers: bytes closes a document by its id 258, got {end!r}")
        return Bytes()
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return Subwords(name, from_tokenizer_json(path), end)
    if path.is_dir():
        return Subwords(name, from_folder(path), end)
    require(name.count("/") <= 1 and not path.suffix, f"no such tokenizer: {name} is not 'bytes', a folder or a tokenizer.json")
    return Subwords(name, from_transformers(name), end)


def from_folder(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder: transformers' own files, a bare ``tokenizer.json``, or GPT-2's."""
    if (folder / "tokenizer_config.json").is_file():
        return from_transformers(str(folder))
    if (folder / "tokenizer.json").is_file():
        return from_tokenizer_json(folder / "tokenizer.json")
    for vocabulary, merges in GPT2_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return from_gpt2(folder / vocabulary, folder / merges)
    raise ValueError(
        f"{folder} holds no tokenizer: looked for tokenizer_config.json, tokenizer.json, "
        + " and ".join(" with ".join(pair) for pair in GPT2_FILES)
    )


def from_transformers(name: str) -> PreTrainedTokenizerFast:
    """AutoTokenizer's, which has to be a fast one."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        inner = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"no such tokenizer: {name} is not 'bytes', a folder, or a name on the hub ({reason})") from None
    if not isinstance(inner, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer {name} is a {type(inner).__name__}: only those with a tokenizer.json are taken")
    return inner


def from_tokenizer_json(path: Path) -> PreTrainedTokenizerFast:
    """A file of the ``tokenizers`` library; ``<|endoftext|>`` or ``</s>`` closes a document where it has one of them."""
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is not a tokenizer.json: {error}") from None
    known = [token for token in (END_OF_TEXT, "</s>", "<eos>") if backend.token_to_id(token) is not None]
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=known[0] if known else None)


def from_gpt2(vocabulary: Path, merges: Path) -> PreTrainedTokenizerFast:
    """GPT-2's byte-level BPE from its table of entries and its list of merges."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    lines = merges.read_text(encoding="utf-8").splitlines()
    halves = [line.split() for line in lines if line and not line.startswith("#version")]
    require(all(len(half) == 2 for half in halves), f"{merges} is not a list of merges: each line has two parts")
    table = json.loads(vocabulary.read_text(encoding="utf-8"))
    backend = Backend(models.BPE(vocab=table, merges=[(left, right) for left, right in halves]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    known = END_OF_TEXT if END_OF_TEXT in table else None
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=known, clean_up_tokenization_spaces=False)
