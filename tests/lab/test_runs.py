"""The runner: a plan from end to end, done once, gone on with after a kill, and left alone where the time does not suffice."""

import dataclasses
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.image
import pytest
import torch

from miras.data import Bytes, Tokens
from miras.eval.needles import haystack_of
from miras.hf import MirasConfig, MirasForCausalLM, byte_tokenizer
from miras.lab import bench as benches
from miras.lab import pace, results, runs
from miras.lab.bench import Bench
from miras.lab.corpora import enwik8, shards
from miras.lab.curves import pictures
from miras.lab.needle_course import Course, write
from miras.lab.page import page
from miras.lab.plan_file import load
from miras.lab.runs import work_through
from miras.train import loop, watch
from miras.train.config import RunConfig, SaveConfig, TrainConfig
from miras.train.reading import by_place, sliding, surprises

READS = ["valid/sliding/1x", "test/long/4x", "other:test/sliding/1x", "zero-shot", "needles"]
PLAN = """
experiment: words
claim: Do words rhyme?
data: words
common:
  model: {layers: 1, dim: 16, heads: 2, inner: 16}
  data: {length: 16, batch: 2}
  engine: {device: cpu, threads: 1}
  save: {seconds: 0.3, keep: 1}
  log: {eval_every: 4, eval_sequences: 4}
models:
  gla: {model: {name: gla-tiny}}
  yaad: {model: {name: yaad-tiny}}
stages:
  - {name: grid, tokens: 256, models: [gla], variants: {low: {optim: {lr: 1e-5}}, high: {optim: {lr: 1e-2}}}}
  - name: main
    why: it matters
    tokens: 256
    models: [gla]
    rate: grid
    reads: [valid/sliding, test/long/4x, "other:test/sliding", zero-shot, needles]
  - {name: long, tokens: 1920, models: [yaad], variants: {"": {optim: {lr: 1e-2}}}, keep: true}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A plan and its text."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "words").mkdir()
    (folder / "words" / "plan.yaml").write_text(PLAN)
    words = ["the memory keeps what surprises it ", "and lets go of the rest ", "of what it read "]
    parts = {split: ["".join(words[(i * k) % 3] for i in range(40)) for k in (1, 2)] for split in ("train", "valid", "test")}
    shards(folder / "data" / "words", "words", Bytes(), parts)
    shards(folder / "data" / "other", "others", Bytes(), {"test": ["quite another text " * 20]})
    texts = runpy.run_path(str(Path(__file__).parents[1] / "eval" / "questions.py"))
    texts["write"](folder / "data" / "zero-shot", texts["TEXTS"])
    course = Course(steps=2, rows=2, lengths=(600,), asked=(600, 800), depths=(0.5,), count=1)
    write(folder / "data" / "needles", byte_tokenizer(), haystack_of("It rained. Nobody came. " * 60), course)
    return folder


def bench(place, out, **how):
    return Bench(data=place / "data", out=place / out, **how)


@pytest.fixture(scope="module")
def done(place):
    """The whole plan, worked through once."""
    plan = load(place / "words")
    said = work_through([plan], bench(place, "out", copy=place / "copy.jsonl", commit="abc"))
    return plan, said, ended(results.rows(place / "out" / "words" / "results.jsonl"))


def ended(rows):
    """The lines of runs that need nothing more."""
    return [row for row in rows if row["status"] != "unread"]


def test_a_plan_from_end_to_end(done, place):
    plan, said, rows = done
    assert said == [] and [row["run"] for row in rows] == [run.name for run in plan.runs]
    assert {row["status"] for row in rows} == {"finished"} and {row["commit"] for row in rows} == {"abc"}
    low, high, main, long = rows
    assert high["valid"]["bits_per_byte"] < low["valid"]["bits_per_byte"]
    # the better rate was chosen, and the same steps gave the same loss again
    assert main["options"]["optim.lr"] == 0.01 and main["valid"] == high["valid"]
    assert [read["read"] for read in main["reads"]] == READS and high["reads"] == []
    assert main["steps"] == 8 and main["tokens"] == 256 and len(main["curve"]) == 8 and len(main["valid_curve"]) == 2
    assert main["parameters"]["body"] < main["parameters"]["all"] and main["machine"]["cores"] == os.cpu_count()
    assert main["versions"]["torch"] == torch.__version__ and main["seconds_a_step"] > 0
    copied = results.rows(place / "copy.jsonl")
    assert ended(copied) == rows
    # before each read what was known by then, in case the machine went in the middle of it
    half = [row for row in copied if row["status"] == "unread"]
    assert [[read["read"] for read in row["reads"]] for row in half] == [READS[:number] for number in range(5)]
    assert all(row["valid"] == main["valid"] and row["key"] == main["key"] for row in half)
    # what is not kept is gone, what is kept has its model and no checkpoints
    left = {path.name for path in (place / "out" / "words").iterdir()}
    assert left == {"results.jsonl", "claims", long["run"]}
    assert not (place / "out" / "words" / long["run"] / "checkpoints").exists()
    assert len(long["curve"]) <= results.POINTS and long["curve"][-1][0] == 1920


def test_what_is_done_is_not_done_again(done, place, monkeypatch):
    monkeypatch.setattr(runs, "train_run", None)
    assert work_through([load(place / "words")], bench(place, "out")) == []


def test_a_changed_plan_is_run_again(done, place):
    changed = PLAN.replace("tokens: 256\n", "tokens: 128\n")
    (place / "changed").mkdir()
    (place / "changed" / "plan.yaml").write_text(changed)
    plan = load(place / "changed")
    found = results.rows(*bench(place, "out").files(plan))
    ready = [runs.with_rate(plan, run, bench(place, "out")) for run in plan.runs]
    assert [runs.why_not(plan, run, found, bench(place, "out")) for run in ready] == ["is done", "is done", None, "is done"]


def test_stages_are_chosen_by_how_names_begin(place):
    runs_of = lambda only: [run.name for run in load(place / "words").runs if runs.chosen(run, only)]  # noqa: E731
    assert runs_of("main,long-yaad") == ["main-gla-s0", "long-yaad-s0"] and len(runs_of("")) == 4 and runs_of("yaad") == []


def test_a_run_waits_for_its_rate(place):
    said = work_through([load(place / "words")], bench(place, "waits"), only="main")
    assert said == ["main-gla-s0 waits for the runs that choose its learning rate (grid)"]


def test_a_run_that_was_thrown_off_takes_the_next_lower_rate(done, place):
    plan, here = load(place / "words"), bench(place, "out")
    main = next(run for run in plan.runs if run.name == "main-gla-s0")
    chosen = runs.with_rate(plan, main, here)
    row = next(row for row in ended(results.rows(*here.files(plan))) if row["key"] == chosen.key)
    diverged = row | {"status": "diverged"}
    lower = runs.below_what_diverged(main, [0.01, 0.03, 0.001], [diverged])
    assert lower.options["optim.lr"] == 0.001 and runs.why_not(plan, lower, [diverged], here) is None
    # at the lowest there is nothing to go to: the result stands
    last = diverged | {"key": lower.key, "options": lower.options}
    assert runs.below_what_diverged(main, [0.01, 0.03, 0.001], [diverged, last]).key == lower.key
    assert runs.why_not(plan, lower, [diverged, last], here).startswith("diverged")
    said = "`main-gla-s0` was thrown off at a rate of 0.01, after 8 steps."
    finished = row | {"key": lower.key, "options": lower.options}
    assert said in page(plan, [diverged, finished], []) and said not in page(plan, [row], [])


def test_a_run_that_was_thrown_off_and_ended_takes_the_next_lower_rate_too(done, place):
    plan, here = load(place / "words"), bench(place, "out")
    main = next(run for run in plan.runs if run.name == "main-gla-s0")
    chosen = runs.with_rate(plan, main, here)
    row = next(row for row in results.rows(*here.files(plan)) if row["key"] == chosen.key)
    assert results.set_back(row) is None

    def went(curve, gradients):
        at = [32 * step for step in range(1, len(curve) + 1)]
        course = {"curve": list(zip(at, curve, strict=True)), "grad_norm": list(zip(at, gradients, strict=True))}
        return row | course | {"status": "finished"}

    # noise of the data, gradients that were large before the best, a loss that stays
    for curve, gradients in (([3, 2, 2.5], [1, 1, 9]), ([3, 2, 2.5], [99, 99, 1]), ([3, 2, 2.2, None], [1, 1, 99, 99])):
        assert results.set_back(went(curve, gradients)) is None
    thrown = went([3, 2, 2.5, 2.9, 2.1, 1.5], [1, 1, 70, 20, 1, 1])
    back = results.set_back(thrown)
    assert (round(back.bits, 3), back.tokens, back.gradient) == (0.9, 128, 70)
    assert runs.below_what_diverged(main, [0.01, 0.03, 0.001], [thrown]).options["optim.lr"] == 0.001
    said = "was thrown off at a rate of 0.01, though it ended: after 0.00013 million tokens its loss stood 0.90 bits above"
    assert said in page(plan, [thrown], []) and "though it ended" not in page(plan, [row], [])


def test_a_killed_run_goes_on(done, place):
    """Killed in the middle of its last run: begun again, that one comes first and ends with the same losses."""
    code = f"""
