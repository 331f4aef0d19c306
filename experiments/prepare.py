"""Make the texts of the experiments ready: folders of shards under ``data/``.

    python experiments/prepare.py enwik8 --source FOLDER/enwik8.xz
    python experiments/prepare.py books --source FOLDER/books --tokenizer FOLDER/tokenizers/gpt2 --files 2

enwik8.xz (26 MB) unpacks in seconds. Two of the four files of books (49 MB packed) are about 43M tokens, tokenised at 0.2M
tokens a second on one core and in parallel on several. Packed text takes 1.14 bytes a token and packed tokens 1.03, so the text
travels as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from miras.lab import corpora


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("enwik8", "books"))
    parser.add_argument("--source", type=Path, required=True, help="enwik8.xz, or the folder of books")
    parser.add_argument("--tokenizer", default="gpt2", help="a folder with GPT-2's tokenizer, for books")
    parser.add_argument("--files", type=int, default=2, help="how many files of books to train on (default 2)")
    parser.add_argument("--data", type=Path, default=Path("out/data"), help="where folders of shards go (default out/data)")
    given = parser.parse_args()
    if given.name == "enwik8":
        corpora.enwik8(given.source, given.data / "enwik8")
    else:
        corpora.books(given.source, given.data / "books", given.tokenizer, given.files)


if __name__ == "__main__":
    main()
