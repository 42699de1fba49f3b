"""Each option of each command has an entry. It is always read, or there is a situation in which it is refused."""

import json
import re
import subprocess

import pytest
from cli import dovetail
from tiny_run import BINARY, make_workspace, train

COMMANDS = [
    "train", "eval", "generate", "prepare", "inspect", "report", "config", "doctor", "launch", "bench", "simulate",
    "plan", "kmeans", "fit", "export", "import", "completions",
]  # fmt: skip

# Options that a command reads whatever else is given. A command's other options are in REFUSED.
ALWAYS = {
    "train": "--set --dry-run --quiet --json",
    "eval": "--data --task --precision --json",
    "generate": "--prompt --tokens --temperature --precision --json",
    "prepare": "--json",
    "inspect": "--json",
    "report": "--json",
    "config": "",
    "doctor": "--json",
    "launch": "--ranks --nodes --max-restarts",
    "bench": "--out --tokens --width --hidden --device --json",
    "simulate": "--plot --json",
    "plan": "--layers --json",
    "kmeans": "--data --bad-values --weights --executors --trace --out --json",
    "fit": "--data --bad-values --executors --trace --out --json",
    "export": "--out --precision --json",
    "import": "--out --json",
    "completions": "",
}

# Command, words after `dovetail`, and a part of the error.
REFUSED = [
    ("train", "train run.toml --fresh --dry-run", "--fresh does nothing with --dry-run"),
    ("eval", "eval runs/tiny --shots 2", "--shots, --limit and --log-items are about"),
    ("eval", "eval runs/tiny --limit 2", "--shots, --limit and --log-items are about"),
    ("eval", "eval runs/tiny --log-items items.jsonl", "--shots, --limit and --log-items are about"),
    ("eval", "eval runs/tiny --suite piqa", "--suite reads its data sets from one folder"),
    ("eval", "eval runs/tiny --suite piqa --data sets --max-tokens 9", "--max-tokens is about validation data"),
    ("eval", "eval runs/tiny --max-tokens 9 --task task.jsonl", "--max-tokens is about validation data"),
    ("eval", "eval runs/tiny --split train", "--split does nothing here"),
    ("eval", "eval runs/tiny --max-rows 5", "--max-rows does nothing here"),
    ("eval", "eval runs/tiny --predictions a.csv", "--predictions does nothing here"),
    ("generate", "generate runs/tiny --top-k 3 --temperature 0", "--top-k does nothing with --temperature 0"),
    ("generate", "generate runs/tiny --top-p 0.5 --temperature 0", "--top-p does nothing with --temperature 0"),
    ("generate", "generate runs/tiny --seed 3 --temperature 0", "--seed does nothing with --temperature 0"),
    ("prepare", "prepare text --tokenizer bpe --out new --set data.tokenizer.kind=bytes", "and --tokenizer are given"),
    ("prepare", "prepare text --vocab-size 300 --out new", "data.tokenizer.vocab_size = 300 does nothing"),
    ("prepare", "prepare text --out new --set data.path=other", "and --out are given"),
    ("prepare", "prepare text --config run.toml", "both paths and --config are given"),
    ("prepare", "prepare text --set train.steps=3 --out new", "--set train.steps=3 does nothing here"),
    ("prepare", "prepare --set model.layers=3 --config run.toml", "--set model.layers=3 does nothing here"),
    ("prepare", "prepare --set run.name=a --config run.toml --out new", "--set run.name=a does nothing here"),
    ("prepare", "prepare text --set data.text=other --out new", "and paths are given"),
    ("config", "config --explain model.layers --set model.layers=3", "stand alone"),
    ("config", "config --reference --json", "stand alone"),
    ("config", "config --json --reference", "stand alone"),
    ("config", "config --set schedule.decay_fraction=0.5", "schedule.decay_fraction does nothing"),
    ("launch", "launch --master here:1 -n 1 config", "--master is where several machines meet"),
    ("plan", "plan graph.json --set a=1", "belong to a training config"),
    ("plan", "plan graph.json --fits", "belong to a training config"),
    ("plan", "plan run.toml --budget 0.5x --set memory.budget=0.6x", "and --budget are given"),
    ("plan", "plan run.toml --time-limit 3 --fits", "--time-limit is about the search"),
    ("plan", "plan graph.json --time-limit 3 --check plan.json", "--time-limit is about the search"),
    ("plan", "plan run.toml --time-limit 3 --set memory.solve_s=4", "and --time-limit are given"),
    ("plan", "plan run.toml --curve --fits", "belong to planning"),
    ("plan", "plan run.toml --out a --fits", "belong to planning"),
    ("plan", "plan run.toml --without offload", "belong to a graph.json"),
    ("plan", "plan run.toml --check plan.json", "belong to a graph.json"),
    *[
        (command.split()[0], f"{command} --data rows.csv {words}", message)
        for command in ("kmeans --k 2", "fit pca")
        for words, message in {
            "--columns a --drop-columns 1": "--columns and --drop-columns both say",
            "--drop-columns 1 --columns a": "--columns and --drop-columns both say",
            "--threads 2 --executors cpu:1": "--threads: executors have threads of their own",
            "--share static": "--share and --verify are about --executors",
            "--verify 3": "--share and --verify are about --executors",
            "--timeout 9": "--timeout is about several nodes",
        }.items()
    ],
    ("kmeans", "kmeans --k 2 --data rows.npy --delimiter ;", "--delimiter, --decimal and --header are for text"),
    ("kmeans", "kmeans --k 2 --data rows.npy --decimal ,", "--delimiter, --decimal and --header are for text"),
    ("kmeans", "kmeans --k 2 --data rows.npy --header no", "--delimiter, --decimal and --header are for text"),
    ("fit", "fit pca --data rows.npy --delimiter ;", "--delimiter, --decimal and --header are for text"),
    ("fit", "fit pca --data rows.npy --decimal ,", "--delimiter, --decimal and --header are for text"),
    ("fit", "fit pca --data rows.npy --header no", "--delimiter, --decimal and --header are for text"),
    ("kmeans", "kmeans --k 2 --data rows.csv --patience 3", "--patience is about mini-batches"),
    ("kmeans", "kmeans --k 2 --data rows.csv --batch 2 --empty reseed", "--empty reseed looks for"),
    ("kmeans", "kmeans --k 2 --data rows.csv --empty reseed --batch 2", "--empty reseed looks for"),
    ("kmeans", "kmeans predict run --data rows.csv --fresh", "--fresh starts a stopped job over"),
    *[
        ("kmeans", f"kmeans predict run --data rows.csv {option} 4", "is an option of `dovetail kmeans`, not of")
        for option in ["--k", "--init", "--iterations", "--tolerance", "--batch", "--patience", "--seed"]
    ],
    ("kmeans", "kmeans predict run --data rows.csv --empty keep", "is an option of `dovetail kmeans`, not of"),
    ("fit", "fit linear --data rows.csv --target b --fresh", "--fresh starts a stopped job over"),
    *[
        ("fit", f"fit {model} --data rows.csv {words}", f"is an option of `dovetail fit {readers}")
        for model, words, readers in [
            ("pca", "--target b", "linear"),
            ("gmm", "--l2 1", "linear"),
            ("pca", "--k 2", "gmm"),
            ("pca", "--covariance diag", "gmm"),
            ("pca", "--init first", "gmm"),
            ("pca", "--regularization 1", "gmm"),
            ("gmm --k 2", "--components 1", "pca"),
            ("gmm --k 2", "--solver power", "pca"),
            ("linear --target b", "--iterations 3", "gmm"),
            ("linear --target b", "--tolerance 1", "gmm"),
            ("linear --target b", "--seed 1", "gmm"),
        ]
    ],
    *[
        ("simulate", f"simulate hybrid {option} 4", "is an option of `dovetail simulate moe`")
        for option in [
            "--cost",
            "--ranks",
            "--experts",
            "--tokens",
            "--width",
            "--hidden",
            "--top-k",
            "--skew",
            "--most-shadowed",
        ]
    ],
    ("simulate", "simulate hybrid --payload bf16", "is an option of `dovetail simulate moe`"),
    ("simulate", "simulate hybrid --row-for rank", "is an option of `dovetail simulate moe`"),
    *[
        ("simulate", f"simulate moe --cost a.json --ranks 2 {option} 4", "is an option of `dovetail simulate hybrid`")
        for option in ["--cluster", "--set", "--nodes", "--most-nodes", "--runs", "--seed", "--report"]
    ],
    *[
        ("import", f"import model --set {key} --out new", "are given; keep one of them")
        for key in ("model.layers=3", "run.name=a", "run.folder=a", "data.tokenizer.kind=bytes", "train.init_noise=0.1")
    ],
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("flags"))
    done = train(folder, "runs/tiny", train__steps="2", schedule__warmup_steps="0")
    assert done.returncode == 0, done.stderr
    (folder / "rows.csv").write_text("a,b\n1,2\n1,3\n9,8\n9,9\n")
    item = {"context": "two ", "choices": ["gears", "mesh"], "answer": 0}
    (folder / "task.jsonl").write_text(json.dumps(item) + "\n")
    numpy = pytest.importorskip("numpy")
    numpy.save(folder / "rows.npy", numpy.array([[1.0, 2], [1, 3], [9, 8]]))
    llama = pytest.importorskip("transformers").LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    pytest.importorskip("transformers").LlamaForCausalLM(llama).save_pretrained(folder / "model")
    dovetail("prepare", "text", "--out", "bpe", "--tokenizer", "bpe", "--vocab-size", 280, folder=folder)
    (folder / "model/tokenizer.json").write_bytes((folder / "bpe/tokenizer.json").read_bytes())
    return folder


