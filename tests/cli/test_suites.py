"""`dovetail eval --suite`: prompts, figures and errors of the benchmark suites, on small files in their formats."""

import json
import random
import shutil

import pyarrow.parquet as pq
import pytest
from cli import dovetail, dovetail_json
from suite_files import CATEGORIES, SUBJECTS, write_data_sets, write_split
from tiny_run import make_workspace

REASONING = [
    "arc_challenge", "arc_easy", "race", "piqa", "winogrande", "hellaswag", "openbookqa", "social_iqa",
    "commonsense_qa",
]  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("suites"))
    dovetail("train", "run.toml", "--set", "run.folder=run", "--set", "model.context=128", folder=folder)
    write_data_sets(folder / "sets")
    return folder


def score(folder, suite, *words, data="sets"):
    """The figures of one suite and its items, by task."""
    found = dovetail_json(
        "eval", "run", "--suite", suite, "--data", data, "--log-items", "items.jsonl", *words, folder=folder
    )
    assert "validation" not in found
    items = [json.loads(line) for line in (folder / "items.jsonl").open()]
    (figures,) = found["suites"]
    by_task = {task["task"]: [item for item in items if item["task"] == task["task"]] for task in figures["tasks"]}
    assert all(len(by_task[task["task"]]) == task["items"] for task in figures["tasks"])
    return figures, by_task


