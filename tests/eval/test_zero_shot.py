"""The zero-shot sets from local files: prompts, choices, metrics by hand, and lines that do not fit."""

import copy
import json
import lzma
import math

import pytest
import questions
import torch

from miras.eval import TASKS, Answer, Likelihood, Request, encode_pairs, likelihoods, zero_shot
from miras.eval.items import items_of
from miras.eval.zero_shot import metric_of


@pytest.fixture
def data(tmp_path):
    return questions.write(tmp_path / "data", questions.TEXTS)


def test_a_byte_order_mark_is_no_part_of_the_first_question(data):
    path = data / "piqa.jsonl"
    before = items_of(TASKS["piqa"], data)
    path.write_text("\ufeff" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert items_of(TASKS["piqa"], data) == before


def test_prompts(data):
    pairs = {name: items_of(task, data)[0].pairs for name, task in TASKS.items()}
    assert pairs["lambada"] == (("She put the key in the lock and opened the", " door"),)
    assert pairs["piqa"][1] == ("Question: How to open a jar?\nAnswer:", " Turn the jar to stone. ")
    assert pairs["hellaswag"][1] == (
        "Roof shingle removal: A man is sitting on a roof. He",
        "  rips tiles off.",
    )
    assert pairs["winogrande"][1] == ("Ann knew more than Eve so Eve", " got the hard cases.")
    assert pairs["arc_easy"][2] == ("Question: What is wet?\nAnswer:", " A very long stone")
    assert pairs["social_iqa"][0] == ("Q: Ann ran. Why?\nA:", " late")
    assert pairs["boolq"][1] == (questions.TEXTS["boolq"][0]["passage"] + "\nQuestion: is ethanol a fuel?\nAnswer:", " yes")


def test_metrics_by_hand():
    def answer(values, gold, characters):
        return Answer(likelihoods=tuple(Likelihood(value, False) for value in values), gold=gold, characters=characters)

    answers = [answer([-3.0, -2.0], 1, (1, 1)), answer([-3.0, -2.0], 0, (10, 2)), answer([-2.0, -2.0], 0, (4, 4))]
    assert metric_of("acc", answers).value == pytest.approx(2 / 3)
    assert metric_of("acc_norm", answers).value == 1 and metric_of("acc_norm", answers).error == 0
    spread = math.sqrt(((1 / 3) ** 2 * 2 + (2 / 3) ** 2) / 2 / 3)
    assert metric_of("acc", answers).error == pytest.approx(spread)
    words = [Answer(likelihoods=(Likelihood(value, value > -2),), gold=0, characters=(3,)) for value in (-1.0, -3.0)]
    assert metric_of("ppl", words).value == pytest.approx(math.exp(2)) and metric_of("acc", words).value == 0.5


@pytest.mark.parametrize("batch_tokens", [1, 100, 10000])
def test_batches_change_nothing(model, tokenizer, data, batch_tokens):
    requests = encode_pairs(
        tokenizer, [pair for task in TASKS.values() for item in items_of(task, data) for pair in item.pairs]
    )
    found = likelihoods(model, requests, batch_tokens=batch_tokens)
    for request, likelihood in list(zip(requests, found, strict=True))[::5]:
        before, after = request
        with torch.no_grad():
            logits = model(torch.tensor([[*before, *after]])).logits[0, len(before) - 1 : -1].log_softmax(-1)
        assert likelihood.value == pytest.approx(float(logits[range(len(after)), after].sum()), rel=1e-10)
        assert likelihood.greedy == (logits.argmax(-1).tolist() == list(after))


def test_what_greedy_decoding_gives_is_greedy(model):
    prompt = torch.tensor([[5, 6, 7]])
    out = model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, 3:].tolist()
    other = [*out[:-1], out[-1] + 1]
    found = likelihoods(model, [Request((5, 6, 7), tuple(out)), Request((5, 6, 7), tuple(other))])
    assert [likelihood.greedy for likelihood in found] == [True, False] and found[0].value > found[1].value


def test_spaces_and_empty_contexts(tokenizer):
    with_space, empty = encode_pairs(tokenizer, [("a ", "b"), ("", "b")])
    assert with_space == Request((97,), (32, 98)) and empty == Request((257,), (98,))
    # of a tokenizer for which "<bos>" in a text is the mark
    marking = copy.deepcopy(tokenizer)
    marking.split_special_tokens = False
    assert encode_pairs(marking, [("", "<bos>b")]) == [Request((257,), (98,))]
    with pytest.raises(ValueError, match="leaves no token"):
        encode_pairs(tokenizer, [("a", "")])