from pathlib import Path
from miras.lab.page import page
from miras.lab.plan_file import load
from miras.lab.bench import Bench
from miras.lab.runs import work_through
place = Path({str(place)!r})
work_through([load(place / "words")], Bench(data=place / "data", out=place / "killed"), "long")
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = place / "killed" / "words" / "long-yaad-s0"
    until = time.monotonic() + 60
    while not list(folder.glob("checkpoints/step-????????")) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(folder.glob("checkpoints/step-*")) and not (place / "killed" / "words" / "results.jsonl").exists()
    assert work_through([load(place / "words")], bench(place, "killed"), only="grid,long") == []
    row, *others = results.rows(place / "killed" / "words" / "results.jsonl")
    assert [other["stage"] for other in others] == ["grid", "grid"]
    assert row["curve"] == done[2][-1]["curve"] and row["valid"] == done[2][-1]["valid"]
    assert len(json.loads((folder / "run.json").read_text())["starts"]) == 2


def test_the_time_of_a_call_ends_a_run_with_its_place(place, monkeypatch):
    real = loop.one_step

    def slow(*given):
        time.sleep(0.05)
        return real(*given)

    monkeypatch.setattr(benches, "MARGIN", 0.0)
    monkeypatch.setattr(loop, "one_step", slow)
    plan, out = load(place / "words"), "timed"
    said = work_through([plan], bench(place, out, seconds=1.5, lease=1000), only="long")
    monkeypatch.undo()
    assert not (place / out / "words" / "results.jsonl").exists() and said in ([], ["the time of this call is over"])
    reached = json.loads(next((place / out).rglob("state.json")).read_text())["step"]
    assert 0 < reached < 60
    assert work_through([plan], bench(place, out), only="long") == []
    (row,) = results.rows(place / out / "words" / "results.jsonl")
    assert row["status"] == "finished" and row["steps"] == 60


