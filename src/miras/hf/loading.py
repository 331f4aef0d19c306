"""Loading: a checkpoint that is whole, or one line that says what is wrong with it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from logging import ERROR, Logger, LogRecord, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.utils import logging

from ..types import require

if TYPE_CHECKING:
    from .modeling import MirasForCausalLM, MirasPreTrainedModel

SHOWN = 3
# their rows are the vocabulary
BY_TOKEN = ("embed_tokens.weight", "lm_head.weight")


class CheckpointError(ValueError):
    """A checkpoint that is damaged or another model's."""


def whole(load: Callable[..., Any], name: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What transformers' ``load`` gives, refused where the checkpoint is not the model's.

    Whoever asks for ``output_loading_info`` wants to look at what is missing: they get transformers' own behaviour.
    """
    where = "the state_dict" if name is None else str(name)
    with readable(where):
        if options.get("output_loading_info"):
            return load(name, *arguments, **options)
        any_size = options.pop("ignore_mismatched_sizes", False)
        with held_back(getLogger("transformers.modeling_utils")):
            model, info = load(name, *arguments, ignore_mismatched_sizes=True, output_loading_info=True, **options)
            check(model, info, where, any_size)
    return model


def check(model: MirasPreTrainedModel, info: dict[str, Any], where: str, any_size: bool) -> None:
    """Refuse a checkpoint whose tensors are not the model's; a head may be missing where another class saved it."""
    own = type(model).__name__
    headless = model.base_model is not model and own not in (model.config.architectures or [own])
    base = f"{model.base_model_prefix}."
    missing = [name for name in info["missing_keys"] if not headless or name.startswith(base)]
    for kind, names in (("missing", missing), ("unexpected", info["unexpected_keys"])):
        if names:
            told = f"{', '.join(sorted(names)[:SHOWN])} ({len(names)} in all)"
            raise CheckpointError(f"{where} has {kind} tensors: {told}; its weights are not those of its configuration")
    for name, there, here in [] if any_size else sorted(info["mismatched_keys"]):
        if name.endswith(BY_TOKEN) and there[1:] == here[1:]:
            raise CheckpointError(f"{where} has a vocabulary of {there[0]} tokens, its configuration one of {here[0]}")
        raise CheckpointError(f"{where} cannot be loaded: {name} is {list(there)} there, {list(here)} in its configuration")


@contextlib.contextmanager
def readable(where: str) -> Iterator[None]:
    """A damaged file of weights as one line."""
    try:
        yield
    except SafetensorError as error:
        raise CheckpointError(f"the weights of {where} cannot be loaded: {first_line(error)}") from error


@contextlib.contextmanager
def held_back(logger: Logger) -> Iterator[None]:
    """Keep what a logger says until it is known that nothing is refused, and forget it otherwise."""
    kept: list[LogRecord] = []

    def keep(record: LogRecord) -> bool:
        kept.append(record)
        return False

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
    for record in kept:
        logger.handle(record)


def first_line(error: Exception) -> str:
    """What an error says first, or its name; a list that it announces stands on further lines, and is left out."""
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return re.sub(r"( from one of)?:\s*$", "", said)


class Loaded(NamedTuple):
    """A model and the tokenizer that was saved with it."""

    model: MirasForCausalLM
    tokenizer: Any


def load(name: str | Path, *, dtype: str | torch.dtype = "auto", tokenizer: Any = None) -> Loaded:
    """A saved Miras model, whole, ready to read, and its tokenizer; whatever is wrong is told in one line.

    Args:
        name: a folder that ``save_pretrained`` wrote, or OWNER/NAME on the hub.
        dtype: of the weights; as they were saved if "auto".
        tokenizer: to take in the place of the one that was saved with the model.
    """
    from .modeling import MirasForCausalLM

    name = str(name)
    with quiet():
        check_kind(name)
        model: MirasForCausalLM = _tried(
            f"{name} cannot be loaded", lambda: MirasForCausalLM.from_pretrained(name, dtype=dtype).eval()
        )
        known = tokenizer or _tried(
            f"there is no tokenizer in {name} (save one there with its save_pretrained)",
            lambda: AutoTokenizer.from_pretrained(name),
        )
    vocab, which = model.config.vocab_size, f"in {name}" if tokenizer is None else "given"
    require(
        len(known) <= vocab,
        f"the tokenizer {which} has {len(known)} tokens, the model {vocab}: they do not belong together",
    )
    return Loaded(model, known)


def check_kind(name: str) -> None:
    """Refuse what is no Miras model, before anything large is read."""
    from .configuration import MirasConfig

    folder = Path(name)
    if folder.is_dir():
        described = folder / "config.json"
        require(described.is_file(), f"{name} is not a model folder: it has no config.json (miras train leaves RUN/model)")
        try:
            config = json.loads(described.read_text())
        except ValueError as error:
            raise ValueError(f"{described} is not JSON: {first_line(error)}") from error
    else:
        known = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
        require(known, f"there is no folder {name}: a model is a folder that save_pretrained wrote, or OWNER/NAME on the hub")
        config, _ = _tried(f"{name} cannot be loaded", lambda: MirasConfig.get_config_dict(name))
    kind = config.get("model_type") if isinstance(config, dict) else None
    require(kind == "miras", f"{name} is a model of type {kind!r}, not 'miras' (miras.hf.from_fla reads those of fla)")


def _tried(what: str, load: Callable[[], Any]) -> Any:
    """What ``load`` gives; whatever goes wrong with a file of others is one line."""
    try:
        return load()
    except CheckpointError:
        raise
    except Exception as error:
        raise ValueError(f"{what}: {first_line(error)}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without bars and remarks of transformers and the hub's client: what is wrong is told in an error."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub = getLogger("huggingface_hub")
    level = hub.level
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub.setLevel(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
        hub.setLevel(level)
        if bars:
            logging.enable_progress_bar()