def test_packed_files_limits_and_names(model, tokenizer, data):
    whole = zero_shot(model, tokenizer, data, ["piqa", "arc_easy", "piqa"])
    text = (data / "piqa.jsonl").read_bytes()
    (data / "piqa.jsonl").unlink()
    (data / "piqa.jsonl.xz").write_bytes(lzma.compress(text + b"\n"))
    again = zero_shot(model, tokenizer, str(data), ["piqa"], limit=1)
    assert [result.task.name for result in whole.tasks] == ["piqa", "arc_easy"]
    values = [[one.value for one in result.tasks[0].answers[0].likelihoods] for result in (again, whole)]
    assert values[0] == pytest.approx(values[1], rel=1e-10)
    assert len(again.tasks[0].answers) == 1 and again.tasks[0].metrics[0].error is None
    told = whole.to_dict(answers=True)
    assert json.loads(json.dumps(told)) == told and len(told["tasks"][0]["answers"]) == 2
    assert [metric.name for metric in whole.tasks[0].paper] == ["acc"]


def test_one_progress_over_all_tasks(model, tokenizer, data):
    seen = []
    zero_shot(model, tokenizer, data, batch_tokens=200, progress=lambda done, total: seen.append((done, total)))
    pairs = sum(len(item.pairs) for task in TASKS.values() for item in items_of(task, data))
    assert seen[-1] == (pairs, pairs) and len(seen) > 3 and seen == sorted(seen)


def without(field):
    def change(row):
        del row[field]

    return change


def with_value(field, value):
    return lambda row: row.update({field: value})


@pytest.mark.parametrize(
    ("task", "change", "words"),
    [
        ("piqa", without("goal"), "line 2: no field 'goal', which piqa needs; it has sol1, sol2, label"),
        ("piqa", with_value("label", 2), "line 2: the right choice is number 2, of 2"),
        ("piqa", with_value("label", "1"), "line 2: 'label' must be a whole number, got \"1\""),
        ("piqa", with_value("label", True), "line 2: 'label' must be a whole number, got true"),
        ("hellaswag", with_value("label", ""), "line 2: label is '', not a number"),
        ("hellaswag", with_value("endings", [1]), "line 2: 'endings' must be a list of texts"),
        ("winogrande", with_value("sentence", "no blank"), "line 2: the sentence has no blank _"),
        ("winogrande", with_value("answer", "3"), "line 2: answer is '3', not '1' or '2'"),
        ("lambada", with_value("text", "word"), "line 2: the text is one word"),
        ("boolq", with_value("answer", 1), "line 2: 'answer' must be true or false, got 1"),
        ("social_iqa", with_value("label", "0"), "line 2: the right choice is number -1"),
    ],
)
def test_a_line_that_does_not_fit_is_named(data, task, change, words):
    row = dict(questions.TEXTS[task][1])
    change(row)
    (data / f"{task}.jsonl").write_text(json.dumps(questions.TEXTS[task][0]) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ValueError) as told:
        items_of(TASKS[task], data)
    assert words in str(told.value) and f"{task}.jsonl" in str(told.value)


def test_files_that_cannot_be_read(model, tokenizer, data, tmp_path):
    def told(tasks=None, folder=data, **options):
        with pytest.raises(ValueError) as raised:
            zero_shot(model, tokenizer, folder, tasks, **options)
        return str(raised.value)

    assert "unknown task 'mmlu': known are lambada, piqa" in told(["mmlu"])
    assert "no task was named" in told([])
    assert "no such folder" in told(folder=tmp_path / "none")
    assert "holds no lambada.jsonl" in told(["lambada"], folder=tmp_path)
    assert "limit must be 1 or more" in told(limit=0)
    assert "context must be 2 tokens or more, got 1" in told(context=1)
    assert "does not fit a context of 2" in told(["piqa"], context=2)
    (data / "piqa.jsonl").write_text("{\n")
    assert "piqa.jsonl, line 1: not JSON" in told(["piqa"])
    (data / "piqa.jsonl").write_text("[1]\n")
    assert "line 1: no object" in told(["piqa"])
    (data / "piqa.jsonl").write_text("\n")
    assert "holds no question" in told(["piqa"])
    (data / "piqa.jsonl").write_bytes(b"\xff\xfe")
    assert "cannot be read" in told(["piqa"])
    (data / "piqa.jsonl").unlink()
    (data / "piqa.jsonl.xz").write_bytes(b"nothing packed")
    assert "cannot be read" in told(["piqa"])