def test_what_cannot_end_in_time_is_left_and_next_time_not_begun(place, monkeypatch):
    plan, out = load(place / "words"), "slow"
    said = work_through([plan], bench(place, out, probe=True), only="long")
    (row,) = results.rows(place / out / "words" / "results.jsonl")
    assert row["status"] == "slow" and "would take" in row["said"] and row["seconds_a_step"] > 0
    assert said == []
    monkeypatch.setattr(runs, "train_run", None)
    assert "would take" in work_through([plan], bench(place, out, seconds=15.001), only="long")[0]


def test_an_error_is_written_down_and_passed_over(place, monkeypatch):
    plan, out = load(place / "words"), "failed"

    def broken(config, resume):
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(runs, "train_run", broken)
    with pytest.raises(RuntimeError, match="on fire"):
        work_through([plan], bench(place, out), only="long")
    (row,) = results.rows(place / out / "words" / "results.jsonl")
    assert row["status"] == "failed" and row["said"] == "RuntimeError: the device is on fire" and "broken" in row["trace"]
    assert work_through([plan], bench(place, out), only="long") == ["long-yaad-s0 failed: RuntimeError: the device is on fire"]
    monkeypatch.undo()
    assert work_through([plan], bench(place, out, again=True), only="long") == []


def test_what_fails_is_tried_once_a_call(place, monkeypatch):
    """Also by a worker that was started again, which knows when the call began."""
    plan, out, tried = load(place / "words"), "again", []

    def broken(config, resume):
        tried.append(config)
        raise RuntimeError("still on fire")

    monkeypatch.setattr(runs, "train_run", broken)
    here = bench(place, out, again=True, since="2020-01-01T00:00:00+00:00")
    with pytest.raises(RuntimeError):
        work_through([plan], here, only="long")
    assert work_through([plan], here, only="long") == ["long-yaad-s0 failed: RuntimeError: still on fire"] and len(tried) == 1


