"""One process: what a run leaves, and what ends it."""

import contextlib
import importlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import time

import matplotlib.image
import pytest
import torch
import yaml
from safetensors.torch import load_file

import disks
from miras.cli import main
from miras.train import checkpoint, command, loop, safety
from miras.train.config import SafetyConfig, TrainConfig
from miras.train.job import bits_per_nat
from miras.train.metrics import lines
from miras.train.run import free_folder
from miras.types import IGNORED

STEPS = ["--optim.steps", "12", "--save.every", "4", "--log.eval_every", "6", "--log.every", "4"]


@pytest.fixture(scope="module")
def run(shared):
    """A run to its end, and what it printed."""
    assert shared.here("whole", *STEPS, "--log.sample", "5", "--save.keep", "3") == 0
    return shared.root / "whole"


def error_of(capsys, lab, *argv, code=2):
    found = lab.here(*argv)
    err = capsys.readouterr().err.strip().splitlines()
    assert found == code and err[-1].startswith("miras: "), err
    return err[-1]


def test_what_a_run_leaves(run, shared):
    names = {path.name for path in run.iterdir()}
    assert names == {"config.yaml", "run.json", "metrics.jsonl", "plot.png", "checkpoints", "model", "sample.txt"}
    assert [path.name for path in shared.checkpoints("whole")] == ["step-00000004", "step-00000008", "step-00000012"]
    assert yaml.safe_load((run / "config.yaml").read_text())["optim"]["steps"] == 12
    about = shared.about("whole")
    assert about["starts"][0]["versions"]["torch"] == torch.__version__ and about["starts"][0]["sharded_parameters"] == 0
    assert about["data"]["train"] > 1000 and about["parameters"] > 1000
    assert {"commit", "changed"} == about["starts"][0]["git"].keys()
    assert matplotlib.image.imread(run / "plot.png").std() > 0.05


