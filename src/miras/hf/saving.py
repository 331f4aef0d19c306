"""What is written beside the weights: a file that finds the classes, and a model card."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miras import __version__

from ..files import writing_tensors
from ..nn import RECIPES

if TYPE_CHECKING:
    from .modeling import MirasPreTrainedModel

# as transformers names them: whole or in shards, of a variant or not, and the list of the shards
WEIGHTS = re.compile(r"model(?:\.(.+?))?(?:-\d{5}-of-\d{5})?\.safetensors")
INDEX = re.compile(r"model\.safetensors\.index(?:\.(.+?))?\.json")
SHIM = "modeling_miras"
AUTO_MAP = {
    "AutoConfig": f"{SHIM}.MirasConfig",
    "AutoModel": f"{SHIM}.MirasModel",
    "AutoModelForCausalLM": f"{SHIM}.MirasForCausalLM",
}
SHIM_TEXT = '''"""Where this model's classes are: in the package miras, which has to be installed."""

try:
    from miras.hf import MirasConfig, MirasForCausalLM, MirasModel
except ImportError as error:
    raise ImportError("this model needs miras: pip install 'miras-torch[hf]'") from error

__all__ = ["MirasConfig", "MirasForCausalLM", "MirasModel"]
'''

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- miras
- {preset}
---

# {title}

A causal language model whose layers are associative memories that train themselves on the tokens they read.

| | |
|---|---|
| memory | {memory} |
| bias | {bias} |
| retention | {retention} |
| algorithm | {algorithm} |
| blocks | {blocks} |
| hidden size, heads | {hidden}, {heads} |
| vocabulary | {vocab} |
| parameters | {parameters:,} |

## Its update rule

```text
{rule}
```

## Use

`pip install 'miras-torch[hf]'` (version {version} wrote this), then

```text
from transformers import AutoModelForCausalLM

import miras.hf  # or trust_remote_code=True below

model = AutoModelForCausalLM.from_pretrained("{folder}")
```

`model.generate` carries a state of constant size; there is no maximal length.

## Training data, evaluation, limits

Not stated. Whoever publishes this model should say what it was trained on and what it was measured with.
"""


def card(model: MirasPreTrainedModel, folder: str) -> str:
    """The model card, filled with what the model knows of itself."""
    config, spec = model.config, model.config.memory
    hybrid = "" if config.sliding_window is None else f", every second one attention over {config.sliding_window} tokens"
    return CARD.format(
        title=config.label or folder,
        preset=spec.name if spec.name in RECIPES else "custom-memory",
        memory=spec.memory.label,
        bias=spec.bias.label,
        retention=spec.retention.label,
        algorithm=spec.algorithm.label,
        blocks=f"{config.num_hidden_layers}{hybrid}",
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        vocab=config.vocab_size,
        parameters=sum(p.numel() for p in model.parameters()),
        rule=spec.describe().text,
        version=__version__,
        folder=folder,
    )


def save_with_card(model: MirasPreTrainedModel, folder: Any, save: Callable[..., None], options: dict[str, Any]) -> None:
    """Save by ``save``, with the shim, and with a card where there is none yet; a file takes its name when it is complete."""
    model.config.auto_map = dict(AUTO_MAP)
    path = Path(folder)
    if path.is_file() or not options.get("is_main_process", True):
        save(folder, **options)
        return
    path.mkdir(parents=True, exist_ok=True)
    if options.get("push_to_hub"):
        # what lies in the folder is what goes up
        _beside(model, path, path)
        save(folder, **options)
        return
    with tempfile.TemporaryDirectory(dir=path, prefix=".saving-") as temporary:
        begun = Path(temporary)
        with writing_tensors(path):
            save(temporary, **options)
        _beside(model, begun, path)
        _move(begun, path)


def _beside(model: MirasPreTrainedModel, begun: Path, path: Path) -> None:
    """The shim, and the card where a folder has none, among files that are on their way to it."""
    (begun / f"{SHIM}.py").write_text(SHIM_TEXT)
    if not (path / "README.md").exists():
        (begun / "README.md").write_text(card(model, path.resolve().name))


def _move(begun: Path, path: Path) -> None:
    """Every complete file to its place, and what an earlier save of the same weights left there away."""
    new = {file.name for file in begun.iterdir()}
    for name in sorted(new):
        os.replace(begun / name, path / name)
    kinds = {variant_of(name) for name in new} - {None}
    for old in path.iterdir():
        if old.name not in new and variant_of(old.name) in kinds:
            old.unlink()


def variant_of(name: str) -> str | None:
    """The variant whose weights a file holds, or lists, "" for those without a name; None for any other file.

    >>> [variant_of(name) for name in ("model-00001-of-00002.safetensors", "model.fp16.safetensors", "model_ema.safetensors")]
    ['', 'fp16', None]
    """
    found = WEIGHTS.fullmatch(name) or INDEX.fullmatch(name)
    return None if found is None else found.group(1) or ""
