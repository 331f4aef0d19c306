"""Make the texts and questions of the experiments ready: folders under ``out/data/``.

    python experiments/prepare.py enwik8 --source FOLDER/enwik8.xz
    python experiments/prepare.py enwik8_short --source FOLDER/enwik8.xz
    python experiments/prepare.py books --source FOLDER/books --tokenizer FOLDER/tokenizers/gpt2 --files 2
    python experiments/prepare.py books_short --source FOLDER/books
    python experiments/prepare.py wikitext2_short --source FOLDER/wikitext-2
    python experiments/prepare.py needles --source FOLDER/books --tokenizer FOLDER/tokenizers/gpt2
    python experiments/prepare.py wikitext2 --source FOLDER/wikitext-2 --tokenizer FOLDER/tokenizers/gpt2
    python experiments/prepare.py zero-shot --source FOLDER/eval

enwik8.xz (26 MB) unpacks in seconds. Of the short ones, which are bytes, enwik8_short has the training split and the first
256 KiB of the other two, books_short one file of books to train on and the middle 16 KiB of every held-out book,
wikitext2_short the middle 256 KiB. Two of the four files of books (49 MB packed) are about 43M tokens, tokenised at 0.2M
tokens a second on one core and in parallel on several. Packed text takes 1.14 bytes a token and packed tokens 1.03, so the
text travels as it is. Needles are hidden in the books of the validation split.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from miras.lab import corpora
from miras.lab.needle_course import Course

CORPORA = ("enwik8", "enwik8_short", "books", "books_short", "needles", "wikitext2", "wikitext2_short", "zero-shot")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CORPORA)
    parser.add_argument("--source", type=Path, required=True, help="enwik8.xz, or the folder that holds the files")
    parser.add_argument("--tokenizer", default="gpt2", help="a folder with GPT-2's tokenizer, for all but bytes")
    parser.add_argument("--files", type=int, default=2, help="how many files of books to train on (default 2)")
    parser.add_argument("--data", type=Path, default=Path("out/data"), help="where the folders go (default out/data)")
    given = parser.parse_args()
    folder = given.data / given.name
    if given.name.startswith("enwik8"):
        corpora.enwik8(given.source, folder, held=corpora.SHORT if given.name == "enwik8_short" else None)
    elif given.name == "books":
        corpora.books(given.source, folder, given.tokenizer, given.files)
    elif given.name == "books_short":
        corpora.books(given.source, folder, "bytes", 1, held=corpora.EXCERPT)
    elif given.name == "wikitext2_short":
        corpora.wikitext(given.source, folder, "bytes", held=corpora.SHORT)
    elif given.name == "needles":
        corpora.needles(given.source, folder, given.tokenizer, Course())
    elif given.name == "wikitext2":
        corpora.wikitext(given.source, folder, given.tokenizer)
    else:
        corpora.questions(given.source, folder)


if __name__ == "__main__":
    main()
