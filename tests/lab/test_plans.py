"""Plans: what they unfold into, what they refuse, and that the project's own keep their rules."""

import functools
import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from miras.hf import MirasConfig, MirasForCausalLM
from miras.lab.plan_file import Read, load
from miras.train.models import model_changes

ROOT = Path(__file__).parents[2] / "experiments"
OWN = sorted(path.parent.name for path in ROOT.glob("*/plan.yaml"))
PLAN = """
experiment: words
data: words
common: {model: {layers: 1}, optim: {warmup: 0.1}}
models:
  gla: {model: {name: gla-tiny}}
  yaad: {model: {name: yaad-tiny}}
  sharp: {rate_of: yaad, model: {name: yaad-tiny, choices: [form=norm]}}
stages:
  - {name: grid, tokens: 1e3, models: [gla, yaad], variants: {low: {optim: {lr: 1e-3}}, high: {optim: {lr: 1e-2}}}}
  - {name: main, tokens: 2e3, rate: grid, seeds: [0, 1], reads: [valid/sliding, test/long/4x]}
tiny: {model: {dim: 16}}
"""


def written(folder, text=PLAN):
    (folder / "words").mkdir(exist_ok=True)
    (folder / "words" / "plan.yaml").write_text(text)
    return folder / "words"


@functools.cache
def built(config):
    """The parameters of a configured model beside its embedding."""
    model = MirasConfig.preset(config.name, **model_changes(config))
    with torch.device("meta"):
        return MirasForCausalLM(model).num_parameters() - model.vocab_size * model.hidden_size


def body(run):
    return built(run.config({}).model)


def test_a_plan_unfolds_in_order_seeds_outermost(tmp_path):
    plan = load(written(tmp_path))
    grid, main = plan.of_stage("grid"), plan.of_stage("main")
    assert [run.name for run in grid] == ["grid-gla-low-s0", "grid-gla-high-s0", "grid-yaad-low-s0", "grid-yaad-high-s0"]
    assert [run.name for run in main] == [f"main-{model}-s{seed}" for seed in (0, 1) for model in ("gla", "yaad", "sharp")]
    assert (
        grid[1].options["optim.lr"] == 0.01 and grid[1].options["optim.tokens"] == 1000 and grid[1].config({}).model.layers == 1
    )
    assert (
        main[2].rate_of == "yaad"
        and main[0].rate_of == "gla"
        and [str(read) for read in main[0].reads]
        == [
            "valid/sliding/1x",
            "test/long/4x",
        ]
    )
    assert load(plan.folder, tiny=True).runs[0].config({}).model.dim == 16 and plan.runs[0].config({}).model.dim is None


def test_a_key_says_what_is_computed_and_nothing_else(tmp_path):
    first = load(written(tmp_path)).runs
    again = load(written(tmp_path, PLAN.replace("common: {", "common: {engine: {tf32: true}, save: {seconds: 9}, "))).runs
    other = load(written(tmp_path, PLAN.replace("warmup: 0.1", "warmup: 0.2"))).runs
    assert [run.key for run in first] == [run.key for run in again] and len({run.key for run in first}) == len(first)
    assert not {run.key for run in first} & {run.key for run in other}


def test_reads():
    assert Read.of("test/long/16x").tokens(100) == 1600 and Read.of("test/long/4096").tokens(100) == 4096
    assert Read.of("valid/sliding").tokens(100) == 100
    for text in ("test/long/16x", "valid/sliding/1x", "wikitext2:test/sliding/1x", "zero-shot", "needles"):
        assert str(Read.of(text)) == text
    assert Read.of("wikitext2:test/sliding").data == "wikitext2"
    for text in ("train/sliding", "test/backwards", "test/long/many", "test"):
        with pytest.raises(ValueError, match=r"a read is zero-shot, needles, or \[TEXT:\]SPLIT/sliding"):
            Read.of(text)