def test_metrics(run, shared):
    steps = [line for line in shared.lines("whole") if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert [line["step"] for line in shared.lines("whole") if "valid_loss" in line] == [6, 12]
    assert steps[-1]["loss"] < steps[0]["loss"] and steps[-1]["tokens"] == 12 * 4 * 32
    assert all(0 <= line["data_share"] < 1 and line["tokens_per_second"] > 0 and line["memory_gb"] > 0 for line in steps)
    assert all(line["bits_per_byte"] > line["loss"] / math.log(2) for line in steps)


def test_the_model_left_behind_is_the_last_checkpoint_and_speaks(run, shared, capsys):
    weights, last = (
        load_file(run / "model" / "model.safetensors"),
        load_file(shared.checkpoints("whole")[-1] / "model.safetensors"),
    )
    assert all(torch.equal(weights[name], last[name]) for name in last) and len(last) > 10
    assert main(["generate", str(run / "model"), "--prompt", "the ", "--max-new-tokens", "8", "--greedy"]) == 0
    assert len(capsys.readouterr().out) > 0 and (run / "sample.txt").read_text().startswith("def ")


def test_validation_is_the_mean_loss_of_the_saved_model(run, shared):
    """The last validation again, from the saved model, one sequence at a time, with transformers' own loss."""
    from transformers import AutoModelForCausalLM

    from miras.data import Tokens
    from miras.data.sequences import spread

    model = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    (folder,) = (shared.root / "cache").iterdir()
    tokens = Tokens(folder, "valid")
    losses = []
    with torch.no_grad():
        for i in spread(tokens, 32, 4):
            row = torch.from_numpy(tokens.read(32 * i, 32 * i + 33))[None]
            losses.append(float(torch.nn.functional.cross_entropy(model(row[:, :-1]).logits[0], row[0, 1:])))
    line = [line for line in shared.lines("whole") if "valid_loss" in line][-1]
    assert line["valid_loss"] == pytest.approx(sum(losses) / 4, abs=1e-5)
    assert line["valid_bits_per_byte"] == pytest.approx(line["valid_loss"] * bits_per_nat(tokens.bytes_per_token))


def test_resumed_is_bit_identical_and_forgets_later_metrics(run, shared):
    """From step 4 of 12, as if what came after had never been saved; step 8 is damaged, and passed over."""
    copy = shared.root / "again"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000012")
    with (copy / "checkpoints" / "step-00000008" / "model.safetensors").open("r+b") as handle:
        handle.seek(-5, os.SEEK_END)
        byte = handle.read(1)[0]
        handle.seek(-5, os.SEEK_END)
        handle.write(bytes([byte ^ 1]))
    with (copy / "metrics.jsonl").open("a") as handle:
        handle.write('{"step": 13, "lo')
    assert shared.here("again", *STEPS, "--save.keep", "3", "--resume") == 0
    for name in (checkpoint.MODEL, checkpoint.OPTIMISER):
        one, two = (load_file(folder / "checkpoints" / "step-00000012" / name) for folder in (run, copy))
        assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    assert shared.losses("again") == shared.losses("whole") and len(shared.lines("again")) == len(shared.lines("whole"))
    assert len(shared.about("again")["starts"]) == 2


def test_resume_needs_no_options_again(run, shared):
    copy = shared.root / "short"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000012")
    assert main(["train", "--resume", "--run.folder", str(copy)]) == 0
    assert shared.losses("short") == shared.losses("whole")


def test_resume_goes_on_in_the_folder_that_a_file_names(run, shared, monkeypatch, capsys):
    """Not in the newest run of all, which is another."""
    copy = shared.root / "named"
    shutil.copytree(run, copy)
    monkeypatch.chdir(shared.root)
    shutil.copytree(run, shared.root / "out" / "newest")
    (shared.root / "mine.yaml").write_text(f"run:\n  folder: {copy}\n")
    before = (shared.root / "out" / "newest" / "run.json").read_text()
    assert main(["train", "--config", "mine.yaml", "--resume"]) == 0
    assert "step 12 of 12" in capsys.readouterr().err
    assert len(shared.about("named")["starts"]) == 2
    assert (shared.root / "out" / "newest" / "run.json").read_text() == before


def test_a_finished_run_stays_as_it_is(run, shared, capsys):
    before = (run / "metrics.jsonl").read_text()
    assert shared.here("whole", *STEPS, "--save.keep", "3", "--resume") == 0
    assert (run / "metrics.jsonl").read_text() == before
    assert "12 of 12" in capsys.readouterr().err


def test_a_damaged_record_is_named(run, shared, capsys):
    shutil.copytree(run, shared.root / "scribbled")
    (shared.root / "scribbled" / "run.json").write_text("{")
    assert "scribbled/run.json is damaged: Expecting" in error_of(capsys, shared, "scribbled", *STEPS, "--resume")


def test_a_last_line_of_anything_is_cut_off(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step"\xff\xfe\0')
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1}]
    for other in ("[1]", "{}", "3"):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + other)
        assert lines(tmp_path / "metrics.jsonl") == [{"step": 1}]
        # what was written after it is not thrown away
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + other + '\n{"step": 2}\n')
        with pytest.raises(ValueError, match=r"metrics.jsonl is damaged in line 2, with whole lines after it"):
            lines(tmp_path / "metrics.jsonl")


# checkpoints


def truncated(place):
    os.truncate(place / checkpoint.OPTIMISER, 100)


def flipped(place):
    data = bytearray((place / checkpoint.STATE).read_bytes())
    data[10] ^= 4
    (place / checkpoint.STATE).write_bytes(data)


def missing(place):
    (place / checkpoint.MODEL).unlink()


def unfinished(place):
    (place / checkpoint.MANIFEST).unlink()


def scribbled(place):
    (place / checkpoint.MANIFEST).write_text("{")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (truncated, "optimizer.safetensors has 100 bytes instead of"),
        (flipped, "state.json has changed since it was written"),
        (missing, "model.safetensors is missing"),
        (unfinished, "it was not finished"),
        (scribbled, "its manifest.json is damaged"),
    ],
)
def test_damage_is_noticed_and_the_one_before_taken(run, tmp_path, harm, reason):
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    said = []
    harm(tmp_path / "checkpoints" / "step-00000012")
    assert checkpoint.newest(tmp_path / "checkpoints", said.append).name == "step-00000008"
    assert len(said) == 1 and said[0].startswith("the checkpoint step-00000012 is passed over: ") and reason in said[0]


def test_a_half_written_checkpoint_does_not_count(run, tmp_path):
    shutil.copytree(run / "checkpoints" / "step-00000004", tmp_path / "checkpoints" / "step-00000016.partial")
    assert checkpoint.newest(tmp_path / "checkpoints", None) is None