def options_of(command):
    text = subprocess.check_output([BINARY, command, "--help"], text=True)
    names = re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", text, re.MULTILINE)
    return {name for name in names if name != "--help"}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_has_an_entry(command):
    mentioned = {
        word for name, words, _ in REFUSED if name == command for word in words.split() if word.startswith("--")
    }
    always = set(ALWAYS[command].split())
    assert options_of(command) == always | mentioned


def test_the_commands_are_all_there_are():
    text = subprocess.check_output([BINARY, "--help"], text=True)
    assert re.findall(r"^  ([a-z]+) {2,}", text, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize(("command", "words", "message"), REFUSED)
def test_an_option_without_effect_is_refused(workspace, command, words, message):
    error = dovetail(*words.split(), folder=workspace, code=2).stderr
    assert message in error
    assert not (workspace / "new").exists()


def test_prepared_data_refuse_keys_of_another_preparation(workspace):
    """Keys about preparing say how the folder was made, or are an error; so is another tokenizer."""
    words = ["train", "run.toml", "--set", "data.text=[]", "--set", "train.steps=2", "--set", "run.folder=prepared"]
    words += ["--set", "schedule.warmup_steps=0"]
    dovetail(*words, folder=workspace)
    for key, value in {
        "data.validation_fraction": 0.2, "data.deduplicate": "true", "data.max_document_bytes": 9,
        "data.text_field": "x",
        "data.tokenizer.kind": "bpe", "data.bad_row": "skip",
    }.items():  # fmt: skip
        error = dovetail(*words, "--set", f"{key}={value}", folder=workspace, code=2).stderr
        assert f"{key} = " in error and "does nothing: data was prepared with" in error
    bpe = [*words, "--set", "data.path=bpe", "--set", "data.validation_fraction=0.05"]
    bpe += [
        "--set",
        "data.validation_split=document",
        "--set",
        "data.tokenizer.kind=bpe",
        "--set",
        "run.folder=bpe_run",
    ]
    dovetail(*bpe, "--set", "data.tokenizer.path=bpe/tokenizer.json", "--dry-run", folder=workspace)
    dovetail(*bpe, "--set", "data.tokenizer.vocab_size=280", "--dry-run", folder=workspace)
    error = dovetail(*bpe, "--set", "data.tokenizer.vocab_size=290", "--dry-run", folder=workspace, code=2).stderr
    assert "data.tokenizer.vocab_size = 290 does nothing: bpe was prepared with 280" in error
    (workspace / "other.json").write_text((workspace / "bpe/tokenizer.json").read_text() + "\n")
    error = dovetail(*bpe, "--set", "data.tokenizer.path=other.json", "--dry-run", folder=workspace, code=2).stderr
    assert "prepared with another tokenizer" in error


def test_initial_noise_is_settled_with_the_weights(workspace):
    words = [
        "train",
        "run.toml",
        "--set",
        "run.folder=runs/tiny",
        "--set",
        "train.steps=3",
        "--set",
        "schedule.warmup_steps=0",
    ]
    error = dovetail(*words, "--set", "train.init_noise=0.5", folder=workspace, code=2).stderr
    assert "train.init_noise was 0.0, is 0.5" in error


def test_config_without_a_file_has_the_presets_values(workspace):
    shown = dovetail("config", "--set", "model.preset=gpt2-124m", "--json", folder=workspace).stdout
    assert json.loads(shown)["model"]["width"] == 768
