import json
import math
import sys

import pytest
import torch
from matplotlib import image

import catalogue
from miras import Spec, __version__, presets
from miras.cli import main
from miras.commands import recall as recall_command
from miras.lab import combinations as lab_combinations
from miras.lab.recall import Settings, level
from miras.lab.stream import MAGNITUDE, draw
from miras.lab.tables import Table, markdown, stacked
from miras.lab.untrained import initial_weights, read_back

NAMES = list(presets.PRESETS)
TINY = ["--pairs", "8", "--dim", "4", "--seeds", "2", "--outliers", "0,0.25"]


def output_of(capsys, *argv):
    assert main(list(argv)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def error_of(capsys, *argv):
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("\n") and err.count("\n") == 1
    return code, err.strip()


# table and describe


def test_version(capsys):
    with pytest.raises(SystemExit) as leave:
        main(["--version"])
    assert leave.value.code == 0 and capsys.readouterr().out == f"miras {__version__}\n"


def test_table_has_every_preset_and_its_write_rule_on_one_line(capsys):
    lines = output_of(capsys, "table").splitlines()
    for name in NAMES:
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert presets.get(name).describe().write.text in line
    deep = lines[lines.index("Deep memory") + 1 :]
    assert [line.split()[0] for line in deep] == ["ttt_mlp", "titans_lmm", "moneta", "yaad", "memora"]


def test_markdown_table(capsys):
    lines = output_of(capsys, "table", "--markdown").splitlines()
    cells = [[cell.strip() for cell in line.replace(r"\|", "\0").strip("|").split("|")] for line in lines]
    assert {len(row) for row in cells} == {6}
    rules = {row[0]: row[-1].replace("\0", "|").strip("`") for row in cells}
    assert all(rules[name] == presets.get(name).describe().write.text for name in NAMES)


def test_a_narrow_terminal_gets_every_cell():
    table = Table(["a", "b", "c"], {"group": [["one", "two", "three"]]}, code=True)
    assert all(cell in stacked(table) for cell in ("group", "one", "two", "three"))
    assert markdown(table).splitlines()[-1] == "| one | two | `three` |"


def test_json_table_reads_back(capsys):
    read = [Spec.from_dict(values) for values in json.loads(output_of(capsys, "table", "--json"))]
    assert read == [presets.get(name) for name in NAMES] and [spec.name for spec in read] == NAMES


def test_combinations_give_every_reason_there_is(capsys):
    shown = output_of(capsys, "table", "--combinations")
    reasons = {reason for _, refusals in catalogue.combinations() for _, _, reason in refusals}
    assert all(reason in shown for reason in reasons)
    tried = lab_combinations.combinations()
    assert {refusal.reason for refusal in tried.refusals} == reasons
    triples = [(one, other, reason) for one, others, reason in tried.refusals for other in others]
    assert len(set(triples)) == len(triples)
    assert f"{tried.meaningful} have a meaning and {tried.refused} are refused" in shown
    assert json.loads(output_of(capsys, "table", "--combinations", "--json"))["refused"] == tried.refused


def test_every_class_of_part_takes_part_in_the_combinations():
    for room, listed in (("MEMORIES", "memory"), ("BIASES", "bias"), ("RETENTIONS", "retention"), ("ALGORITHMS", "algorithm")):
        kinds = {type(part) for part in getattr(catalogue, room)}
        assert {type(part) for part in lab_combinations.parts(getattr(lab_combinations, listed))} == kinds


@pytest.mark.parametrize("name", NAMES)
def test_describe(capsys, name):
    description = presets.get(name).describe()
    assert output_of(capsys, "describe", name) == f"{description}\n"
    assert output_of(capsys, "describe", name, "--latex") == f"{description.latex}\n"
    assert Spec.from_dict(json.loads(output_of(capsys, "describe", name, "--json"))) == presets.get(name)


def test_describe_with_parameters(capsys):
    shown = output_of(capsys, "describe", "moneta", "--set", "p=2", "--set", "link=exact", "--set", "anchor=true", "--json")
    assert Spec.from_dict(json.loads(shown)) == presets.moneta(p=2, link="exact", anchor=True)
    assert Spec.from_dict(json.loads(output_of(capsys, "describe", "memora", "--set", "c=null", "--json"))) == presets.memora()


# errors


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "COMMAND"),
        (["sing"], "sing"),
        (["table", "--json", "--markdown"], "not allowed"),
        (["describe", "nope"], "known are retnet, transformer"),
        (["describe", "moneta", "--set", "z=1"], "--set: moneta has no argument 'z', it has p, q, link, anchor"),
        (["describe", "deltanet", "--set", "z=1"], "it has none"),
        (["describe", "moneta", "--set", "p"], "NAME=VALUE"),
        (["describe", "moneta", "--set", "p=x"], "--set: p is a number, got 'x'"),
        (["describe", "moneta", "--set", "p=0.5"], "p >= 1"),
        (["describe", "moneta", "--set", "link=x"], "one of paper, exact"),
        (["describe", "delta_product", "--set", "n=2.5"], "an integer"),
        (["describe", "yaad", "--set", "anchor=2"], "true or false"),
        (["describe", "memora", "--set", "c=x"], "a number or none"),
        (["recall", "--pairs", "0"], "at least 1, got 0"),
        (["recall", "--pairs", "x"], "--pairs"),
        (["recall", "--dim", "1"], "at least 2, got 1"),
        (["recall", "--seeds", "0"], "at least 1, got 0"),
        (["recall", "--seed", "-1"], "got -1"),
        (["recall", "--outliers", "2"], "less than 1, got 2"),
        (["recall", "--outliers", "0.1,0.1"], "differ"),
        (["recall", "--outliers", "nan"], "nan"),
        (["recall", "--outliers", "x"], "such as 0,0.05,0.1"),
        (["recall", "--outliers", "0.9", "--pairs", "2"], "leaves none of 2 pairs"),
        (["recall", "--presets", "nope"], "known are retnet"),
        (["recall", "--presets", ","], "at least one preset"),
        (["recall", "--presets", "hgrn2"], "no key can be given to it"),
    ],
)
def test_errors_are_one_line(capsys, argv, words):
    code, line = error_of(capsys, *argv)
    assert (
        code == 2 and line.startswith("miras: ") and words in line.replace(" (values are standardised over the channels)", "")
    )


