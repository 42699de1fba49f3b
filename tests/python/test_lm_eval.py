"""An exported model scores a multiple-choice task in EleutherAI's harness as `dovetail eval` scores it."""
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
    settings = ["run.folder=run", "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300", "model.context=128"]
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


@pytest.mark.parametrize("shots", [0, 2])
def test_the_harness_counts_the_same_answers(harness, workspace, shots):
    (ours,) = dovetail_json("eval", "run", "--task", "task.jsonl", "--shots", shots, folder=workspace)["tasks"]
    words = [
        "--model", "hf", "--model_args", "pretrained=hf,dtype=float32", "--include_path", ".",
        "--tasks", "dovetail_task", "--num_fewshot", shots, "--device", "cpu", "--batch_size", 1,
        "--output_path", f"scores{shots}.json",
    ]  # fmt: skip
    subprocess.run(
        [harness, "-m", "lm_eval", *map(str, words)], cwd=workspace, check=True,
        env=dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str(workspace / "cache"), HF_DATASETS_OFFLINE="1"),
    )  # fmt: skip
    (scores,) = workspace.glob(f"scores{shots}*.json")
    theirs = json.loads(scores.read_text())["results"]["dovetail_task"]
    assert ours["items"] == 60 and 0 < ours["accuracy"] < 1
    for mine, key in [("accuracy", "acc"), ("accuracy_normalized", "acc_norm"), ("accuracy_per_byte", "acc_bytes")]:
        assert ours[mine] == pytest.approx(theirs[f"{key},none"]), key
    assert ours["standard_error"] == pytest.approx(theirs["acc_stderr,none"], rel=1e-6)