# One row of each data set, and what lm-evaluation-harness makes of it: prompts and continuations.
GOLDEN = {
    "arc_easy": (
        "allenai/ai2_arc", "ARC-Easy/test-0.parquet",
        {"id": "a", "question": "Which?", "choices": {"text": ["one", "two"], "label": ["1", "2"]}, "answerKey": "2"},
        ["Question: Which?\nAnswer:"], [" one", " two"], 1,
    ),
    "openbookqa": (
        "allenai/openbookqa", "main/test-0.parquet",
        {"id": "a", "question_stem": "Bees make", "choices": {"text": ["wax", "tin"], "label": ["A", "B"]},
         "answerKey": " A"},
        ["Bees make"], [" wax", " tin"], 0,
    ),
    "piqa": (
        "baber/piqa", "piqa_validation.parquet", {"goal": "Cut it", "sol1": "saw", "sol2": "oil", "label": 1},
        ["Question: Cut it\nAnswer:"], [" saw", " oil"], 1,
    ),
    "winogrande": (
        "allenai/winogrande", "winogrande_xl/validation-0.parquet",
        {"sentence": "I saw _ there _ . ", "option1": "Ann", "option2": "Bob", "answer": "2"},
        ["I saw Ann", "I saw Bob"], [" there _ ."], 1,
    ),
    "hellaswag": (
        "Rowan/hellaswag", "data/validation-0.parquet",
        {"ind": 1, "activity_label": "Baking", "ctx_a": "A cook [title] stirs.  ", "ctx_b": "then SHE", "ctx": "",
         "endings": ["[step] bakes  it", "eats", "[a]sleeps.", " runs"], "source_id": "", "split": "val",
         "split_type": "", "label": "3"},
        ["Baking: A cook. stirs.  Then she"], ["  bakes it", " eats", " sleeps.", " runs"], 3,
    ),
    "race": (
        "EleutherAI/race", "high/test-0.parquet",
        {"article": "Once.", "problems": repr([
            {"question": "When?", "answer": "B", "options": ["now", "once", "never", "soon"]},
            {"question": "It was  _  .", "answer": "A", "options": ["once", "now", "never", "soon"]},
            {"question": "It's?", "answer": "D", "options": ["a", "b", "c", '"d"']},
        ])},
        ["Article: Once.\n\nQuestion: When?\nAnswer: once\nIt was once\nIt's?"], [" a", " b", " c", ' "d"'], 3,
    ),
    "social_iqa": (
        "lighteval/siqa", "data/validation-0.parquet",
        {"context": "Ann left.", "question": "Why?", "answerA": "late", "answerB": "ill", "answerC": "sad",
         "label": "3"},
        ["Q: Ann left. Why?\nA:"], [" late", " ill", " sad"], 2,
    ),
    "commonsense_qa": (
        "tau/commonsense_qa", "data/validation-0.parquet",
        {"id": "a", "question": " Where? ", "question_concept": "", "answerKey": "E",
         "choices": {"label": list("ABCDE"), "text": ["p", "q", "r", "s", "t"]}},
        ["Question: Where?\nA. p\nB. q\nC. r\nD. s\nE. t\nAnswer:"], [" A", " B", " C", " D", " E"], 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("task", GOLDEN)
def test_a_prompt_is_the_one_of_the_harness(workspace, tmp_path, task):
    repository, path, row, prompts, continuations, answer = GOLDEN[task]
    write_split(tmp_path, repository, path, [row])
    figures, items = score(workspace, task, "--shots", 0, data=tmp_path)
    (item,) = items[task]
    assert (item["prompts"], item["continuations"], item["answer"]) == (prompts, continuations, answer)
    assert len(item["log_likelihoods"]) == max(len(prompts), len(continuations))
    assert figures["shots"] == 0 and figures["accuracy"] == (item["chosen"] == answer)


def test_mmlu_has_a_description_and_the_first_rows_as_examples(workspace, tmp_path):
    shutil.copytree(workspace / "sets/cais", tmp_path / "cais")
    row = {"question": " Is it? \n", "subject": "us_foreign_policy", "choices": ["p", "q", "r", "s"], "answer": 2}
    path = "us_foreign_policy/{}-00000-of-00001.parquet"
    write_split(tmp_path, "cais/mmlu", path.format("test"), [row])
    write_split(tmp_path, "cais/mmlu", path.format("dev"), [row | {"question": f"Q{i}"} for i in range(6)])
    figures, items = score(workspace, "mmlu", data=tmp_path)
    choices = "\nA. p\nB. q\nC. r\nD. s\nAnswer:"
    examples = "".join(f"Q{i}{choices} C\n\n" for i in range(5))
    about = "The following are multiple choice questions (with answers) about us foreign policy.\n\n"
    (item,) = items["mmlu_us_foreign_policy"]
    assert item["prompts"] == [f"{about}{examples}Is it?{choices}"]
    assert item["continuations"] == [" A", " B", " C", " D"] and item["answer"] == 2
    assert figures["shots"] == 5


def test_mmlu_weighs_subjects_by_their_items(workspace):
    figures, _ = score(workspace, "mmlu")
    tasks = {task["task"]: task for task in figures["tasks"]}
    assert list(tasks) == [f"mmlu_{subject}" for subject in SUBJECTS]
    categories = {category["category"]: category for category in figures["categories"]}
    assert set(categories) == set(CATEGORIES)
    for name, subjects in [*CATEGORIES.items(), (None, SUBJECTS)]:
        found = categories[name] if name else figures
        members = [tasks[f"mmlu_{subject}"] for subject in subjects]
        items = sum(task["items"] for task in members)
        assert found["items"] == items
        assert found["accuracy"] == pytest.approx(sum(t["items"] * t["accuracy"] for t in members) / items)


def test_reasoning_is_the_mean_of_nine_tasks(workspace):
    figures, items = score(workspace, "reasoning")
    assert [task["task"] for task in figures["tasks"]] == REASONING
    assert figures["shots"] == 1 and set(items) == set(REASONING)
    mean = sum(task["accuracy"] for task in figures["tasks"]) / 9
    assert figures["accuracy"] == pytest.approx(mean)
    normalized = ["arc_challenge", "arc_easy", "hellaswag", "openbookqa", "piqa"]
    chosen = [t["accuracy_normalized" if t["task"] in normalized else "accuracy"] for t in figures["tasks"]]
    assert figures["accuracy_normalized"] == pytest.approx(sum(chosen) / 9)
    text = dovetail("eval", "run", "--suite", "reasoning", "--data", "sets", folder=workspace).stdout
    assert "9 tasks" in text and all(f"\n  {task} " in text for task in REASONING)


def solved_arc(row: dict) -> str:
    answer = row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])]
    return f"Question: {row['question']}\nAnswer: {answer}\n\n"


def solved_piqa(row: dict) -> str:
    return f"Question: {row['goal']}\nAnswer: {row['sol1'] if row['label'] == 0 else row['sol2']}\n\n"


def solved_winogrande(row: dict) -> str:
    before, after = row["sentence"].split("_", 1)
    return f"{before}{row['option' + row['answer']]} {after.strip()}\n\n"


