"""Where a number comes from; benchmarks share it with the experiments."""

from __future__ import annotations

from miras.lab.provenance import ROOT, commit, processor, provenance, source, versions

__all__ = ["ROOT", "commit", "processor", "provenance", "source", "versions"]
