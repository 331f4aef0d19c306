"""Our local scoring is lm-eval-harness's: the same likelihood of every choice, the same metrics, from its own definitions."""

import shutil
from pathlib import Path

import pytest
import questions

from miras.eval import TASKS, harness, zero_shot

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval-harness is an extra")

FILES = {
    "lambada": ["lambada/lambada_openai.yaml"],
    "piqa": ["piqa/piqa.yaml"],
    "hellaswag": ["hellaswag/hellaswag.yaml", "hellaswag/utils.py"],
    "winogrande": ["winogrande/default.yaml", "winogrande/preprocess_winogrande.py"],
    "arc_easy": ["arc/arc_easy.yaml"],
    "arc_challenge": ["arc/arc_easy.yaml", "arc/arc_challenge.yaml"],
    "social_iqa": ["siqa/siqa.yaml"],
    "boolq": ["super_glue/boolq/default.yaml"],
}


@pytest.fixture(scope="module")
def definitions(tmp_path_factory):
    """The installed harness's own task definitions, their datasets replaced by local files."""
    where = tmp_path_factory.mktemp("definitions")
    rows = {task: [questions.as_in_the_harness(task, row) for row in rows] for task, rows in questions.TEXTS.items()}
    data = questions.write(where / "data", rows)
    for task, files in FILES.items():
        (where / task).mkdir()
        for number, file in enumerate(files):
            source = Path(lm_eval.__file__).parent / "tasks" / file
            target = where / task / source.name
            if source.suffix == ".py" or (task == "arc_challenge" and number == 0):
                shutil.copy(source, target)
                if source.suffix == ".yaml":
                    # included by the next one alone: it is no task here
                    target.write_text("\n".join(line for line in target.read_text().splitlines() if "task: " not in line))
                continue
            kept = [line for line in source.read_text().splitlines() if not line.startswith(("dataset_path", "dataset_name"))]
            splits = "".join(f"    {split}: {data / task}.jsonl\n" for split in ("train", "validation", "test"))
            local = (
                f"\ndataset_path: json\ndataset_name: null\ndataset_kwargs:\n  cache_dir: {where / 'cache'}\n  data_files:\n"
            )
            target.write_text("\n".join(kept) + local + splits)
    return where


@pytest.fixture(scope="module")
def both(model, tokenizer, definitions, tmp_path_factory):
    folder = questions.write(tmp_path_factory.mktemp("ours"), questions.TEXTS)
    theirs = harness(model, tokenizer, definitions=definitions, batch=3)
    return zero_shot(model, tokenizer, folder, batch_tokens=300), theirs


@pytest.mark.parametrize("number", range(len(TASKS)), ids=list(TASKS))
def test_likelihoods_of_every_choice(both, number):
    ours, theirs = (result.tasks[number] for result in both)
    assert ours.task == theirs.task and len(ours.answers) == len(theirs.answers) == len(questions.TEXTS[ours.task.name])
    for mine, its in zip(ours.answers, theirs.answers, strict=True):
        assert mine.gold == its.gold
        assert [one.greedy for one in mine.likelihoods] == [one.greedy for one in its.likelihoods]
        assert [one.value for one in mine.likelihoods] == pytest.approx([one.value for one in its.likelihoods], rel=1e-10)
        assert mine.characters == its.characters or ours.task.name == "winogrande"


def test_metrics_are_those_the_harness_itself_reports(model, tokenizer, definitions, both, monkeypatch):
    """Not recomputed by us: the numbers of ``simple_evaluate``'s own table."""
    told = {}
    inner = lm_eval.simple_evaluate

    def spy(**options):
        found = inner(**{**options, "bootstrap_iters": 10})
        told.update(found["results"])
        return found

    monkeypatch.setattr(lm_eval, "simple_evaluate", spy)
    harness(model, tokenizer, definitions=definitions, batch=2)
    ours, _ = both
    names = {"ppl": "perplexity"}
    for result in ours.tasks:
        table = told[result.task.harness]
        for metric in result.metrics:
            assert table[f"{names.get(metric.name, metric.name)},none"] == pytest.approx(metric.value, rel=1e-10)
            if metric.error is not None:
                assert table[f"{metric.name}_stderr,none"] == pytest.approx(metric.error, rel=1e-9)


def test_long_contexts_are_cut_alike(model, tokenizer, definitions, tmp_path):
    folder = questions.write(tmp_path / "ours", questions.TEXTS)
    ours = zero_shot(model, tokenizer, folder, ["boolq"], context=20)
    theirs = harness(model, tokenizer, ["boolq"], definitions=definitions, context=20)
    whole = zero_shot(model, tokenizer, folder, ["boolq"], context=None)
    values = [
        [one.value for answer in result.tasks[0].answers for one in answer.likelihoods] for result in (ours, theirs, whole)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-10) and values[0] != pytest.approx(values[2], rel=1e-4)


def test_the_first_questions_alone(model, tokenizer, definitions):
    found = harness(model, tokenizer, ["piqa"], definitions=definitions, limit=1)
    assert len(found.tasks[0].answers) == 1
    with pytest.raises(ValueError, match="limit must be 1 or more, got 0"):
        harness(model, tokenizer, ["piqa"], definitions=definitions, limit=0)