def test_what_was_begun_otherwise_is_set_aside(place, monkeypatch):
    plan, out = load(place / "words"), "stale"
    folder = place / out / "words" / "long-yaad-s0"
    folder.mkdir(parents=True)

    def refused(config, resume):
        raise ValueError("begun with another text")

    monkeypatch.setattr(runs, "train_run", refused)
    with pytest.raises(ValueError, match="another text"):
        work_through([plan], bench(place, out), only="long")
    assert not folder.exists() and len(list(folder.parent.glob("long-yaad-s0-aside-*"))) == 1
    monkeypatch.undo()
    assert work_through([plan], bench(place, out, again=True, since="9999"), only="long") == []


def test_a_model_without_a_rate_stands_in_nobodys_way(done, place):
    """All of its short runs diverged: its long one says so, and the others are gone on with."""
    plan, out = load(place / "words"), "rateless"
    path = place / out / "words" / "results.jsonl"
    for row in done[2]:
        if row["stage"] == "grid":
            results.add(path, row | {"status": "diverged"})
    said = work_through([plan], bench(place, out), only="main,long")
    assert said == ["main-gla-s0 has no learning rate: every run of grid for gla diverged or failed"]
    assert [row["run"] for row in results.rows(path)][2:] == ["long-yaad-s0"]


