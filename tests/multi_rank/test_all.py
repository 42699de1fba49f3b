"""configs/all.toml: every capability in one run on two ranks, which outlives a rank and learns."""

import json
import math
import shutil
from pathlib import Path

from ranks import expect_a_killed_rank_changes_nothing
from tiny_run import WORDS, make_workspace, metrics

CONFIG = Path(__file__).resolve().parents[2] / "configs/all.toml"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_at_once_outlives_a_rank_and_learns(tmp_path):
    workspace = make_workspace(tmp_path)
    shutil.copy(CONFIG, workspace / "run.toml")
    run = expect_a_killed_rank_changes_nothing(workspace, {"data__text": "['text']", "data__path": "data"})

    # The text is words drawn evenly: nothing can know more of it than log(words) a word.
    characters = sum(len(word) + 1 for word in WORDS) / len(WORDS)
    floor = math.log(len(WORDS)) / characters
    last = metrics(run)[-1]
    assert floor < last["validation_nats_per_byte"] < 1.15 * floor
    # Two layers of experts, each loss at least 0.01 where the load is even.
    assert 0.02 <= last["router_loss"] < 0.04

    experts = lines(run / "experts.jsonl")
    # At the end the load fits a capacity of 1.25 times an even share. It does not in the first
    # steps.
    dropped = [sum(layer["dropped"] for layer in line["layers"]) for line in experts]
    assert 0 <= dropped[-1] < dropped[0]
    for line in experts:
        assert [layer["layer"] for layer in line["layers"]] == ["blocks.1.moe", "blocks.3.moe"]
        for layer in line["layers"]:
            assert layer["r"] == 1 and layer["overlap"] == 2 and layer["all_to_all"] == "linear"
            assert len(layer["load"]) == 8 and math.isclose(sum(layer["load"]), 8)
        assert line["all_to_all"]["bytes_sent"] > 0 and line["all_to_all"]["waited_s"] > 0
    # Within the budget from the eighth step on, and again after the resume.
    memory = json.loads((run / "memory_plan.json").read_text())
    assert memory["step_bytes"] <= memory["budget_bytes"] < 0.51 * memory["keep_all_bytes"]
    quantized = {tensor["layer"] for tensor in lines(run / "quantization.jsonl")[-1]["tensors"]}
    assert "blocks.1.moe.experts.7.down" in quantized and "blocks.3.moe.shared.up" in quantized
    assert not any(layer.startswith("blocks.0.") for layer in quantized)
