"""One small run, end to end: train, go on, look at it, evaluate, generate, report."""

import json
import math
import os
import pathlib
import re
import tomllib

import pytest
from cli import dovetail, dovetail_json
from tiny_run import make_workspace, metrics


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("run"))
    trained = dovetail("train", "run.toml", "--set", "run.folder=run", "--set", "train.steps=20", folder=folder)
    assert trained.stdout == "", "results of a training run are files; only --json prints one"
    return folder


def test_the_run_folder_holds_what_its_page_says(workspace):
    run = workspace / "run"
    for name in ["config.toml", "metrics.jsonl", "timings.jsonl", "machine.json", "samples.json", "report.html"]:
        assert (run / name).stat().st_size > 0, name
    assert [line["step"] for line in metrics(run)] == list(range(1, 21))
    assert metrics(run)[-1]["loss"] < metrics(run)[0]["loss"]


def test_training_again_goes_on_from_the_last_checkpoint(workspace):
    longer = ["--set", "run.folder=run", "--set", "train.steps=24"]
    first = metrics(workspace / "run")
    result = dovetail_json("train", "run.toml", *longer, folder=workspace)
    assert result["steps"] == 24
    assert not result["interrupted"]
    last = metrics(workspace / "run")[-1]
    assert [result[key] for key in ("loss", "validation_loss")] == [last["loss"], last["validation_loss"]]
    assert metrics(workspace / "run")[:20] == first
    assert [line["step"] for line in metrics(workspace / "run")] == list(range(1, 25))
    assert json.loads((workspace / "run" / "machine.json").read_text())["resumed_from"] == [20]


def test_a_run_without_validation_has_no_validation_loss(workspace):
    config = re.sub(r"(?ms)^validation_.*?\n|^\[eval\].*?(?=^\[)", "", (workspace / "run.toml").read_text())
    (workspace / "none.toml").write_text(config.replace("[data]", "[data]\nvalidation_fraction = 0"))
    words = ["--set", "run.folder=none", "--set", "data.path=whole", "--set", "train.steps=12"]
    result = dovetail_json("train", "none.toml", *words, folder=workspace)
    assert result["validation_loss"] is None and result["validation_nats_per_byte"] is None
    assert not any("validation_loss" in line for line in metrics(workspace / "none"))


def test_eval_is_the_last_validation_of_the_run(workspace):
    evaluated = dovetail_json("eval", "run", folder=workspace)
    validation = evaluated["validation"]
    last = metrics(workspace / "run")[-1]
    assert validation["tokens"] >= last["validation_tokens"]
    assert validation["perplexity"] == pytest.approx(math.exp(validation["nats_per_token"]))
    data = dovetail_json("inspect", "data", folder=workspace)
    assert validation["tokens"] == data["validation_tokens"] - 1
    per_byte = validation["nats_per_token"] * data["validation_tokens"] / data["validation_bytes"]
    assert validation["nats_per_byte"] == pytest.approx(per_byte)
    if validation["tokens"] == last["validation_tokens"]:
        assert validation["nats_per_token"] == pytest.approx(last["validation_loss"], rel=1e-5)


def test_eval_scores_a_task_of_known_answers(workspace):
    # After "two gears " the model has seen one word only; a string that is no English must lose.
    items = [{"context": "two gears", "choices": ["mesh", "#Z@!"], "answer": 0}] * 3
    items.append({"context": "two gears", "choices": ["#Z@!", "mesh"], "answer": 0})
    (workspace / "task.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (task,) = dovetail_json("eval", "run", "--task", "task.jsonl", "--shots", 1, folder=workspace)["tasks"]
    assert (task["items"], task["shots"], task["chance"]) == (4, 1, 0.5)
    assert task["accuracy"] == task["accuracy_normalized"] == 0.75


def test_generate_is_the_same_for_the_same_seed(workspace):
    command = ["generate", "run", "--prompt", "two gears", "--tokens", 12]
    first = dovetail_json(*command, "--seed", 3, folder=workspace)
    assert 0 < first["tokens"] <= 12
    printed = dovetail(*command, "--seed", 3, folder=workspace).stdout
    assert printed == "two gears" + first["continuation"] + "\n"


def test_inspect_knows_run_checkpoint_file_and_damage(workspace):
    run = dovetail_json("inspect", "run", folder=workspace)
    assert run["kind"] == "run"
    newest = run["checkpoints"][-1]
    assert newest["state"] == "verified"
    path = workspace / "run" / "checkpoints" / newest["checkpoint"]
    checkpoint = dovetail_json("inspect", path, folder=workspace)
    assert (checkpoint["kind"], checkpoint["step"]) == ("checkpoint", newest["step"])
    names = [tensor["tensor"] for tensor in checkpoint["tensors"]]
    assert any(name.startswith("model.") for name in names)
    assert any(name.startswith("optimizer.m.") for name in names)
    file = next(path.glob("*.safetensors"))
    assert dovetail_json("inspect", file, folder=workspace)["kind"] == "safetensors file"

    copy = workspace / "step-00000099"
    copy.mkdir()
    (copy / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-20])
    error = dovetail_json("inspect", copy, folder=workspace, code=2)["error"]
    assert error["kind"] == "input"
    assert "damaged" in error["message"]