@pytest.mark.parametrize(
    "task, pool, questions, solved",
    [
        ("arc_challenge", "allenai/ai2_arc/ARC-Challenge/train-00000-of-00001.parquet", None, solved_arc),
        ("arc_easy", "allenai/ai2_arc/ARC-Easy/train-00000-of-00001.parquet", None, solved_arc),
        ("piqa", "baber/piqa/piqa_train.parquet", "baber/piqa/piqa_validation.parquet", solved_piqa),
        (
            "winogrande", "allenai/winogrande/winogrande_xl/train-00000-of-00001.parquet",
            "allenai/winogrande/winogrande_xl/validation-00000-of-00001.parquet", solved_winogrande,
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shots", [1, 3])
def test_examples_are_drawn_as_python_draws_them(workspace, task, pool, questions, solved, shots):
    # Tasks without a test split leave the question out of its own examples: one example more is drawn.
    pool = pq.read_table(workspace / "sets" / pool).to_pylist()
    questions = pq.read_table(workspace / "sets" / questions).to_pylist() if questions else None
    draws = random.Random(1234)
    for item in score(workspace, task, "--shots", shots)[1][task]:
        if questions is None:
            drawn = draws.sample(pool, shots)
        else:
            question = questions[item["item"]]
            drawn = [row for row in draws.sample(pool, shots + 1) if row != question][:shots]
            if len(drawn) < shots:
                drawn = draws.sample([row for row in pool if row != question], shots)
        beginning = "".join(map(solved, drawn))
        assert all(prompt.startswith(beginning) for prompt in item["prompts"])
        assert all("\n\n" not in prompt[len(beginning) :] for prompt in item["prompts"])


def test_limit_takes_the_first_items_with_the_same_prompts(workspace):
    _, whole = score(workspace, "hellaswag")
    figures, first = score(workspace, "hellaswag", "--limit", 4)
    assert figures["items"] == 4
    assert first["hellaswag"] == whole["hellaswag"][:4]


def test_files_and_suites_are_scored_in_one_call(workspace):
    (workspace / "task.jsonl").write_text('{"context": "two", "choices": ["gears", "mesh"], "answer": 0}\n' * 3)
    words = ["--task", "task.jsonl", "--suite", "piqa", "--suite", "race", "--data", "sets", "--log-items", "all.jsonl"]
    found = dovetail_json("eval", "run", *words, folder=workspace)
    assert [suite["suite"] for suite in found["suites"]] == ["piqa", "race"]
    assert found["tasks"][0]["shots"] == 0 and found["suites"][0]["shots"] == 1
    lines = [json.loads(line) for line in (workspace / "all.jsonl").open()]
    assert {line["task"] for line in lines} == {"task.jsonl", "piqa", "race"}


def refused(folder, *words) -> dict:
    return dovetail_json("eval", "run", "--data", "sets", *words, folder=folder, code=2)["error"]


def test_errors_name_what_is_missing_and_where(workspace, tmp_path):
    assert "is not one of mmlu, reasoning" in refused(workspace, "--suite", "piqqa")["message"]
    error = refused(workspace, "--suite", "piqa", "--shots", 9)
    assert "9 shots need 10 rows of the split train, which has 9" in error["message"]

    def found(repository: str, path: str, rows: list[dict], task: str, folder: str) -> dict:
        write_split(tmp_path / folder, repository, path, rows)
        words = ["--suite", task, "--shots", 0, "--data", tmp_path / folder]
        return dovetail_json("eval", "run", *words, folder=workspace, code=2)["error"]

    row = {"goal": "a", "sol1": "b", "sol2": "c", "label": 2}
    error = found("baber/piqa", "piqa_train.parquet", [row], "piqa", "no_split")
    assert "no Parquet file of the split validation" in error["message"]
    assert "hf download baber/piqa" in error["help"]
    error = found("baber/piqa", "piqa_train.parquet", [row], "race", "no_folder")
    assert "EleutherAI/race/high, which is no folder" in error["message"]
    error = found("baber/piqa", "piqa_validation.parquet", [row], "piqa", "label")
    assert 'the label "2" is not one of 0, 1' in error["message"]
    assert error["place"].endswith("piqa_validation.parquet: row 0")
    error = found("baber/piqa", "piqa_validation.parquet", [row | {"sol2": None}], "piqa", "null")
    assert "`sol2` is null" in error["message"]
    assert "has no rows" in found("baber/piqa", "piqa_validation.parquet", [], "piqa", "empty")["message"]
    error = found("lighteval/siqa", "../../baber/piqa/validation.parquet", [], "piqa", "column")
    assert "`goal`" in error["message"] and "reads the columns goal, sol1, sol2, label" in error["help"]
    assert error["place"].endswith("validation.parquet")
    found("baber/piqa", "a/validation-0.parquet", [row | {"label": 1}], "race", "twice")
    error = found("baber/piqa", "b/validation-0.parquet", [row], "piqa", "twice")
    assert "in 2 folders" in error["message"]
    error = found("EleutherAI/race", "high/test-0.parquet", [{"article": "", "problems": "[1"}], "race", "literal")
    assert "not a literal of Python" in error["message"]
    error = found("EleutherAI/race", "high/test.parquet", [{"article": "", "problems": "[{}, {}]"}], "race", "problem")
    assert "question" in error["message"]