def test_a_file_where_the_folder_should_be(capsys, tmp_path):
    (tmp_path / "taken").write_text("")
    code, line = error_of(capsys, "recall", *TINY, "--out", str(tmp_path / "taken"))
    assert code == 2 and "taken" in line


@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_a_missing_extra_says_what_to_install(capsys, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert error_of(capsys, "recall") == (2, f"miras recall needs {package}: pip install 'miras-torch[cli]'")


def test_interrupted(capsys, monkeypatch, tmp_path):
    def interrupt(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(recall_command, "with_progress", interrupt)
    assert error_of(capsys, "recall", "--out", str(tmp_path)) == (130, "miras: interrupted")
    assert list(tmp_path.iterdir()) == []


# recall


def recall(capsys, folder, *argv):
    shown = output_of(capsys, "recall", *TINY, "--out", str(folder), *argv)
    return shown, json.loads((folder / "recall.json").read_text())


def numbers_in(values):
    if isinstance(values, dict | list):
        return [n for value in (values.values() if isinstance(values, dict) else values) for n in numbers_in(value)]
    return [values] if isinstance(values, int | float) else []


def test_recall_of_all_presets(capsys, tmp_path):
    shown, numbers = recall(capsys, tmp_path, "--presets", "all", "--outliers", "0,0.25,0.5")
    assert "hgrn2 is left out" in shown
    assert list(numbers["presets"]) == [name for name in NAMES if name != "hgrn2"]
    assert {"miras", "torch", "python", "settings", "outlier_magnitude", "tuned_at", "grid", "ages", "presets"} == set(numbers)
    assert numbers["tuned_at"] == 0.25 and numbers["settings"]["pairs"] == 8
    for name, found in numbers["presets"].items():
        assert Spec.from_dict(found["spec"]).name == name
        assert [level["share"] for level in found["levels"]] == [0.0, 0.25, 0.5]
        assert all(-1.001 <= level["cosine"] <= 1.001 and level["lost"] == 0 for level in found["levels"])
        assert all(len(level["by_age"]) == len(numbers["ages"]) == 8 for level in found["levels"])
    assert all(map(math.isfinite, numbers_in(numbers)))
    assert numbers["presets"]["transformer"]["chosen"]["scale"] in numbers["grid"]["scale"]


def test_recall_writes_a_picture_and_nothing_else(capsys, tmp_path):
    shown, _ = recall(capsys, tmp_path, "--presets", "gla,yaad")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recall.json", "recall.png"]
    picture = image.imread(tmp_path / "recall.png")
    assert picture.shape[0] > 500 and picture.shape[1] > 1000 and picture.std() > 0.05
    last = shown.splitlines()[-1]
    assert str(tmp_path / "recall.png") in last and str(tmp_path / "recall.json") in last and "miras describe" in last


def test_recall_repeats_for_a_seed(capsys, tmp_path):
    arguments = ["--presets", "deltanet,titans_lmm,memora"]
    _, one = recall(capsys, tmp_path / "one", *arguments)
    _, again = recall(capsys, tmp_path / "again", *arguments)
    _, other = recall(capsys, tmp_path / "other", *arguments, "--seed", "1")
    assert one == again and one["presets"] != other["presets"]


def test_shares_differ_by_what_is_added():
    stream = draw(pairs=20, repeats=3, dim=16, shares=(0.0, 0.1, 0.5), seed=0)
    assert stream.noisy.sum(1).tolist() == [[0] * 3, [2] * 3, [10] * 3]
    assert bool((stream.noisy[1] <= stream.noisy[2]).all())
    size = stream.seen.square().mean(-1).sqrt()
    torch.testing.assert_close(size, torch.where(stream.noisy, MAGNITUDE, 1.0))
    torch.testing.assert_close(stream.seen[0], stream.values)
    torch.testing.assert_close(stream.keys.norm(dim=-1), torch.ones(20, 3))


def cosines(name, point, *, pairs, share=0.0, dim=16, seeds=4):
    """Cosine of every pair, the oldest first, and which are clean, at one setting of the gates."""
    spec = presets.get(name)
    stream = draw(pairs=pairs, repeats=seeds, dim=dim, shares=(share,), seed=3)
    read = read_back(spec, [point], stream.keys, stream.seen, initial_weights(spec, seeds, dim, 3))
    return torch.cosine_similarity(read[0], stream.values, dim=-1), ~stream.noisy[0]


def test_decay_forgets_the_oldest_first():
    similar, _ = cosines("gla", {"decay": 0.1}, pairs=64)
    assert similar[-8:].mean() > similar[:8].mean() + 0.3
    similar, _ = cosines("gla", {"decay": 0.0}, pairs=64)
    assert abs(similar[-8:].mean() - similar[:8].mean()) < 0.15


def test_within_capacity_the_exact_solution_recalls_everything():
    similar, _ = cosines("mesa", {"step": 3.0, "decay": 0.0}, pairs=8)
    assert similar.min() > 0.9


def test_huber_holds_where_l2_is_swept_away():
    kept = {}
    for name, point in (("ttt_mlp", {"step": 0.3}), ("yaad", {"step": 0.3, "decay": 0.0, "delta": 1.0})):
        before, _ = cosines(name, point, pairs=32)
        after, clean = cosines(name, point, pairs=32, share=0.2)
        kept[name] = float(after[clean].mean() / before.mean())
    assert kept["yaad"] > 0.8 > 0.5 > kept["ttt_mlp"]


def test_models_with_needs_of_their_own_fall_back_on_the_delta_rule():
    delta, _ = cosines("deltanet", {"step": 0.75}, pairs=24)
    decoupled, _ = cosines("rwkv7", {"step": 0.75, "decay": 0.0}, pairs=24)
    # two steps of a half on one pair
    twice, _ = cosines("delta_product", {"step": 0.5, "decay": 0.0}, pairs=24)
    torch.testing.assert_close(decoupled, delta)
    torch.testing.assert_close(twice, delta)
    outer, _ = cosines("dfw", {"decay": 0.1}, pairs=24)
    torch.testing.assert_close(outer, cosines("gla", {"decay": 0.1}, pairs=24)[0])


@pytest.mark.parametrize("name", ["ttt_mlp", "moneta", "memora"])
def test_initial_weights_have_unit_scale(name):
    spec = presets.get(name)
    for weight in initial_weights(spec, 4, 16, 0):
        read = spec.retention.start(weight[None]).weight
        assert read.std() == pytest.approx(1, rel=0.1) if name != "memora" else read.mean() == pytest.approx(1)


def test_ages_cover_every_pair_once():
    for pairs in (1, 3, 8, 13, 128):
        ages = Settings(pairs=pairs, outliers=(0.0,)).ages
        assert [age for first, last in ages for age in range(first, last + 1)] == list(range(1, pairs + 1))


def test_ages_count_from_the_last_pair():
    settings = Settings(pairs=8, seeds=2, outliers=(0.0,))
    values = torch.randn(8, 2, 4)
    read = torch.where(torch.arange(8)[:, None, None] == 7, values, 0.0)
    read[0] = torch.nan
    found = level(0.0, read, values, torch.ones(8, 2, dtype=torch.bool), settings)
    assert found.by_age == pytest.approx((1, *[0] * 7)) and found.cosine == pytest.approx(1 / 8)
    assert found.lost == 2 and found.relative_error == pytest.approx(7 / 8)