def test_report_is_written_again_from_the_files(workspace):
    report = workspace / "run" / "report.html"
    report.unlink()
    assert dovetail("report", "run", folder=workspace).stdout == "run/report.html\n"
    page = report.read_text()
    start = page.index('id="data">') + len('id="data">')
    charts = json.loads(page[start : page.index("</script>", start)])["charts"]
    training = charts[0]["series"][0]["points"]
    assert [point[0] for point in training] == [line["step"] for line in metrics(workspace / "run")]
    assert training[0][3] == pytest.approx(metrics(workspace / "run")[0]["loss"], rel=1e-5)


def test_fresh_starts_over_but_not_after_a_restart_of_torchrun(workspace):
    words = ["train", "run.toml", "--fresh", "--set", "run.folder=other", "--set", "train.steps=12"]
    restarted = {**os.environ, "TORCHELASTIC_RESTART_COUNT": "1"}
    for env, resumed in [(None, []), (None, []), (restarted, [12])]:
        dovetail(*words, folder=workspace, env=env)
        assert json.loads((workspace / "other" / "machine.json").read_text())["resumed_from"] == resumed


def test_experts_that_wait_for_their_weights_are_told_of(workspace):
    # 2 tokens each where ten and more are needed: 128 experts of 1.5 M weights do not fit into a cache.
    words = ["train", "run.toml", "--set", "run.folder=thin", "--dry-run", "--set", "precision.recipe=fp32"]
    words += ["--set", "model.width=512", "--set", "model.moe.experts=128", "--set", "model.moe.ffn_width=1024"]
    words += ["--set", "model.context=128", "--set", "train.micro_batch=1"]
    assert "warning: experts get 2 tokens each at a time" in dovetail(*words, folder=workspace).stderr
    assert "experts get" not in dovetail(*words, "--set", "model.moe.ffn_width=8", folder=workspace).stderr


def test_dry_run_makes_nothing(workspace):
    result = dovetail("train", "run.toml", "--set", "run.folder=dry", "--dry-run", folder=workspace)
    assert "parameters" in result.stderr
    assert not (workspace / "dry").exists()


CONFIGS = sorted((pathlib.Path(__file__).resolve().parents[2] / "configs").rglob("*.toml"))
CONFIGS = [path for path in CONFIGS if path.parent.name != "clusters"]  # `dovetail simulate` reads these
PAPER = {
    "nemotron_843m": "843 M parameters",
    "nemotron_2b": "2.0 B parameters",
    "nemotron_8b": "8.1 B parameters",
    "mixture_16b": "16 B parameters, 2.5 B active",
}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_passes_a_dry_run(config, tmp_path):
    shares = tomllib.loads(config.read_text()).get("balance", {}).get("shares", [])
    launch = ["launch", "-n", len(shares)] if shares else []
    stderr = dovetail(*launch, "train", str(config), "--dry-run", folder=tmp_path).stderr
    assert "parameters" in stderr and not list(tmp_path.iterdir())
    if config.stem in PAPER:
        assert f"gpt {PAPER[config.stem]} ·" in stderr and "mxfp8" in stderr
        assert "not prepared yet: data/web, data/web_high_quality, data/code, data/math;" in stderr
