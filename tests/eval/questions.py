"""A few questions of every zero-shot set, in the shape of our files and in that of lm-eval-harness's datasets."""

import json

TEXTS = {
    "lambada": [
        {"text": "She put the key in the lock and opened the door"},
        {"text": "“Naïve,” he said.\n\n“Not at all,” she said, and shut the door"},
        {"text": "One  two,  three"},
    ],
    "piqa": [
        {"goal": "How to open a jar?", "sol1": "Turn the lid.", "sol2": "Turn the jar to stone. ", "label": 0},
        {"goal": "dresser", "sol1": "it's a drawer", "sol2": 'a "quoted" pin', "label": 1},
    ],
    "hellaswag": [
        {
            "activity_label": "Roof shingle removal",
            "ctx_a": "A man is sitting on a roof.",
            "ctx_b": "he",
            "endings": ["is using wrap.", "[step] rips  tiles [substeps] off.", "starts [title] again.", "waits."],
            "label": "3",
        },
        {
            "activity_label": "Baking",
            "ctx_a": "[header] How to bake [title] Mix it.",
            "ctx_b": "",
            "endings": ["Stir.", "Bake it well, for an hour or two.", "Eat.", "Wash."],
            "label": "1",
        },
    ],
    "winogrande": [
        {"sentence": "Ann knew more than Eve so _ got the hard cases.", "option1": "Ann", "option2": "Eve", "answer": "1"},
        {"sentence": "_ was late.", "option1": "The bus", "option2": "A cat", "answer": "2"},
    ],
    "arc_easy": [
        {"id": "a", "question": "What is wet?", "choices": ["Water", "Sand", "A very long stone", "Air"], "gold": 0},
        {"id": "b", "question": "What falls?", "choices": ["A stone", "Light", "Sound"], "gold": 2},
    ],
    "arc_challenge": [
        {"id": "c", "question": "Which planet is the largest?", "choices": ["Mars", "Jupiter", "Venus", "Earth"], "gold": 1},
        {"id": "d", "question": "What grows?", "choices": ["A tree", "Iron"], "gold": 0},
    ],
    "social_iqa": [
        {
            "context": "Ann ran.",
            "question": "Why?",
            "answerA": "late",
            "answerB": "it rained hard",
            "answerC": "fun",
            "label": "3",
        },
        {
            "context": "Bo slept.",
            "question": "How is Bo?",
            "answerA": "well",
            "answerB": "ill",
            "answerC": "away",
            "label": "1",
        },
    ],
    "boolq": [
        {"question": "is ethanol a fuel", "answer": True, "passage": "Ethanol is burned in engines. " * 3},
        {"question": "is sand wet", "answer": False, "passage": "Sand is dry."},
    ],
}


def as_in_the_harness(task, row):
    """The row as the dataset that lm-eval-harness loads has it."""
    if task.startswith("arc"):
        letters = "ABCD"[: len(row["choices"])]
        choices = {"text": row["choices"], "label": list(letters)}
        return {"id": row["id"], "question": row["question"], "choices": choices, "answerKey": letters[row["gold"]]}
    if task == "boolq":
        return {"question": row["question"], "passage": row["passage"], "label": int(row["answer"])}
    return row


def write(folder, rows):
    """Files of JSON lines, one a task."""
    folder.mkdir(exist_ok=True)
    for task, lines in rows.items():
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder
