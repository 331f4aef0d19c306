import dataclasses

import pytest
import yaml

from miras.cli import parser
from miras.train.config import TrainConfig
from miras.train.models import model_changes
from miras.train.options import build, options_of, refuse_unknown, to_dict


def config(*argv):
    """As ``miras train`` has it."""
    arguments, unknown = parser().parse_known_args(["train", *argv])
    refuse_unknown(arguments.parser, unknown)
    return build(TrainConfig, arguments)


def test_nothing_given_is_the_defaults():
    assert config() == TrainConfig()


def test_the_command_line_wins_over_files_and_the_last_file_over_the_first(tmp_path):
    (tmp_path / "a.yaml").write_text("optim:\n  lr: 3e-3\n  steps: 10\ndata:\n  length: 64\nlog:\n  trackers: [tensorboard]\n")
    (tmp_path / "b.toml").write_text('[optim]\nsteps = 20\n[data]\nlength = 128\ntokenizer = "some/folder"\n')
    mine = config("--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.toml"), "--data.length", "256")
    assert (mine.optim.lr, mine.optim.steps, mine.data.length) == (3e-3, 20, 256)
    assert mine.data.tokenizer == "some/folder" and mine.log.trackers == ("tensorboard",)


def test_values_of_every_type():
    mine = config(
        "--optim.tokens=15e9",
        "--engine.compile",
        "--data.isolate",
        "off",
        "--model.layers",
        "none",
        "--log.trackers",
        "wandb, trackio",
    )
    assert mine.optim.tokens == 15_000_000_000 and mine.engine.compile and not mine.data.isolate
    assert mine.model.layers is None and mine.log.trackers == ("wandb", "trackio")
    assert mine.steps == -(-15_000_000_000 // (4 * 256))


def test_a_choice_may_be_called_none():
    """No gate on the output is one thing, the preset's own gate another."""
    bare = config("--model.name", "yaad-tiny", "--model.output_gate", "none", "--model.convolution", "0").model
    assert model_changes(bare) == {"output_gate": "none", "conv_kernel": 0}
    assert model_changes(dataclasses.replace(bare, output_gate=None, convolution=None)) == {}


@pytest.mark.parametrize("text", ["[p=2.8, link=exact]", "p=2.8,link=exact"])
def test_a_list_may_be_written_as_in_a_file(text):
    assert config("--model.choices", text).model.choices == ("p=2.8", "link=exact")


WRONG = [
    (("--import", "mine"), r"--import stands before the command: miras --import MODULE train \.\.\."),
    (("yaad-tiny",), r"miras train takes options alone, got yaad-tiny: did you mean --model\.name yaad-tiny\?"),
    (("--optim.lrr", "1"), r"no option --optim\.lrr, did you mean --optim\.lr\? \(miras train --help lists them\)"),
    (("--learning_rate", "1"), r"no option --learning_rate, did you mean --optim\.lr\?"),
    (("--batch_size", "1"), r"no option --batch_size, did you mean --data\.batch\?"),
    (("--steps", "1"), r"no option --steps, did you mean --optim\.steps\?"),
    (("--optim.steps", "many"), r"--optim\.steps is an integer, got 'many'"),
    (("--optim.steps", "1.5"), r"--optim\.steps is an integer, got '1\.5'"),
    (("--optim.steps", "0"), r"optim\.steps must be > 0, got 0"),
    (("--model.output_gate", "relu"), r"--model\.output_gate is one of silu, sigmoid, none or null, got 'relu'"),
    (("--engine.parallel", "zero"), r"--engine\.parallel is one of ddp, fsdp, got 'zero'"),
    (("--engine.compile", "perhaps"), r"--engine\.compile is true or false, got 'perhaps'"),
    (("--log.trackers", "paper"), r"log\.trackers: 'paper' is none of tensorboard, wandb, trackio"),
    (("--optim.warmup", "2"), r"optim\.warmup must lie between 0 and 1, got 2"),
    (("--data.valid_share", "0"), r"data\.valid_share must lie strictly between 0 and 1, got 0"),
    (("--optim.beta1", "-0.1"), r"optim\.beta1 must be 0 or more and less than 1, got -0\.1"),
    (("--optim.beta2", "1"), r"optim\.beta2 must be 0 or more and less than 1, got 1"),
    (("--model.step_sum", "-1"), r"model\.step_sum must be >= 0, got -1"),
    (("--run.seed", "-1"), r"run\.seed must lie between 0 and 2\*\*32 - 1, got -1"),
    (("--config", "none.yaml"), r"no such configuration file: none\.yaml"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_what_is_wrong_is_said_in_one_line(argv, message):
    with pytest.raises(ValueError, match=message):
        config(*argv)


FILES = [
    ("a.yaml", "optim:\n  stepps: 3\n", r"a\.yaml: no option optim\.stepps, did you mean optim\.steps\?"),
    ("a.yaml", "optm:\n  steps: 3\n", r"a\.yaml: no section 'optm', did you mean optim\?"),
    ("a.yaml", "optim:\n  learning_rate: 3e-3\n", r"a\.yaml: no option optim\.learning_rate, did you mean optim\.lr\?"),
    ("a.yaml", "model:\n  name: yaad-tiny\n  name: moneta-tiny\n", r"a\.yaml gives name twice"),
    ("a.yaml", "optim: {lr: 1e-3}\noptim: {steps: 3}\n", r"a\.yaml gives optim twice"),
    ("a.yaml", "optim: 3\n", r"the section optim is not a table of options"),
    ("a.yaml", "- 3\n", "is not a table of sections"),
    ("a.yaml", "optim: {\n", "is not YAML"),
    ("a.toml", "optim = {\n", "is not TOML"),
    ("a.json", "{}", r"is \.yaml, \.yml or \.toml"),
    ("a.yaml", "optim:\n  steps: true\n", r"optim\.steps is an integer, got True"),
    ("a.toml", '[data]\nisolate = "perhaps"\n', r"data\.isolate is true or false, got 'perhaps'"),
]


@pytest.mark.parametrize(("name", "content", "message"), FILES, ids=[message for *_, message in FILES])
def test_files_that_are_wrong(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        config("--config", str(tmp_path / name))


def test_help_names_every_option_with_its_default(capsys):
    with pytest.raises(SystemExit):
        config("--help")
    text = " ".join(capsys.readouterr().out.split())
    for name, (_, _, help) in options_of(TrainConfig).items():
        assert f"--{name} " in text and help.split(";")[0] in text
    assert "steps between checkpoints (an integer; default: 300)" in text
    assert "a number or none; default: none" in text


def test_written_and_read_back(tmp_path):
    mine = config("--data.path", "x", "--log.trackers", "wandb", "--optim.lr", "0.1", "--run.folder", "here")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(mine)))
    assert config("--config", str(tmp_path / "config.yaml")) == mine


def test_peak_rates_by_the_size_in_the_name():
    rates = {
        "yaad-120m": 3e-3,
        "moneta-340m": 1.5e-3,
        "yaad-anchored-760m": 1.25e-3,
        "memora-1.3b": 7e-4,
        "yaad-tiny": 8e-3,
        "out/mine": 4e-3,
    }
    for name, rate in rates.items():
        assert config("--model.name", name).peak == rate
    assert config("--model.name", "yaad-340m", "--optim.lr", "0.5").peak == 0.5


def test_configurations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().optim.steps = 3