def test_only_so_many_checkpoints_are_kept(lab):
    (lab.root / "kept" / "checkpoints" / "step-00000003.partial").mkdir(parents=True)
    (lab.root / "kept" / "config.yaml").write_text("")
    assert lab.here("kept", *STEPS, "--save.every", "1", "--save.keep", "2", "--resume") == 0
    assert [path.name for path in lab.checkpoints("kept")] == ["step-00000011", "step-00000012"]


def test_a_full_disk(lab, monkeypatch, capsys):
    """The second checkpoint finds no room: one line, the first one kept, nothing half-written left."""
    real, calls = checkpoint.save_file, []

    def without_room(*arguments, **options):
        calls.append(1)
        with disks.full() if len(calls) == 4 else contextlib.nullcontext():
            real(*arguments, **options)

    monkeypatch.setattr(checkpoint, "save_file", without_room)
    message = error_of(capsys, lab, "full", *STEPS)
    assert "the checkpoint of step 8 could not be written, earlier ones are untouched" in message and "too large" in message
    assert [path.name for path in lab.checkpoints("full")] == ["step-00000004"]
    assert checkpoint.damage(lab.checkpoints("full")[0]) is None
    monkeypatch.undo()
    assert lab.here("full", *STEPS, "--resume") == 0


# safety


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("readers", [0, 2])
def test_signals_save_before_leaving(lab, monkeypatch, number, readers, capsys):
    """A terminal and a scheduler send them to the processes that read the data as well."""
    real, reached = loop.one_step, []

    def signalled(job, place, *rest):
        if place.step == 4:
            reached.extend(child.pid for child in multiprocessing.active_children())
            # by a process of its own: a reader takes its parent's for the end
            subprocess.run(["kill", f"-{number.value}", *map(str, (os.getpid(), *reached))], check=True)
            time.sleep(0.2)
        return real(job, place, *rest)

    monkeypatch.setattr(loop, "one_step", signalled)
    assert lab.here("left", *STEPS, "--save.every", "100", "--data.workers", str(readers)) == 128 + number
    assert len(reached) == readers
    assert f"stopped by {number.name} after step 5, which was saved" in capsys.readouterr().err
    assert [path.name for path in lab.checkpoints("left")] == ["step-00000005"]
    monkeypatch.undo()
    assert lab.here("left", *STEPS, "--save.every", "100", "--resume") == 0
    assert sorted(lab.losses("left")) == list(range(1, 13))


def test_a_step_without_a_number_is_skipped_and_reported(lab, monkeypatch, capsys):
    """Step 5's loss is made NaN: weights and moments stay as they were, and the run goes on."""
    real, seen = loop.gradients, {}

    def poisoned(job, micro_batches):
        result = real(job, micro_batches)
        now = {name: value.clone() for name, value in job.model.state_dict().items()}
        seen[len(seen)] = now
        return (math.nan, result[1]) if len(seen) == 5 else result

    monkeypatch.setattr(loop, "gradients", poisoned)
    assert lab.here("nan", *STEPS) == 0
    assert "step 5 was skipped: the loss is nan" in capsys.readouterr().err
    lines = {line["step"]: line for line in lab.lines("nan") if "loss" in line}
    assert (
        lines[5]["skipped"] == "the loss is nan"
        and lines[5]["loss"] is None
        and sum("skipped" in line for line in lines.values()) == 1
    )
    assert all(torch.equal(seen[4][name], seen[5][name]) for name in seen[4])
    assert not all(torch.equal(seen[5][name], seen[6][name]) for name in seen[5])


def test_many_skipped_steps_in_a_row_stop_the_run(lab, monkeypatch, capsys):
    real = loop.gradients
    count = []

    def poisoned(*arguments):
        count.append(1)
        loss, norm = real(*arguments)
        return loss, (math.inf if len(count) > 5 else norm)

    monkeypatch.setattr(loop, "gradients", poisoned)
    message = error_of(capsys, lab, "stop", *STEPS, "--safety.patience", "3", code=1)
    assert "stopped after step 8: 3 steps in a row were skipped, the last because the gradient's norm is inf" in message
    assert "step-00000004" in message
    assert [path.name for path in lab.checkpoints("stop")] == ["step-00000004"]


