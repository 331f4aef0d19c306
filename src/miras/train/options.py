"""Configurations from files and the command line by one definition: a dataclass of sections, dataclasses of plain values.

Every option is ``section.key``, in a file as ``key`` under ``section``, on the command line as ``--section.key value``. The
types that an option may have are str, int, float, bool, a Literal of strings, a tuple of strings, and any of those or None.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..types import require

ConfigT = TypeVar("ConfigT")
Made = TypeVar("Made")
# what other trainers call these options
OTHERS = {
    **dict.fromkeys(("learning_rate", "max_lr", "rate"), "lr"),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size"), "batch"),
    **dict.fromkeys(("seq_len", "sequence_length", "seq_length", "block_size", "context", "max_length"), "length"),
    **dict.fromkeys(("max_steps", "iterations"), "steps"),
    **dict.fromkeys(("output_dir", "out", "out_dir"), "folder"),
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "warmup"),
    **dict.fromkeys(("max_grad_norm", "grad_clip"), "clip"),
}
WORDS: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def option(default: Any, help: str) -> Any:
    """A field with a default and the line that ``--help`` prints for it."""
    return dataclasses.field(default=default, metadata={"help": help})


def options_of(kind: type) -> dict[str, tuple[Any, Any, str]]:
    """``section.key`` -> (type, default, help) for every option of a configuration."""
    found = {}
    for section, inner in get_type_hints(kind).items():
        hints = get_type_hints(inner)
        for field in dataclasses.fields(inner):
            found[f"{section}.{field.name}"] = (hints[field.name], field.default, field.metadata["help"])
    return found


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Give a parser ``--config`` and every option of a configuration, grouped by section."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        type=Path,
        help="YAML or TOML; may be repeated, the last one wins",
    )
    sections = get_type_hints(kind)
    groups = {name: parser.add_argument_group(name, (inner.__doc__ or "").splitlines()[0]) for name, inner in sections.items()}
    for name, (hint, default, help) in options_of(kind).items():
        bare: dict[str, Any] = {"nargs": "?", "const": "true"} if hint is bool else {}
        own = absent(hint) if default is None else shown(default)
        said = f"{help} ({expected(hint)}; default: {own})".replace("%", "%%")
        groups[name.partition(".")[0]].add_argument(
            f"--{name}", dest=name, default=argparse.SUPPRESS, metavar=name.rpartition(".")[2].upper(), help=said, **bare
        )


def refuse_unknown(parser: argparse.ArgumentParser, unknown: list[str]) -> None:
    """Refuse arguments that a parser did not take: the first of them, with the nearest that there is."""
    if unknown:
        name = unknown[0].partition("=")[0]
        known = [text for action in parser._actions for text in action.option_strings]
        require(name != "--import", f"--import stands before the command: miras --import MODULE {parser.prog.split()[-1]} ...")
        named = not name.startswith("-") and "--model.name" in known
        require(not named, f"{parser.prog} takes options alone, got {name}: did you mean --model.name {name}?")
        raise ValueError(f"no option {name}{nearest(name, known)} ({parser.prog} --help lists them)")


def build(kind: type[ConfigT], arguments: argparse.Namespace) -> ConfigT:
    """The configuration: defaults, then the files in order, then the command line."""
    return assembled(kind, asked(kind, arguments))


def asked(kind: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that the files and the command line give, the last one of each."""
    known = options_of(kind)
    given: dict[str, Any] = {}
    for path in arguments.config:
        given |= from_file(path, known)
    for name in known:
        if name in vars(arguments):
            given[name] = converted(vars(arguments)[name], known[name][0], f"--{name}")
    return given


def assembled(kind: type[ConfigT], given: Mapping[str, Any]) -> ConfigT:
    """A configuration from the values of some of its options."""
    sections: dict[str, dict[str, Any]] = {section: {} for section in get_type_hints(kind)}
    for name, value in given.items():
        section, _, key = name.partition(".")
        sections[section][key] = value
    return kind(**{section: inner(**sections[section]) for section, inner in get_type_hints(kind).items()})