def test_a_signal_ends_the_call_and_not_only_the_run(place, monkeypatch):
    plan, out, real = load(place / "words"), "signalled", loop.one_step

    def told(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(loop, "one_step", told)
    with pytest.raises(SystemExit) as ended:
        work_through([plan], bench(place, out), only="grid")
    assert ended.value.code == 128 + signal.SIGTERM and not (place / out / "words" / "results.jsonl").exists()
    monkeypatch.undo()
    assert work_through([plan], bench(place, out), only="grid") == []


def test_what_was_read_is_not_read_again(done, place, monkeypatch):
    """A call that ends between two reads leaves the first."""
    plan, out, real, asked = load(place / "words"), "reading", runs.read_of, []

    def counted(loaded, wanted, *given):
        asked.append(str(wanted))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return real(loaded, wanted, *given)

    monkeypatch.setattr(runs, "read_of", counted)
    path = place / out / "words" / "results.jsonl"
    for row in done[2]:
        if row["stage"] == "grid":
            results.add(path, row)
    with pytest.raises(KeyboardInterrupt):
        work_through([plan], bench(place, out), only="main")
    assert work_through([plan], bench(place, out), only="main") == []
    row = results.rows(path)[-1]
    wanted = [str(read) for read in next(run for run in plan.runs if run.stage == "main").reads]
    assert [read["read"] for read in row["reads"]] == wanted and asked == [*wanted[:2], *wanted[1:]]
    told = next(other for other in done[2] if other["stage"] == "main")["reads"]
    alike = [{**read, "seconds": 0} for read in told] == [{**read, "seconds": 0} for read in row["reads"]]
    assert alike


def test_a_read_that_fails_leaves_the_training(done, place, monkeypatch):
    """Its result is kept, and another call reads what is missing without training again."""
    plan, out, real, broken = load(place / "words"), "unreadable", runs.read_of, []

    def fails(loaded, wanted, *given):
        if wanted.kind == "long" and not broken:
            broken.append(wanted)
            raise torch.OutOfMemoryError("no room for a long window")
        return real(loaded, wanted, *given)

    path = place / out / "words" / "results.jsonl"
    for row in done[2]:
        if row["stage"] == "grid":
            results.add(path, row)
    monkeypatch.setattr(runs, "read_of", fails)
    with pytest.raises(torch.OutOfMemoryError):
        work_through([plan], bench(place, out), only="main")
    row = ended(results.rows(path))[-1]
    assert row["status"] == "failed" and row["valid"] == done[2][2]["valid"] and "no room for a long" in row["said"]
    assert [read["read"] for read in row["reads"]] == READS[:1]
    assert "failed" in work_through([plan], bench(place, out), only="main")[0]
    monkeypatch.setattr(loop, "one_step", None)
    assert work_through([plan], bench(place, out, again=True), only="main") == []
    row = ended(results.rows(path))[-1]
    assert row["status"] == "finished" and [read["read"] for read in row["reads"]] == READS


def test_the_time_for_what_is_read_is_counted(done, place):
    """The books' reads are half of their training: a run that would fit without them is not begun."""
    plan, rows = done[0], done[2]
    run = next(each for each in plan.runs if each.stage == "main").with_rate(0.01)
    here = bench(place, "elsewhere", seconds=100.0)
    steps = pace.reading(plan, run, here)
    known = [row | {"seconds_a_step": seconds} for row in rows if row["model"] == "gla" for seconds in (3.0, 1.0, 2.0)]
    assert steps > 8 and pace.predicted(plan, run, known, here) == pytest.approx(8 + steps)
    assert pace.time_to_train(plan, run, here) == pytest.approx(here.lease_left() * 8 / (8 + steps), rel=1e-3)
    assert pace.time_to_train(plan, run, bench(place, "elsewhere")) == float("inf")
    bare = dataclasses.replace(run, reads=())
    assert pace.predicted(plan, bare, known, here) == pytest.approx(8)


def test_the_pace_of_the_same_model_in_another_experiment_is_known(done, place, tmp_path):
    """By its options, whatever it is called there, on the same device and in batches of the same shape."""
    rows, here = done[2], bench(tmp_path, "elsewhere")
    for name in ("again", "longer"):
        (tmp_path / name).mkdir()
    (tmp_path / "again" / "plan.yaml").write_text(
        PLAN.replace("experiment: words", "experiment: again").replace("gla:", "linear:")
    )
    (tmp_path / "longer" / "plan.yaml").write_text(PLAN)
    plan = load(tmp_path / "longer")
    run = dataclasses.replace(next(each for each in plan.runs if each.stage == "grid"), reads=())
    other = [row | {"model": "linear", "seconds_a_step": 3.0} for row in rows if row["stage"] == "grid"]
    for row in (*other, {"mistaken": True}):
        results.add(tmp_path / "again" / "results.jsonl", row)
    assert pace.predicted(plan, run, [], here) == pytest.approx(8 * 3.0)
    wider = dataclasses.replace(run, options={**run.options, "model.dim": 32})
    longer = dataclasses.replace(run, options={**run.options, "data.length": 32})
    assert pace.predicted(plan, wider, [], here) is None and pace.predicted(plan, longer, [], here) is None


def test_several_experiments_the_first_comes_first(place, tmp_path):
    """What waits makes room for the next, and comes before it as soon as it is ready."""
    stages = PLAN[PLAN.index("stages:") :].splitlines()[1:]
    grid, main, long = stages[0], stages[1:-1], stages[-1]
    turned = PLAN[: PLAN.index("  - {name: grid")] + "\n".join([*main, grid, ""])
    for name, text in (("words", turned), ("more", PLAN[: PLAN.index("  - {name: grid")] + long + "\n")):
        (tmp_path / name).mkdir()
        text = text.replace("experiment: words", f"experiment: {name}").replace("keep: true", "seeds: [0, 1]")
        (tmp_path / name / "plan.yaml").write_text(text)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        real = runs.do
        patch.setattr(
            runs, "do", lambda plan, run, here: said.append(f"{plan.experiment}: {run.name}") or real(plan, run, here)
        )
        here = Bench(data=place / "data", out=tmp_path / "out")
        plans = [load(tmp_path / "words"), load(tmp_path / "more")]
        assert work_through(plans, here, only="main,grid-gla-low,long-yaad-s0") == [
            "main-gla-s0 waits for the runs that choose its learning rate (grid)"
        ]
        assert said == ["words: grid-gla-low-s0", "more: long-yaad-s0"]
        assert work_through(plans, here) == []
    assert said[2:] == ["words: grid-gla-high-s0", "words: main-gla-s0", "more: long-yaad-s1"]


def test_what_will_be_read_is_looked_for_first(tmp_path):
    """Not after the training."""
    script = Path(__file__).parents[2] / "experiments" / "run.py"
    command = [
        sys.executable,
        str(script),
        "small_books",
        "--only",
        "main-yaad",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path),
    ]
    for needed in ("books_short", "wikitext2_short"):
        told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert (
            told.returncode == 1 and f"there is no {tmp_path / needed}: python experiments/prepare.py {needed}" in told.stderr
        )
        (tmp_path / needed).mkdir()


