"""A tokenizer of bytes: token i is byte i, for any text, with three tokens more."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL = {PAD: 256, BOS: 257, EOS: 258}


def byte_characters() -> list[str]:
    """The printable character that stands for each byte inside ``tokenizers``: itself, or one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token i is byte i; 256, 257 and 258 are padding, the beginning and the end of a text.

    >>> from miras.hf import byte_tokenizer
    >>> byte_tokenizer()("né").input_ids
    [110, 195, 169]
    """
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        # in a text "<eos>" is five bytes
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
    )