@pytest.mark.parametrize("name", ["yaad", "titans_lmm", "gated_deltanet", "mesa"])
def test_numbers_that_overflow_inside_the_model_are_skipped_too(lab, capsys, name):
    """The second block reads what is no number any more, and passes it on to the loss."""
    wild = ["--model.name", f"{name}-tiny", "--model.layers", "2", "--optim.lr", "1e30", "--optim.warmup", "0"]
    message = error_of(capsys, lab, "wild", *STEPS, *wild, "--safety.patience", "3", "--log.eval_every", "2", code=1)
    assert "3 steps in a row were skipped, the last because the " in message and " nan" in message


def test_a_model_without_numbers_is_told_at_the_end(lab, capsys):
    wild = ["--model.layers", "2", "--optim.lr", "1e30", "--optim.warmup", "0", "--optim.steps", "3", "--log.sample", "5"]
    assert "the validation loss is no number after 3 steps" in error_of(capsys, lab, "mute", *wild)


def test_spikes():
    config = SafetyConfig(memory=20)
    spikes = safety.Spikes()
    generator = torch.Generator().manual_seed(0)
    losses = (3 + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)).tolist()
    for loss in losses:
        assert safety.complaint(spikes, loss, 1.0, config) is None
        spikes = safety.after(spikes, loss, True, config)
    assert spikes.mean == pytest.approx(3, abs=0.1) and math.sqrt(spikes.variance) == pytest.approx(0.1, abs=0.05)
    assert safety.complaint(spikes, 3.3, 1.0, config) is None
    assert "the loss jumped to 5, above" in safety.complaint(spikes, 5.0, 1.0, config)
    skipped = safety.after(spikes, 5.0, False, config)
    assert skipped == spikes._replace(skipped=1) and safety.after(skipped, 3.0, True, config).skipped == 0
    # at the beginning anything goes
    assert safety.complaint(safety.Spikes(), 1e9, 1.0, config) is None


def test_the_running_mean_begins_as_the_plain_one():
    spikes = safety.Spikes()
    values = [2.0, 4.0, 9.0, 1.0]
    for value in values:
        spikes = safety.after(spikes, value, True, SafetyConfig(memory=50))
    assert spikes.mean == pytest.approx(4.0) and spikes.variance == pytest.approx(9.5)


def test_a_loss_that_rises_again_for_long_is_lost():
    """A mean that had fallen from 5 to 2 and rises step by step, each too small a jump to skip."""
    config = SafetyConfig(memory=10)
    spikes = safety.Spikes()
    for loss in [5.0] * 10 + [2.0] * 100 + [2.9] * 100:
        assert safety.complaint(spikes._replace(variance=1.0), loss, 1.0, config) is None
        spikes = safety.after(spikes, loss, True, config)
        # a quarter of the fall would be 2.75, half as much again as the lowest is 3
        assert safety.lost(spikes, config) is None
    assert spikes.first == 5.0 and spikes.lowest == pytest.approx(2.0, abs=1e-3)
    for loss in [3.2] * 100:
        spikes = safety.after(spikes, loss, True, config)
    assert safety.lost(spikes, config) == "the mean loss has risen to 3.2 from 2"
    # a small loss may double as often as it likes, as long as that is little of what it fell by
    assert safety.lost(spikes._replace(first=5.0, lowest=0.01, mean=0.9), config) is None
    # before there is a whole mean nothing is known
    assert safety.lost(safety.after(safety.Spikes(), 5.0, True, config), config) is None


def test_a_run_that_loses_what_it_learned_stops(lab, monkeypatch, capsys):
    real, count = loop.gradients, []

    def rising(*arguments):
        count.append(1)
        return (4.0 if len(count) < 5 else 1.0 if len(count) < 8 else 2.5, real(*arguments)[1])

    monkeypatch.setattr(loop, "gradients", rising)
    given = ["--safety.memory", "2", "--safety.spike", "100"]
    message = error_of(capsys, lab, "lost", *STEPS, *given, code=1)
    assert "stopped after step 9: the mean loss has risen to 2.219 from 1.375; the newest checkpoint is" in message
    assert "step-00000008" in message


# variants of one run


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
def test_micro_batches_and_recomputation_change_nothing_but_rounding(lab):
    short = ["--optim.steps", "5"]
    assert lab.here("one", *short) == 0
    assert lab.here("four", *short, "--engine.micro_batch", "1") == 0
    assert lab.here("twice", *short, "--engine.checkpointing") == 0
    for other in ("four", "twice"):
        assert lab.losses(other) == pytest.approx(lab.losses("one"), abs=1e-5)
    assert lab.here("low", *short, "--engine.precision", "bf16") == 0
    # eight bits of mantissa: near, and not the same
    assert lab.losses("low") == pytest.approx(lab.losses("one"), abs=0.03) and lab.losses("low") != lab.losses("one")
    assert lab.about("low")["starts"][0]["precision"] == "bf16"


