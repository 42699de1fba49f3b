"""A trained model is measured as it was trained, or in the numbers that --precision names."""

import json

import pytest
from cli import dovetail, dovetail_json
from tiny_run import SANITIZED, make_workspace, metrics

TASK = [{"context": "two gears", "choices": ["mesh", "flows"], "answer": i % 2} for i in range(8)]
RECIPE = """
[precision]
recipe = "mine"
[[precision.recipes]]
name = "mine"
activation = { format = "e2m1" }
[[precision.override]]
layers = "blocks.1.ffn.*"
recipe = "bf16"
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("precision"))
    text = (folder / "run.toml").read_text().replace('[precision]\nrecipe = "fp32"\n', RECIPE)
    (folder / "run.toml").write_text(text)
    dovetail("train", "run.toml", "--set", "run.folder=run", "--set", "train.steps=20", folder=folder)
    (folder / "task.jsonl").write_text("".join(json.dumps(item) + "\n" for item in TASK))
    return folder


def evaluation(workspace, *words):
    return dovetail_json("eval", "run", *words, folder=workspace)


def test_eval_gives_the_loss_that_training_reported(workspace):
    own = evaluation(workspace)
    assert own["validation"]["nats_per_token"] == metrics(workspace / "run")[-1]["validation_loss"]
    assert own["precision"] == {"recipe": "mine", "linears": 9, "quantized_linears": 6}
    assert evaluation(workspace, "--precision", "mine") == own
    table = dovetail("eval", "run", folder=workspace).stdout
    assert "mine (6 of 9 Linears quantized)" in table


@pytest.mark.skipif(SANITIZED, reason="the same code as above")
def test_every_command_takes_a_precision_and_names_it(workspace):
    losses = {}
    for precision, count in {"float32": 0, "bf16": 0, "mxfp8": 8, "mxfp4": 8}.items():
        result = evaluation(workspace, "--precision", precision, "--data", "data", "--task", "task.jsonl")
        name = {"float32": "fp32"}.get(precision, precision)
        assert result["precision"] == {"recipe": name, "linears": 9, "quantized_linears": count}
        assert len(result["tasks"]) == 1
        losses[precision] = result["validation"]["nats_per_token"]
        words = ["--prompt", "two ", "--tokens", "4", "--precision", precision]
        assert dovetail_json("generate", "run", *words, folder=workspace)["precision"] == result["precision"]
    assert len(set(losses.values())) == 4
    own = dovetail("generate", "run", "--prompt", "two ", "--tokens", "4", folder=workspace)
    assert "precision mine (6 of 9 Linears quantized)" in own.stderr


def test_what_cannot_be_is_an_error(workspace):
    for command in (["eval", "run"], ["generate", "run"], ["export", "run", "--out", "never"]):

        def refused(precision, command=command):
            error = dovetail_json(*command, "--precision", precision, folder=workspace, code=2)["error"]
            return error["message"] + " | " + error["help"]

        unknown = refused("mxfp7")
        for name in ("mxfp7", "float32", "bf16", "mxfp8", "fp8_block", "mine"):
            assert name in unknown
        assert "quantizes nothing here" in refused("fp8_tensor")
        assert "delayed scaling" in refused("fp8_tensor_delayed")
    assert not (workspace / "never").exists()