def test_an_experiment_that_is_not_there_is_told_in_one_line(tmp_path):
    script = Path(__file__).parents[2] / "experiments" / "run.py"
    told = subprocess.run(
        [sys.executable, str(script), "small,smaller", "--list"], capture_output=True, text=True, cwd=tmp_path
    )
    assert told.returncode == 1 and told.stderr.startswith("run.py: ") and told.stderr.count("\n") == 1
    assert "smaller holds no plan.yaml" in told.stderr


def test_what_is_kept_of_results_read_bit_by_bit(done, tmp_path):
    """The whole ones, and of one that was never read whole the last."""
    keep = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "run.py"))["keep"]
    plan = dataclasses.replace(done[0], folder=tmp_path / "kept")
    here = Bench(data=tmp_path, out=tmp_path / "out")
    main = done[2][2]
    half = [main | {"status": "unread", "reads": main["reads"][:number]} for number in range(3)]
    for row in (*half, main, *(row | {"run": "other", "key": "other"} for row in half)):
        results.add(here.files(plan)[1], row)
    for _ in range(2):
        keep(plan, here)
        kept = results.rows(here.files(plan)[0])
        assert [(row["run"], row["status"], len(row["reads"])) for row in kept] == [
            (main["run"], "finished", 5),
            ("other", "unread", 2),
        ]
    assert results.latest(kept)["other"]["valid"] == main["valid"]
    told = page(plan, [half[1] | {"said": "trained; test/long/4x and what follows are to be read"}], [])
    assert f"- `{main['run']}`: trained; test/long/4x" in told and "valid/sliding/1x" in told


