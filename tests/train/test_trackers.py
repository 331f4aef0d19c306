"""Trackers: the numbers of metrics.jsonl reach TensorBoard, W&B and trackio, each offline, through accelerate."""

import json
import sqlite3
from importlib.util import find_spec

import accelerate.tracking
import pytest
from accelerate.utils import LoggerType

STEPS = ["--optim.steps", "3", "--log.eval_every", "2"]


def needs(package):
    found = find_spec(package)
    # a folder of that name is no package
    return pytest.mark.skipif(found is None or found.origin is None, reason=f"{package} is not installed")


class Notebook(accelerate.tracking.GeneralTracker):
    """Stands for W&B: notes what accelerate hands to a tracker."""

    name = "wandb"
    requires_logging_directory = False
    made: "list[Notebook]" = []  # noqa: RUF012

    def __init__(self, project, **options):
        super().__init__()
        self.project, self.options, self.lines, self.config, self.ended = project, options, [], None, False
        Notebook.made.append(self)

    @property
    def tracker(self):
        return self

    def store_init_configuration(self, values):
        self.config = values

    def log(self, values, step, **_):
        self.lines.append({"step": step, **values})

    def finish(self):
        self.ended = True


def test_a_tracker_is_told_what_the_metrics_hold(lab, monkeypatch):
    monkeypatch.setitem(accelerate.tracking.LOGGER_TYPE_TO_CLASS, "wandb", Notebook)
    monkeypatch.setattr(accelerate.tracking, "_available_trackers", [LoggerType.WANDB])
    monkeypatch.setattr("miras.train.command.find_spec", lambda name: object())
    monkeypatch.setattr(Notebook, "made", [])
    assert lab.here("told", *STEPS, "--log.trackers", "wandb") == 0
    (notebook,) = Notebook.made
    assert notebook.project == "miras" and notebook.ended
    assert notebook.options == {"name": "told", "dir": str(lab.root / "told")}
    assert notebook.config["optim.steps"] == 3 and notebook.config["optim.tokens"] == "None"
    assert notebook.lines == lab.lines("told") and len(notebook.lines) == 3 + 2 + 2


def test_a_tracker_that_is_not_installed_is_refused(lab, monkeypatch, capsys):
    monkeypatch.setattr("miras.train.command.find_spec", lambda name: None)
    assert lab.here("none", *STEPS, "--log.trackers", "trackio") == 2
    assert capsys.readouterr().err == "miras: log.trackers: trackio is not installed: pip install trackio\n"


@needs("tensorboard")
def test_tensorboard(lab):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert lab.here("tracked", *STEPS, "--log.trackers", "tensorboard") == 0
    (file,) = (path for path in (lab.root / "tracked").rglob("events.out.tfevents.*") if path.parent.name == "miras")
    events = EventAccumulator(str(file)).Reload()
    read = {event.step: event.value for event in events.Scalars("loss")}
    assert read == pytest.approx(lab.losses("tracked"))


@needs("wandb")
def test_wandb(lab, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    lab.elsewhere("tracked", *STEPS, "--log.trackers", "wandb")
    (file,) = (lab.root / "tracked" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"valid_bits_per_byte" in file.read_bytes()


@needs("trackio")
def test_trackio(lab, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(lab.root / "kept"))
    lab.elsewhere("tracked", *STEPS, "--log.trackers", "trackio")
    with sqlite3.connect(lab.root / "kept" / "miras.db") as kept:
        rows = kept.execute("select run_name, step, metrics from metrics order by step").fetchall()
    told = [(step, json.loads(metrics)) for _, step, metrics in rows]
    losses = {step: metrics["loss"] for step, metrics in told if "loss" in metrics}
    assert {name for name, _, _ in rows} == {"tracked"} and losses == pytest.approx(lab.losses("tracked"))