WRONG = {
    "stage False: a stage needs a name that is text": PLAN.replace("name: main", "name: off"),
    "no option model.depth, did you mean model": PLAN.replace("layers: 1", "depth: 1"),
    "no key 'seed', did you mean seeds": PLAN.replace("seeds: [0, 1]", "seed: 1"),
    "no model glaa, there are gla, yaad, sharp": PLAN.replace("models: [gla, yaad]", "models: [glaa]"),
    "main-gla-s0, main-sharp-s0, main-yaad-s0 is planned twice": PLAN.replace("seeds: [0, 1]", "seeds: [0, 0]"),
    "a plan needs data": PLAN.replace("data: words\n", ""),
    "optim.lr is a number or none, got 'fast'": PLAN.replace("lr: 1e-3", "lr: fast"),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_a_plan_refuses(message, tmp_path):
    with pytest.raises(ValueError) as error:
        load(written(tmp_path, WRONG[message]))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", OWN)
def test_models_that_are_compared_are_equally_large(name):
    """Within 3 % of each other, embeddings aside, in every stage of every plan; and every model can be built."""
    plan = load(ROOT / name)
    sizes = {}
    for run in plan.runs:
        sizes[run.stage, run.model] = body(run)
    for stage in plan.stages:
        own = [size for (where, _), size in sizes.items() if where == stage]
        assert max(own) / min(own) < 1.03, (stage, own)


@pytest.mark.parametrize("name", OWN)
def test_models_that_are_compared_train_alike(name):
    """The same tokens, tokens a step and schedule in a stage; where rates are tried, the same ones for every model."""
    plan = load(ROOT / name)
    for stage in plan.stages:
        own = plan.of_stage(stage)
        configs = [run.config({}) for run in own]
        assert (
            len({config.optim.tokens for config in configs})
            == len({config.data.batch * config.data.length for config in configs})
            == 1
        )
        assert len({(config.optim.warmup, config.optim.final, config.optim.weight_decay) for config in configs}) == 1
        rates = {
            model: sorted(str(run.options.get("optim.lr")) for run in runs if run.seed == own[0].seed)
            for model, runs in itertools.groupby(sorted(own, key=lambda run: run.model), key=lambda run: run.model)
        }
        assert len({tuple(found) for found in rates.values()}) == 1, stage


def test_a_list_may_be_read_in_part():
    """Piped into head, say."""
    command = [sys.executable, str(ROOT / "run.py"), "small", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listed:
        listed.stdout.close()
        assert listed.stderr.read() == b"" and listed.wait() == -signal.SIGPIPE


def test_hafiza_is_what_the_kept_results_call_an_anchored_ttt_linear():
    """The same parameters from the same seed, and the same logits."""
    run = next(run for run in load(ROOT / "small").runs if run.name == "surroundings-ttt_linear-anchored-s0")
    config = run.config({}).model
    found = []
    for made in (MirasConfig.preset(config.name, **model_changes(config)), MirasConfig.preset("hafiza-600k")):
        torch.manual_seed(0)
        model = MirasForCausalLM(made)
        found.append((model.state_dict(), model(torch.arange(80).view(2, 40)).logits))
    (one, first), (two, second) = found
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one) and torch.equal(first, second)


def test_the_enwik8_plan_has_what_it_is_for():
    plan = load(ROOT / "enwik8")
    nine = ["transformer", "gla", "deltanet", "gated_deltanet", "ttt_linear", "titans_lmm", "moneta", "yaad", "memora"]
    assert [(run.model, run.seed) for run in plan.of_stage("main")] == [(name, seed) for seed in (0, 1) for name in nine]
    assert plan.stages["main"] == "the nine models, each at its learning rate"
    assert [run.model for run in plan.of_stage("hybrids")] == ["moneta-h", "yaad-h", "memora-h"]
    config = plan.of_stage("main")[0].config({})
    assert config.data.length == 2048 and abs(config.steps * 32 * 2048 / 150e6 - 1) < 0.01
    assert min(body(run) for run in plan.of_stage("main")) > 25e6 and max(body(run) for run in plan.of_stage("main")) < 45e6


@pytest.mark.parametrize("name", OWN)
def test_every_model_of_every_plan_can_learn(name):
    """At its smallest: a loss and gradients that are finite, and not zero in its memory's own parameters."""
    small = {"layers": 1, "dim": 16, "heads": 2, "inner": 16, "window": 8, "vocab_size": 259}
    ids = torch.arange(40).view(2, 20) % 7
    for run in {run.model: run for run in load(ROOT / name).runs}.values():
        config = run.config({f"model.{key}": value for key, value in small.items()})
        torch.manual_seed(0)
        model = MirasForCausalLM(MirasConfig.preset(config.model.name, **model_changes(config.model)))
        model(ids, labels=ids).loss.backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
        assert all(grad is not None and grad.isfinite().all() for grad in gradients.values()), run.name
        assert all(grad.abs().max() > 0 for key, grad in gradients.items() if ".mixer." in key and "proj" in key), run.name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "nothing"], "no run of enwik8 begins with 'nothing': --list names them"),
        (["--only", "rates,nothing"], "no run of enwik8 begins with 'nothing': --list names them"),
        (["--data", "nowhere"], "there is no nowhere/enwik8: python experiments/prepare.py enwik8 makes it"),
    ],
)
def test_what_no_worker_could_do_is_refused_before_anything_starts(options, said):
    done = subprocess.run([sys.executable, str(ROOT / "run.py"), "enwik8", *options], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == f"run.py: {said}\n"