def test_no_room_halves_the_micro_batch(place, monkeypatch):
    real, sizes = runs.train_run, []

    def crowded(config, resume):
        sizes.append(config.engine.micro_batch)
        if len(sizes) == 1:
            raise torch.OutOfMemoryError("no room")
        return real(config, resume)

    monkeypatch.setattr(runs, "train_run", crowded)
    assert work_through([load(place / "words")], bench(place, "crowded"), only="grid-gla-low") == []
    (row,) = results.rows(place / "crowded" / "words" / "results.jsonl")
    assert sizes == [None, 1] and row["micro_batch"] == 1


def test_a_claim_is_held_by_one(tmp_path):
    with runs.claimed(tmp_path / "run") as first, runs.claimed(tmp_path / "run") as second:
        assert first and not second
    with runs.claimed(tmp_path / "run") as again:
        assert again


def test_the_page_is_made_of_the_results(done, tmp_path):
    plan, _, rows = done
    drawn = pictures(plan, rows, tmp_path)
    text = page(plan, rows[:-1], drawn)
    assert {path.name for path in drawn} == {
        "words-main-curves.png",
        "words-main-places.png",
        "words-main-needles_gla.png",
        "words-long-curves.png",
    }
    assert all(path.with_suffix(".svg").exists() and matplotlib.image.imread(path).std() > 0.02 for path in drawn)
    # the same file from the same numbers
    again = pictures(plan, rows, tmp_path / "again")
    for one, other in zip(sorted(drawn), sorted(again), strict=True):
        assert one.with_suffix(".svg").read_bytes() == other.with_suffix(".svg").read_bytes()
    main = rows[2]
    assert f"{main['valid']['bits_per_byte']:.3f}" in text and f"{main['reads'][0]['bits_per_byte']:.3f}" in text
    assert f"{main['reads'][1]['places'][-1]['bits_per_byte']:.3f}" in text and "| 32-64 |" in text
    # another text's loss has a column of its own, and what was answered a table
    assert "other:test/sliding/1x" in text and f"{main['reads'][2]['bits_per_byte']:.3f}" in text
    lambada = main["reads"][3]["tasks"]["lambada"]
    assert "| lambada, acc % |" in text and f"| {lambada['ppl'][0]:.0f} | {100 * lambada['acc'][0]:.1f} |" in text
    assert "| model, % found | s-niah-1, 600 | s-niah-1, 800 |" in text and "(words-main-needles_gla.png)" in text
    # where rates are tried, they stand in order and the better one is in bold, with a mark at an end of the rates
    rates = sorted(rows[:2], key=lambda row: row["options"]["optim.lr"])
    bits = [row["valid"]["bits_per_byte"] for row in rates]
    cells = [f"**{one:.3f}** †" if one == min(bits) else f"{one:.3f}" for one in bits]
    assert f"| gla | {cells[0]} | {cells[1]} |" in text and "† the best rate tried lies at the end" in text
    assert "Do words rhyme?" in text and "It matters." in text and "![words-main-places](words-main-places.png)" in text
    assert "## Not run\n\n<details><summary>1 of " in text and "\n- `long-yaad-s0`\n" in text
    # one stage alone reads whole texts: there is nothing to put together
    assert "## All of them" not in text
    assert "Everything that was planned was run." in page(plan, rows, drawn)


def test_half_a_line_is_passed_over(tmp_path):
    path = tmp_path / "rows.jsonl"
    results.add(path, {"run": "a", "loss": float("nan")})
    with path.open("a") as handle:
        handle.write('{"run": "b", "lo')
    results.add(path, {"run": "c"})
    assert results.rows(path) == [{"run": "a", "loss": None}, {"run": "c"}]


# reading


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return MirasForCausalLM(MirasConfig.preset("gla-tiny")).eval()


