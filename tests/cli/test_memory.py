"""The estimate of memory that training prints before its first step, against what it then takes."""

import json

import pytest
from cli import dovetail
from tiny_run import SANITIZED, make_workspace

GPT = {"layers": 4, "width": 192, "heads": 6, "context": 128}
MODELS = {
    "gpt": {},
    "accumulation": {"train.micro_batch": 4},
    "bfloat16": {"precision.recipe": "bf16"},
    "mixture": {"model.moe.experts": 8, "model.moe.k": 2, "model.moe.ffn_width": 128},
}


@pytest.mark.skipif(SANITIZED, reason="a sanitizer's shadow memory counts as resident")
@pytest.mark.parametrize("model", MODELS)
def test_the_estimate_is_within_15_percent_of_what_the_run_takes(tmp_path, model):
    make_workspace(tmp_path)
    settings = {f"model.{key}": value for key, value in GPT.items()}
    settings |= {"train.batch": 16, "train.steps": 3, "schedule.warmup_steps": 1, "eval.every_steps": 2}
    settings |= {"checkpoint.every_steps": "end"} | MODELS[model]
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    dovetail("train", "run.toml", "--quiet", *words, folder=tmp_path)
    memory = json.loads((tmp_path / "runs/tiny/machine.json").read_text())["memory"]
    assert memory["estimate_bytes"] == pytest.approx(memory["peak_bytes"], rel=0.15)
