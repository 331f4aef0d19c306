"""Packages that a command needs and the core does not."""

from __future__ import annotations

import importlib


class MissingExtraError(Exception):
    """A package of an extra is not installed."""


def needed(command: str, package: str, extra: str = "cli") -> None:
    """Import a package of an extra or say how to get it."""
    try:
        importlib.import_module(package)
    except ImportError:
        raise MissingExtraError(f"miras {command} needs {package}: pip install 'miras-torch[{extra}]'") from None
