"""An exported model scores tasks in EleutherAI's harness as `dovetail eval` scores them, item by item."""
# ctest-labels: package

import json
import os
import random
import subprocess
import sys
import venv
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from cli import dovetail, dovetail_json
from suite_files import write_data_sets
from tiny_run import WORDS, make_workspace

HARNESS = "lm-eval[hf]==0.4.13"  # apart from requirements.lock: it pins a numpy and datasets of its own

TASK = """
task: dovetail_task
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
fewshot_split: test
fewshot_config: {{sampler: first_n}}
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}, {{metric: acc_bytes}}]
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """The python of an environment with lm-eval; it uses torch and transformers of this environment, by path."""
    environment = tmp_path_factory.mktemp("harness")
    venv.create(environment, with_pip=True)
    site = next((environment / "lib").iterdir()) / "site-packages"
    (site / "pinned.pth").write_text(next(p for p in sys.path if p.endswith("site-packages")) + "\n")
    python = environment / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", HARNESS], check=True)
    return python


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("lm_eval"))
    settings = ["run.folder=run", "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300", "model.context=256"]
    dovetail("train", "run.toml", *(w for s in settings for w in ("--set", s)), folder=folder)
    dovetail("export", "run", "--out", "hf", folder=folder)
    # Choices of unequal length and answers at random: the three accuracies differ, and none is 0 or 1.
    draw = random.Random(7)
    phrase = lambda count: " ".join(draw.choice(WORDS).strip() for _ in range(count))  # noqa: E731
    items = [
        {"context": phrase(4), "choices": [phrase(draw.randint(1, 3)) for _ in range(4)], "answer": draw.randrange(4)}
        for _ in range(60)
    ]
    (folder / "task.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "task.yaml").write_text(TASK.format(path=folder / "task.jsonl"))
    return folder


def run_harness(harness, workspace, folder, words: list) -> tuple[dict, dict]:
    """Runs the harness in `folder` on the exported model. Returns its figures, and its items by task."""
    out = workspace / f"scores-{len(list(workspace.glob('scores-*')))}"
    words = [
        "--model", "hf", "--model_args", f"pretrained={workspace / 'hf'},dtype=float32", "--include_path", workspace,
        "--device", "cpu", "--batch_size", 1, "--output_path", out, "--log_samples", *words,
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(workspace / "cache")}
    subprocess.run([harness, "-m", "lm_eval", *map(str, words)], cwd=folder, check=True, env=os.environ | offline)
    (scores,) = out.glob("**/results_*.json")
    items = {}
    for path in out.glob("**/samples_*.jsonl"):
        lines = [json.loads(line) for line in path.open()]
        items[path.name.removeprefix("samples_").rsplit("_", 1)[0]] = sorted(lines, key=lambda line: line["doc_id"])
    return json.loads(scores.read_text()), items


@pytest.mark.parametrize("shots", [0, 2])
def test_the_harness_counts_the_same_answers(harness, workspace, shots):
    (ours,) = dovetail_json("eval", "run", "--task", "task.jsonl", "--shots", shots, folder=workspace)["tasks"]
    scores, _ = run_harness(harness, workspace, workspace, ["--tasks", "dovetail_task", "--num_fewshot", shots])
    theirs = scores["results"]["dovetail_task"]
    assert ours["items"] == 60 and 0 < ours["accuracy"] < 1
    for mine, key in [("accuracy", "acc"), ("accuracy_normalized", "acc_norm"), ("accuracy_per_byte", "acc_bytes")]:
        assert ours[mine] == pytest.approx(theirs[f"{key},none"]), key
    assert ours["standard_error"] == pytest.approx(theirs["acc_stderr,none"], rel=1e-6)


def harness_item(line: dict) -> tuple[list, list, list]:
    """Prompts, continuations and log-likelihoods of an item in the harness's log, one per choice."""
    requests = [line["arguments"][f"gen_args_{i}"] for i in range(len(line["arguments"]))]
    likelihoods = [float(answer[0]) for answer in line["filtered_resps"]]
    return [r["arg_0"] for r in requests], [r["arg_1"] for r in requests], likelihoods


@pytest.mark.parametrize(
    "suite, shots, harness_tasks",
    [
        ("mmlu", 5, "mmlu"),
        (
            "reasoning", 1,
            "arc_challenge,arc_easy,race,piqa,winogrande,hellaswag,openbookqa,social_iqa,commonsense_qa",
        ),
    ],
)  # fmt: skip
def test_a_suite_agrees_item_by_item(harness, workspace, suite, shots, harness_tasks):
    # The harness takes its own definitions of the tasks. It finds their data sets below its folder.
    sets = workspace / "sets"
    if not sets.exists():
        write_data_sets(sets)
    words = ["--suite", suite, "--data", "sets", "--log-items", f"{suite}.jsonl"]
    (ours,) = dovetail_json("eval", "run", *words, folder=workspace)["suites"]
    lines = [json.loads(line) for line in (workspace / f"{suite}.jsonl").open()]
    scores, items = run_harness(harness, workspace, sets, ["--tasks", harness_tasks, "--num_fewshot", shots])
    assert {line["task"] for line in lines} == set(items)
    for line in lines:
        theirs = items[line["task"]][line["item"]]
        prompts, continuations, likelihoods = harness_item(theirs)
        count = len(likelihoods)
        assert len(line["log_likelihoods"]) == count
        assert prompts == (line["prompts"] if len(line["prompts"]) > 1 else line["prompts"] * count)
        assert continuations == (
            line["continuations"] if len(line["continuations"]) > 1 else line["continuations"] * count
        )
        assert line["log_likelihoods"] == pytest.approx(likelihoods, rel=1e-4, abs=1e-3)
        assert theirs["acc"] == (line["chosen"] == line["answer"])
        if "acc_norm" in theirs:
            assert theirs["acc_norm"] == (line["chosen_normalized"] == line["answer"])
    for task in ours["tasks"]:
        theirs = scores["results"][task["task"]]
        assert task["items"] == len(items[task["task"]])
        for mine, key in [("accuracy", "acc"), ("accuracy_normalized", "acc_norm")]:
            if f"{key},none" in theirs:
                assert task[mine] == pytest.approx(theirs[f"{key},none"])
    if suite == "mmlu":
        names = {"": ours} | {f"_{c['category'].replace(' ', '_')}": c for c in ours["categories"]}
        for name, mine in names.items():
            theirs = scores["results"][f"mmlu{name}"]
            assert mine["accuracy"] == pytest.approx(theirs["acc,none"])
            assert mine["standard_error"] == pytest.approx(theirs["acc_stderr,none"])