def test_stretches_of_a_memory_that_are_computed_again_change_nothing(lab, capsys):
    short = ["--optim.steps", "5", "--model.chunk_size", "8"]
    assert lab.here("whole", *short) == 0
    assert lab.here("stretches", *short, "--engine.recompute", "16") == 0
    assert lab.losses("stretches") == pytest.approx(lab.losses("whole"), abs=1e-5)
    given = ["--model.name", "transformer-tiny", "--engine.recompute", "64"]
    assert "this model has attention alone: leave it out" in error_of(capsys, lab, "attention", *STEPS, *given)


def test_a_run_says_what_runs_its_memories_and_takes_what_it_is_told(lab, capsys, monkeypatch):
    module = importlib.import_module("miras.memorize")
    taken, run_as = set(), module.run_as
    monkeypatch.setattr(module, "run_as", lambda how, *rest: taken.add(how) or run_as(how, *rest))
    short = ["--optim.steps", "2", "--model.heads", "1", "--model.chunk_size", "16"]
    assert lab.here("auto", *short) == 0
    assert "\nmemory chunk form, plain PyTorch on cpu\n" in capsys.readouterr().err
    assert lab.about("auto")["starts"][0]["memories"] == ["chunk form, plain PyTorch on cpu"]
    assert taken == {"torch"}
    taken.clear()
    assert lab.here("fused", *short, "--engine.backend", "triton") == 0
    assert "\nmemory chunk form, backend triton, as asked for\n" in capsys.readouterr().err
    assert lab.losses("fused") == pytest.approx(lab.losses("auto"), abs=1e-4) and taken == {"triton"}
    refused = error_of(capsys, lab, "refused", *short, "--engine.backend", "fla")
    assert "fla is called for matrix memories, not MLP; give --engine.backend auto" in refused
    given = ["--model.name", "transformer-tiny", "--engine.backend", "triton"]
    assert "this model has attention alone: backend 'triton' runs memories" in error_of(capsys, lab, "none", *STEPS, *given)


def test_isolated_documents_train(lab):
    assert lab.here("isolated", "--optim.steps", "3", "--data.isolate", "--engine.micro_batch", "2") == 0
    assert lab.here("whole", "--optim.steps", "3", "--data.isolate") == 0
    assert lab.losses("isolated") == pytest.approx(lab.losses("whole"), abs=1e-5)
    assert IGNORED == -100


def test_readers_of_their_own_give_the_same(lab):
    assert lab.here("none", "--optim.steps", "3") == 0
    assert lab.here("two", "--optim.steps", "3", "--data.workers", "2") == 0
    assert lab.losses("none") == lab.losses("two")


def test_a_saved_model_is_a_place_to_start(lab, capsys):
    assert lab.here("first", "--optim.steps", "3") == 0
    again = str(lab.root / "first" / "model")
    keep = lab.options
    lab.options = ["--model.name", again, *keep[keep.index("--data.length") :]]
    assert lab.here("second", "--optim.steps", "3") == 0
    assert lab.losses("second")[1] < lab.losses("first")[1]
    assert "sizes are fixed: got num_hidden_layers" in error_of(capsys, lab, "third", "--model.layers", "2")
    # the folder of the run, not of its model
    lab.options[1] = str(lab.root / "first")
    assert "is not a model folder: it has no config.json (miras train leaves RUN/model)" in error_of(capsys, lab, "third")


# bad input


