"""``miras generate``: text after a prompt, after a kept memory, or after both, as it comes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import check_target, size
from ..types import is_text, require
from .models import add_model, check_keepable, load

if TYPE_CHECKING:
    from ..hf.loading import Loaded

# tokens held back at most while they may be the beginning of a character
HELD = 8


def add_generate(command: argparse.ArgumentParser) -> None:
    """The options of ``miras generate``."""
    command.description = (
        "Continue a prompt, a kept memory (miras read makes one), or a prompt after a memory, and print the text as it comes. "
        "The output is the continuation alone; it ends with the model's end token or with --max-new-tokens."
    )
    add_model(command)
    command.add_argument("--prompt", default="", metavar="TEXT", help="what to continue; - reads it from standard input")
    command.add_argument("--state", metavar="IN", type=Path, help="a memory to start from; the prompt follows it")
    command.add_argument("--save-state", metavar="OUT", type=Path, help="keep the memory of all of it, continuation included")
    command.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="tokens at most (default 200)")
    command.add_argument("--greedy", action="store_true", help="the most likely token each time, instead of drawing one")
    command.add_argument("--temperature", type=float, metavar="X", help="below 1 surer, above 1 wilder (default 1)")
    command.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens of this share (default 1)")
    command.add_argument("--seed", type=int, metavar="N", help="of the random numbers (default: another each time)")
    command.set_defaults(run=run_generate)


def run_generate(arguments: argparse.Namespace) -> None:
    """``miras generate``."""
    options = sampling(arguments)
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    require(is_text(prompt), "the prompt is not UTF-8 text")
    require(bool(prompt) or arguments.state is not None, "there is nothing to continue: give --prompt, --state or both")
    if arguments.save_state is not None:
        check_target(arguments.save_state, "cannot keep a memory in", (arguments.model,))
    loaded = load(arguments, "generate")
    if arguments.save_state is not None:
        check_keepable(arguments.save_state)
    generate(loaded, prompt, arguments, options)


def sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options as transformers takes them."""
    limit, temperature, top_p = arguments.max_new_tokens, arguments.temperature, arguments.top_p
    require(limit >= 1, f"--max-new-tokens must be 1 or more, got {limit}")
    require(
        temperature is None or temperature >= 1e-4,
        f"--temperature must be 1e-4 or more, got {temperature} (--greedy is its limit at 0)",
    )
    require(top_p is None or 0 < top_p <= 1, f"--top-p must be in (0, 1], got {top_p}")
    seed = arguments.seed
    require(seed is None or -(2**63) <= seed < 2**64, f"--seed must have 64 bits at most, got {seed}")
    drawn = temperature is not None or top_p is not None
    require(not (arguments.greedy and drawn), "--greedy draws nothing: leave --temperature and --top-p away")
    if arguments.greedy:
        return {"max_new_tokens": limit, "do_sample": False}
    return {
        "max_new_tokens": limit,
        "do_sample": True,
        "temperature": 1.0 if temperature is None else temperature,
        "top_p": 1.0 if top_p is None else top_p,
        "top_k": 0,
    }


def generate(loaded: Loaded, prompt: str, arguments: argparse.Namespace, options: dict[str, Any]) -> None:
    """Read what there is, then print token after token."""
    import torch

    from ..hf import KeptMemory
    from ..hf.loading import quiet

    model, tokenizer = loaded
    memory = None if arguments.state is None else KeptMemory.load(arguments.state, model)
    if arguments.seed is not None:
        torch.manual_seed(arguments.seed)
    with quiet():
        if prompt:
            memory = model.read(prompt, memory=memory, tokenizer=tokenizer)
        assert memory is not None
        stream = TextStream(tokenizer, show)
        out = model.generate(**memory.inputs(), **options, streamer=stream, return_dict_in_generate=True)
    if arguments.save_state is not None:
        memory = memory.after(out)
        memory.save(arguments.save_state)
        print(f"Kept {memory.tokens:,} tokens, {size(memory.nbytes)}: {arguments.save_state}", file=sys.stderr)


def show(text: str) -> None:
    """To the output at once."""
    print(text, end="", flush=True)


class TextStream:
    """Tokens from ``generate`` to text as they come; the bytes of an unfinished character wait for the rest of it."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] = []
        # tokens before `shown` are printed; those from `context` on are decoded with the new ones, for spaces between words
        self.context = self.shown = 0
        self.prompted = False

    def put(self, value: Any) -> None:
        """More tokens; the first are the prompt and not printed."""
        if not self.prompted:
            self.prompted = True
            return
        self.ids.extend(value.flatten().tolist())
        self._flush(HELD)

    def end(self) -> None:
        """No more tokens."""
        self._flush(0)
        self.write("\n")

    def _flush(self, held: int) -> None:
        before, now = self._text(self.context, self.shown), self._text(self.context, len(self.ids))
        unfinished = now.endswith("�") and len(self.ids) - self.shown < held
        if len(now) > len(before) and not unfinished:
            self.write(now[len(before) :])
            self.context, self.shown = self.shown, len(self.ids)

    def _text(self, begin: int, end: int) -> str:
        text: str = self.tokenizer.decode(self.ids[begin:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