@torch.no_grad()
def test_sliding_windows_predict_every_token_once(place, model):
    tokens = Tokens(place / "data" / "words", "test")
    row = sliding(model, tokens, 64)
    expected, count = 0.0, 0
    for start in range(0, tokens.count - 64, 32):
        window = torch.from_numpy(tokens.read(start, start + 65))[None]
        found = torch.nn.functional.cross_entropy(model(window[:, :-1]).logits[0], window[0, 1:], reduction="none")
        kept = found if start == 0 else found[32:]
        expected, count = expected + float(kept.sum()), count + len(kept)
    assert row["tokens"] == count and row["nats"] == pytest.approx(expected / count, abs=1e-5)
    assert row["bits_per_byte"] == pytest.approx(row["nats"] / (0.693147 * tokens.bytes_per_token), rel=1e-5)


def test_places_add_up(place, model):
    tokens = Tokens(place / "data" / "words", "test")
    row = by_place(model, tokens, 128, 32)
    assert [(place["from"], place["to"]) for place in row["places"]] == [(0, 8), (8, 16), (16, 32), (32, 64), (64, 128)]
    assert sum(place["nats"] * place["tokens"] for place in row["places"]) == pytest.approx(row["nats"] * row["tokens"])
    window = torch.from_numpy(tokens.read(0, 129))[None]
    assert row["windows"] == (tokens.count - 1) // 128
    assert surprises(model, window[:, :-1], window[:, 1:]).shape == (1, 128)


# the clock


def test_the_watch():
    times = iter([0.0, *range(1, 100)])
    config = TrainConfig(run=RunConfig(seconds=20, finish=50), save=SaveConfig(seconds=4))
    seen = watch.Watch(config, began=0.0, step=0, clock=lambda: next(times))
    verdicts = [seen.after(step) for step in range(1, 21)]
    assert [step for step, (_, due) in enumerate(verdicts, 1) if due] == [4, 8, 12, 16, 20]
    # 1200 steps of a second each: known after eight steps that are not the first three
    assert [(step, said) for step, (said, _) in enumerate(verdicts, 1) if said] == [(11, "slow"), (20, "time")]
    assert "would take 1200 seconds, and run.finish is 50" in seen.said
    assert not watch.Watch(TrainConfig(), 0.0, 0).active


# texts


def test_enwik8_is_split_by_bytes(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(range(32, 127)))
    enwik8(tmp_path / "raw", tmp_path / "shards", {"train": 50, "valid": 30, "test": 15})
    found = {split: Tokens(tmp_path / "shards", split) for split in ("train", "valid", "test")}
    assert {split: tokens.count for split, tokens in found.items()} == {"train": 51, "valid": 31, "test": 16}
    assert found["test"].read(0, 15).tolist() == list(range(112, 127)) and found["test"].read(15, 16).tolist() == [258]
    with pytest.raises(ValueError, match="has 95 bytes instead of 96"):
        enwik8(tmp_path / "raw", tmp_path / "other", {"train": 96})


def test_the_short_enwik8_ends_with_a_whole_character(tmp_path):
    sizes = {"train": 8, "valid": 8, "test": 8}
    (tmp_path / "raw").write_text("aäaäaaaaaaäaaaaaäaaa")
    enwik8(tmp_path / "raw", tmp_path / "shards", sizes, held=5)
    found = {split: Tokens(tmp_path / "shards", split) for split in sizes}
    whole = {split: bytes(tokens.read(0, tokens.count - 1).tolist()).decode() for split, tokens in found.items()}
    assert whole == {"train": "aäaäaa", "valid": "aaaa", "test": "aaaä"}


def test_shards_of_another_tokenizer_are_refused(place):
    from miras.data.corpus import prepared

    meta = Path(place / "data" / "words" / "meta.json")
    kept = meta.read_text()
    meta.write_text(kept.replace('"tokenizer": "bytes"', '"tokenizer": "other"'))
    with pytest.raises(ValueError, match="were made by another tokenizer"):
        prepared(meta.parent, Bytes())
    meta.write_text(kept)
