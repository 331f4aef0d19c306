"""Tokens on disk: shards that are mapped, not read, with the ends of the documents beside them.

A folder of shards holds ``<split>-00000.bin`` and so on, ``<split>-documents.bin`` (where each document ends, counted in
tokens) and, written last, ``meta.json`` with the size of every file. A folder without it, or with other sizes, is not whole.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import require

FORMAT = 1
# tokens of one shard: half a gigabyte at two bytes a token
SHARD = 1 << 28


class Writer:
    """Writes the shards of one split."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], shard: int = SHARD) -> None:
        self.folder, self.split, self.dtype, self.shard = folder, split, dtype, shard
        self.tokens = self.bytes = 0
        self.ends: list[int] = []
        self.names: list[str] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.handle: Any = None

    def add(self, ids: NDArray[np.int64]) -> None:
        """Append tokens, over as many shards as it takes."""
        data = ids.astype(self.dtype)
        self.digest.update(data.tobytes())
        while len(data):
            room = self.shard - self.tokens % self.shard
            if self.tokens % self.shard == 0:
                self.next_shard()
            part, data = data[:room], data[room:]
            self.handle.write(part.tobytes())
            self.tokens += len(part)

    def next_shard(self) -> None:
        """Close the shard that is full and open another."""
        self.close()
        self.names.append(f"{self.split}-{len(self.names):05d}.bin")
        self.handle = (self.folder / self.names[-1]).open("wb")

    def close(self) -> None:
        """Close the shard that is open."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None

    def close_document(self) -> None:
        """The document ends with the last token added."""
        self.ends.append(self.tokens)

    def finish(self) -> dict[str, Any]:
        """Close all files; what ``meta.json`` says of this split."""
        self.close()
        name = f"{self.split}-documents.bin"
        np.array(self.ends, dtype=np.int64).tofile(self.folder / name)
        sizes = {name: (self.folder / name).stat().st_size for name in [*self.names, name]}
        self.digest.update(np.array(self.ends, dtype=np.int64).tobytes())
        return {
            "tokens": self.tokens,
            "bytes": self.bytes,
            "documents": len(self.ends),
            "digest": self.digest.hexdigest(),
            "files": sizes,
        }


class Tokens:
    """One split as one long row of tokens.

    Attributes:
        count: how many tokens.
        ends: ``[documents]``, where each document ends.
        bytes_per_token: bytes of text that a token stands for, on average over the split.
        digest: a hash of the tokens and of the documents' ends.
    """

    def __init__(self, folder: Path, split: str) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        mine = meta["splits"][split]
        dtype = np.dtype(meta["dtype"])
        names = [name for name in mine["files"] if not name.endswith("-documents.bin")]
        self.split, self.count, self.digest = split, int(mine["tokens"]), str(mine["digest"])
        self.bytes_per_token = mine["bytes"] / max(self.count, 1)
        self.shards = [np.memmap(folder / name, dtype=dtype, mode="r") for name in names]
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)]).tolist()
        documents = folder / f"{split}-documents.bin"
        self.ends: NDArray[np.int64] = (
            np.memmap(documents, dtype=np.int64, mode="r") if mine["documents"] else np.empty(0, dtype=np.int64)
        )

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens from ``start`` up to ``stop``, from whichever shards they lie in."""
        assert 0 <= start < stop <= self.count, (start, stop, self.count)
        shard, parts = bisect_right(self.starts, start) - 1, []
        while start < stop:
            offset = start - self.starts[shard]
            part = self.shards[shard][offset : offset + stop - start]
            parts.append(part.astype(np.int64))
            start, shard = start + len(part), shard + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def boundaries(self, start: int, stop: int) -> NDArray[np.int64]:
        """The places in ``start``..``stop`` - 1 at which a document begins, counted from ``start``; never 0 itself."""
        first, last = np.searchsorted(self.ends, [start, stop], side="left")
        ends = np.asarray(self.ends[first:last])
        return ends[ends > start] - start


def broken(folder: Path) -> str | None:
    """Why a folder of shards cannot be used, or None where it is whole."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        sizes = {name: size for split in meta["splits"].values() for name, size in split["files"].items()}
    except FileNotFoundError:
        return "it was not finished"
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeError, AttributeError):
        return "its meta.json is damaged"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} should have {size} bytes"
    return None


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type that holds every token."""
    require(vocab_size <= 2**32, f"a vocabulary of {vocab_size} does not fit four bytes a token")
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")