def test_bad_input_is_one_line(lab, capsys):
    cases = {
        "no such file or folder": ["--data.path", str(lab.root / "none.txt")],
        "no such tokenizer": ["--data.tokenizer", str(lab.root / "no" / "tokenizer.x")],
        "unknown configuration 'yaad-huge'": ["--model.name", "yaad-huge"],
        "no option --optim.stepps, did you mean --optim.steps?": ["--optim.stepps", "3"],
        "must be a multiple of the processes (1) times engine.micro_batch (3)": ["--engine.micro_batch", "3"],
        "engine.parallel fsdp needs processes to share the model": ["--engine.parallel", "fsdp"],
        "fewer than one sequence (data.length 100000)": ["--data.length", "100000"],
        'model.spec takes the JSON itself: --model.spec "$(cat mine.json)"': ["--model.spec", "mine.json"],
        "gate_pace changes a gate that transformer": ["--model.name", "transformer-tiny", "--model.pace", "0.1"],
        "decay_start changes a gate that deltanet": ["--model.name", "deltanet-tiny", "--model.decay", "0.1"],
        "decay_limit changes a gate that deltanet": ["--model.name", "deltanet-tiny", "--model.decay_limit", "0.1"],
        "log_alpha starts at 0.0001, which must lie below its limit 1e-05": ["--model.decay_limit", "1e-5"],
        "engine.backend fla cannot run yaad": ["--engine.backend", "fla"],
    }
    for message, argv in cases.items():
        assert message in error_of(capsys, lab, "bad", *argv)
    assert not (lab.root / "bad").exists()


def test_a_tokenizer_that_does_not_fit(lab, capsys):
    message = error_of(capsys, lab, "bad", "--model.vocab_size", "100")
    assert "the tokenizer bytes has 259 tokens and the model yaad-tiny room for 100: give --model.vocab_size 320" in message


def test_a_folder_that_holds_something_else(lab, capsys):
    (lab.root / "other").mkdir()
    (lab.root / "other" / "thesis.txt").write_text("mine")
    assert "is not empty and holds no run: choose another" in error_of(capsys, lab, "other")
    assert lab.here("run", "--optim.steps", "2") == 0
    assert "holds another run: go on with it by --resume" in error_of(capsys, lab, "run", "--optim.steps", "2")
    assert "began with optim.steps 2, not 9" in error_of(capsys, lab, "run", "--optim.steps", "9", "--resume")
    assert "began with model.dim 16, not 32" in error_of(capsys, lab, "run", "--model.dim", "32", "--resume")
    text = lab.root / "text.jsonl"
    text.write_text(text.read_text() + json.dumps({"text": "more"}) + "\n")
    assert "began with data (its training tokens)" in error_of(capsys, lab, "run", "--optim.steps", "2", "--resume")


def test_folders_are_numbered(lab, monkeypatch, capsys):
    monkeypatch.chdir(lab.root)
    argv = ["train", *lab.options, "--optim.steps", "1"]
    for number in (1, 2):
        assert main(argv) == 0
        assert f"miras generate out/yaad-tiny-{number}/model" in capsys.readouterr().out
    assert main(["train", "--resume"]) == 0
    assert "going on from step-00000001, step 1 of 1" in capsys.readouterr().err
    (lab.root / "empty").mkdir()
    monkeypatch.chdir(lab.root / "empty")
    assert main(["train", "--resume"]) == 2
    assert "there is no run in out/ to go on with" in capsys.readouterr().err


def test_two_runs_never_share_a_folder(lab, monkeypatch, capsys):
    """Reading text can take hours, in which another run is started."""
    monkeypatch.chdir(lab.root)
    real = command.read_corpus

    def meanwhile(*arguments):
        assert str(free_folder("yaad-tiny")) == "out/yaad-tiny-2"
        (lab.root / "taken").mkdir()
        (lab.root / "taken" / "config.yaml").write_text("another's")
        return real(*arguments)

    monkeypatch.setattr(command, "read_corpus", meanwhile)
    assert main(["train", *lab.options, "--optim.steps", "1"]) == 0 and (lab.root / "out" / "yaad-tiny-1" / "model").is_dir()
    shutil.rmtree(lab.root / "taken")
    (lab.root / "out" / "yaad-tiny-2").rmdir()
    assert "taken holds another run" in error_of(capsys, lab, "taken", "--optim.steps", "1")
    assert [path.read_text() for path in (lab.root / "taken").iterdir()] == ["another's"]
    # who does not get as far as a first step leaves nothing
    monkeypatch.undo()
    monkeypatch.chdir(lab.root)
    assert main(["train", *lab.options, "--data.length", "1000000"]) == 2 and not (lab.root / "out" / "yaad-tiny-3").exists()


def test_defaults_are_a_small_yaad_on_the_embedded_text():
    config = TrainConfig()
    assert config.data.path is None and config.data.tokenizer == "bytes" and config.model.name.startswith("yaad")
