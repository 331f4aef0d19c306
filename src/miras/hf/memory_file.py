"""The file a memory is kept in: safetensors, with a header that names the model it belongs to.

A state is a tree of named tuples, tuples, tensors and None. Its tensors go into the file under their paths in the tree, the
tree itself into the header as JSON, so that any state a block has, in mid-chunk too, comes back as it was.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from miras import __version__

from ..files import check_target, replacing, writing_tensors
from ..nn import MirasState, WindowState
from ..nn.shared_steps import Recent
from ..spec import Spec
from ..types import CacheState, NewtonState, Progress, State, require

if TYPE_CHECKING:
    from .configuration import MirasConfig
    from .modeling import MirasForCausalLM

FORMAT = "miras memory 1"
KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (MirasState, WindowState, State, NewtonState, CacheState, Progress, Recent)
}
# what makes two models the same function of their weights
IDENTITY = (
    "spec",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "value_head_dim",
    "sliding_window",
    "chunk_size",
    "rope",
    "rope_base",
    "conv_kernel",
    "silu",
    "output_gate",
    "value_norm",
    "step_sum",
    "gate_rank",
    "gate_pace",
    "step_start",
    "step_limit",
    "decay_limit",
    "weight_start",
    "rms_norm_eps",
    "tie_word_embeddings",
)
SAMPLES = 64


class Header(NamedTuple):
    """What a memory file says of itself.

    Attributes:
        memory: the model's memory in words, for people.
        model: the fields of the configuration that a state depends on.
        weights: a digest of a sample of the model's weights, or "" where they were not at hand (offloaded).
        tokens: how many tokens were read.
        versions: of miras and torch, for people.
        tree: the state's structure.
        contents: a digest of the file's tensors, "" where it was written before there was one.
    """

    memory: str
    model: dict[str, Any]
    weights: str
    tokens: int
    versions: dict[str, str]
    tree: Any
    contents: str = ""

    @property
    def model_hash(self) -> str:
        """A short name of the configuration."""
        return hashlib.sha256(json.dumps(self.model, sort_keys=True).encode()).hexdigest()[:16]

    def to_metadata(self) -> dict[str, str]:
        """The header as safetensors keeps it."""
        readable = {
            "architecture": "MirasForCausalLM",
            "chunk_size": str(self.model["chunk_size"]),
            "model_hash": self.model_hash,
        }
        return {"format": FORMAT, **readable, **{name: json.dumps(value) for name, value in self._asdict().items()}}

    @classmethod
    def from_metadata(cls, metadata: dict[str, str], path: Path) -> Header:
        """The header of a file, refused where it is not one of a memory."""
        found = metadata.get("format", "")
        require(says_memory(metadata), f"{path} is not a memory file: its header does not say so")
        require(found == FORMAT, f"{path} has the format {found!r}, this version of miras ({__version__}) reads {FORMAT!r}")
        later = {name for name in cls._field_defaults if name not in metadata}
        return cls(**{name: json.loads(metadata[name]) for name in cls._fields if name not in later})


def says_memory(metadata: dict[str, str]) -> bool:
    """Whether a header is that of a memory, of whatever format."""
    return metadata.get("format", "").startswith("miras memory")


def identity(config: MirasConfig) -> dict[str, Any]:
    """The fields of a configuration that a state depends on."""
    plain: dict[str, Any] = json.loads(json.dumps({name: getattr(config, name) for name in IDENTITY}))
    return resolved(plain)


def resolved(fields: dict[str, Any]) -> dict[str, Any]:
    """The chunk size that holds, wherever it is given; a spec's name is for people and left out."""
    spec = {**fields["spec"], "name": ""}
    own = spec.pop("chunk_size", None)
    return {**fields, "spec": spec, "chunk_size": fields["chunk_size"] or own}


def differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """In which fields another model differs from this one, "" where in none."""
    other = [name for name in IDENTITY if there.get(name) != here[name]]
    return ", ".join(f"{name} is {_shown(there.get(name))} there, {_shown(here[name])} here" for name in other)


