"""A tiny training: text, options, and a fresh engine for every test."""

import json
import subprocess
import sys

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from miras.cli import main
from miras.train.metrics import lines

MODEL = ["--model.name", "yaad-tiny", "--model.layers", "1", "--model.dim", "16", "--model.heads", "2", "--model.inner", "32"]
REST = ["--data.length", "32", "--data.batch", "4", "--log.eval_sequences", "4", "--log.sample", "0", "--engine.threads", "1"]


class Lab:
    """Runs trainings on one small text, in this process or in others."""

    def __init__(self, root):
        self.root = root
        text = root / "text.jsonl"
        words = ["the", "memory", "keeps", "what", "surprises", "it", "and", "lets", "go", "of", "the", "rest"]
        rows = [" ".join(words[(i * k) % 11] for k in range(1, 30)) + f" {i}" for i in range(120)]
        text.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
        data = [
            "--data.path",
            str(text),
            "--data.cache",
            str(root / "cache"),
            "--data.valid_share",
            "0.1",
            "--engine.device",
            "cpu",
        ]
        self.options = [*MODEL, *REST, *data]

    def argv(self, name, *more):
        return ["train", *self.options, "--run.folder", str(self.root / name), *more]

    def here(self, name, *more):
        """Train in this process; the exit code."""
        try:
            return main(self.argv(name, *more))
        finally:
            for state in (AcceleratorState, PartialState, GradientState):
                state._reset_state()

    def start(self, name, *more, processes=None):
        """Train in a process, or in several, of its own."""
        several = (
            [] if processes is None else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        )
        command = [sys.executable, *several, "-m", "miras", *self.argv(name, *more)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def elsewhere(self, name, *more, processes=None):
        """Train in other processes, to the end."""
        process = self.start(name, *more, processes=processes)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return output

    def losses(self, name):
        return {line["step"]: line["loss"] for line in lines(self.root / name / "metrics.jsonl") if "loss" in line}

    def lines(self, name):
        return lines(self.root / name / "metrics.jsonl")

    def checkpoints(self, name):
        return sorted((self.root / name / "checkpoints").iterdir())

    def about(self, name):
        return json.loads((self.root / name / "run.json").read_text())


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """One place for the runs that several tests look at."""
    return Lab(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
