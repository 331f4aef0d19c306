"""Text in, packed sequences of tokens out: sources, tokenizers, mapped shards, an order that depends on (seed, step) alone."""

from .corpus import Corpus, prepare
from .order import shuffled
from .sequences import Batches
from .shards import Tokens
from .sources import Source, source_of
from .tokenizer import Bytes, Subwords, Tokenizer, tokenizer_of

__all__ = [
    "Batches",
    "Bytes",
    "Corpus",
    "Source",
    "Subwords",
    "Tokenizer",
    "Tokens",
    "prepare",
    "shuffled",
    "source_of",
    "tokenizer_of",
]