def digest(model: MirasForCausalLM) -> str:
    """A digest of up to 64 entries of every weight, rounded to bf16 so that a model's precision does not matter.

    Empty where a weight is not at hand because it is offloaded.
    """
    sha = hashlib.sha256()
    # a compiled model's names say so, and are the same but for that
    named = {name.replace("_orig_mod.", ""): weight for name, weight in model.named_parameters()}
    for name, weight in sorted(named.items()):
        if weight.is_meta:
            return ""
        flat = weight.detach().flatten()
        some = flat[:: max(1, len(flat) // SAMPLES)][:SAMPLES].to(torch.bfloat16).view(torch.int16).tolist()
        sha.update(f"{name} {list(weight.shape)} {some}\n".encode())
    return sha.hexdigest()


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """A digest of tensors on the CPU, every byte, by their names."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha.update(tensor.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def check_model(header: Header, model: MirasForCausalLM, path: Path) -> None:
    """Refuse a memory of another model, in one line that says what differs."""
    # a file of before holds the fields as they were given
    other = differences(resolved(header.model), identity(model.config))
    require(not other, f"{path} was made by another model: {other}")
    weights = digest(model)
    same = not header.weights or not weights or header.weights == weights
    require(same, f"{path} was made by another model: its configuration is this model's, but its weights are not")


def _shown(value: Any) -> str:
    """A field for people."""
    return str(Spec.from_dict(value)).removeprefix(": ") if isinstance(value, dict) else str(value)


def flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The tree of a state as JSON values; its tensors, copied, go into ``tensors`` by their path."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return path
    kind = type(value).__name__
    if kind in KINDS:
        return {"kind": kind, **{name: flatten(part, f"{path}.{name}", tensors) for name, part in value._asdict().items()}}
    assert isinstance(value, tuple), f"a state holds a {kind}"
    return [flatten(part, f"{path}.{number}", tensors) for number, part in enumerate(value)]


def rebuild(tree: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """The state that ``flatten`` took apart, on a block's device (on the CPU where the block itself is offloaded)."""
    if tree is None:
        return None
    if isinstance(tree, str):
        return tensors[tree] if device.type == "meta" else tensors[tree].to(device)
    if isinstance(tree, list):
        return tuple(rebuild(part, tensors, device) for part in tree)
    kind = KINDS[tree["kind"]]
    # how far a row stands into its chunk is looked at by Python and stays on the CPU
    places = {"position": torch.device("cpu")} if kind is Progress else {}
    fields = {name: rebuild(part, tensors, places.get(name, device)) for name, part in tree.items() if name != "kind"}
    return kind(**fields)


def check_replaced(path: Path) -> None:
    """Refuse to put a memory in the place of something else."""
    if path.exists():
        try:
            with safe_open(path, "pt") as file:
                known = says_memory(file.metadata() or {})
        except (SafetensorError, OSError):
            known = False
        require(known, f"cannot keep a memory in {path}: the file there is no memory, and would be lost: name another")


def write(path: Path, tensors: dict[str, Tensor], header: Header) -> None:
    """Write the file: it is complete or not there."""
    check_target(path, "cannot keep a memory in")
    check_replaced(path)
    with replacing(path) as fresh, writing_tensors(path):
        save_file(tensors, fresh, header._replace(contents=fingerprint(tensors)).to_metadata())


def read(path: Path) -> tuple[dict[str, Tensor], Header]:
    """The tensors and the header of a file."""
    require(path.is_file(), f"there is no memory file {path}")
    try:
        with safe_open(path, "pt") as file:
            header = Header.from_metadata(file.metadata() or {}, path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a complete memory file: {error}") from error
    whole = not header.contents or header.contents == fingerprint(tensors)
    require(whole, f"{path} is damaged: its numbers are not those that were written, read the text again")
    return tensors, header
