"""lm-eval-harness on a saved model in a folder, as its command line runs it: the numbers are the model's own."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from miras.hf import MirasConfig, MirasForCausalLM, byte_tokenizer

pytest.importorskip("lm_eval")

CHOICE = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
ROLLING = """
task: text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""
UNTIL = """
task: further
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{further}}}}"
generation_kwargs: {{until: ["</s>"], max_gen_toks: 3, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


@torch.no_grad()
def likelihood(model, prompt, text):
    """log p(text | prompt)."""
    ids = torch.tensor([[*prompt, *text]])
    chances = F.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    return chances[len(prompt) - 1 :].sum().item()


@torch.no_grad()
def further(model, prompt):
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=256)
    return byte_tokenizer().decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_the_harness_runs_on_a_folder(tmp_path):
    torch.manual_seed(0)
    model = MirasForCausalLM(MirasConfig.preset("yaad-tiny", chunk_size=4)).eval()
    model.save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"question": f"{a} and {b} are ", "choices": [str(a + b), str(a + b + 1)]} for a in range(4) for b in range(3)]
    # every second continuation is the model's own, so that neither everything nor nothing is right
    rows = [{**row, "further": further(model, row["question"].encode()) if i % 2 else "?"} for i, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, task in (("choice", CHOICE), ("rolling", ROLLING), ("until", UNTIL)):
        (tmp_path / f"{name}.yaml").write_text(task.format(data=tmp_path / "rows.jsonl"))
    command = f"lm_eval --model hf --model_args pretrained={tmp_path}/model,trust_remote_code=True --include_path {tmp_path} "
    command += f"--tasks sums,text,further --device cpu --batch_size 4 --output_path {tmp_path}/out"
    surroundings = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *command.split()], env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(path.read_text())["results"]

    asked = [(row["question"].encode(), [choice.encode() for choice in row["choices"]]) for row in rows]
    right = [likelihood(model, prompt, one) > likelihood(model, prompt, two) for prompt, (one, two) in asked]
    assert found["sums"]["acc,none"] == pytest.approx(sum(right) / len(right))
    # a text is read after the token that begins one
    nats = -sum(likelihood(model, [257], prompt) for prompt, _ in asked)
    size = sum(len(prompt) for prompt, _ in asked)
    assert found["text"]["bits_per_byte,none"] == pytest.approx(nats / size / math.log(2), rel=1e-4)
    assert found["further"]["exact_match,none"] == pytest.approx(0.5)