def from_file(path: Path, known: Mapping[str, tuple[Any, Any, str]]) -> dict[str, Any]:
    """The options of a YAML or TOML file, checked."""
    require(path.is_file(), f"no such configuration file: {path}")
    content = read(path)
    require(isinstance(content, dict), f"{path} is not a table of sections")
    sections = sorted({name.partition(".")[0] for name in known})
    found = {}
    for section, inner in content.items():
        require(
            section in sections,
            f"{path}: no section {section!r}{nearest(str(section), sections)}, there are {', '.join(sections)}",
        )
        require(isinstance(inner, dict), f"{path}: the section {section} is not a table of options")
        for key, value in inner.items():
            name = f"{section}.{key}"
            if name not in known:
                raise ValueError(f"{path}: no option {name}{nearest(name, list(known))}")
            found[name] = converted(value, known[name][0], f"{path}: {name}")
    return found


def read(path: Path) -> Any:
    """The content of a YAML or TOML file."""
    if path.suffix == ".toml":
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}") from None
    require(path.suffix in (".yaml", ".yml"), f"a configuration file is .yaml, .yml or .toml, got {path}")
    import yaml

    class Once(yaml.SafeLoader):
        """YAML lets the last of several values win."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            # as written: what is merged in later may be given again
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = [key for i, key in enumerate(keys) if key in keys[:i]]
            require(not twice, f"{path} gives {', '.join(twice)} twice")
            return node

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Once) or {}
    except (yaml.YAMLError, UnicodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None


def nearest(name: str, known: list[str]) -> str:
    """The known name that looks most like another, as the middle of a sentence."""
    key = name.rpartition(".")[2].lstrip("-")
    close = [other for other in known if other.rpartition(".")[2].lstrip("-") == OTHERS.get(key)][:1]
    close = close or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not close:
        # the key may be right and its section wrong
        close = [other for other in known if other.rpartition(".")[2] == key][:1]
    return f", did you mean {close[0]}?" if close else ""


def converted(value: Any, hint: Any, where: str) -> Any:
    """A value from a file or the command line as the type that its option has."""
    try:
        return as_type(value, hint)
    except ValueError:
        raise ValueError(f"{where} is {expected(hint)}, got {value!r}") from None


def called(maker: Callable[..., Made], assignments: Iterable[str], where: str, **given: Any) -> Made:
    """What a function makes of arguments written as ``name=value``, each as the type that it is annotated with."""
    hints, known = get_type_hints(maker), list(inspect.signature(maker).parameters)
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        named = f"{maker.__name__} has no argument {key!r}, it has {', '.join(known) or 'none'}"
        require(key in known, f"{where}: {named}")
        require(bool(equals), f"{where} takes NAME=VALUE, got {assignment!r}")
        given[key] = converted(value, hints[key], f"{where}: {key}")
    return maker(**given)


def as_type(value: Any, hint: Any) -> Any:
    """A value as a type, or ValueError. Text is read as the command line writes it; YAML gives 3e-3 as text, too."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None or value in (absent(hint), "null"):
            return None
        return as_type(value, next(member for member in get_args(hint) if member is not types.NoneType))
    if get_origin(hint) is Literal:
        require(value in get_args(hint), "")
        return value
    if get_origin(hint) is tuple:
        # in brackets as a file has it, or without
        bare = value[1:-1] if isinstance(value, str) and value[:1] == "[" and value[-1:] == "]" else value
        items = bare.split(",") if isinstance(bare, str) else bare
        require(isinstance(items, list | tuple) and all(isinstance(item, str) for item in items), "")
        return tuple(item.strip() for item in items if item.strip())
    if hint is bool:
        return as_bool(value)
    if hint is str:
        require(isinstance(value, str), "")
        return value
    require(not isinstance(value, bool) and isinstance(value, str | int | float), "")
    number = float(value)
    if hint is float:
        return number
    require(number.is_integer(), "")
    return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)


def as_bool(value: Any) -> bool:
    """True or false, or the words for them."""
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, bool):
        return value
    require(isinstance(value, str) and value.lower() in words, "")
    return words[value.lower()]


def expected(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(absent(hint) if member is types.NoneType else expected(member) for member in get_args(hint))
    return "a comma list" if get_origin(hint) is tuple else WORDS[hint]


def absent(hint: Any) -> str:
    """The word for no value at all: none, or null where a choice is itself called none."""
    return "null" if any("none" in get_args(member) for member in get_args(hint)) else "none"


def shown(value: Any) -> str:
    """A default as the command line would write it."""
    if isinstance(value, tuple):
        return ",".join(value) or "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def to_dict(config: Any) -> dict[str, dict[str, Any]]:
    """A configuration as plain values, section by section, that :func:`from_file` reads back."""
    plain = dataclasses.asdict(config)
    return {
        section: {key: list(value) if isinstance(value, tuple) else value for key, value in inner.items()}
        for section, inner in plain.items()
    }
