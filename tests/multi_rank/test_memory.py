"""memory.budget on several ranks: each by a plan of its own, all with the bits of the same run without one."""

import json
from pathlib import Path

import pytest
from ranks import launch
from tiny_run import make_workspace, metrics

# Large enough that something can be moved: storages from 32 KiB on.
MODEL = {"model__width": "128", "model__context": "64", "train__batch": "8", "train__steps": "30"}

# Experts on both ranks, whose rows travel in two chunks; the load loss counts over both ranks too.
EXPERTS = MODEL | {
    "model__moe__experts": "4",
    "model__moe__drop": "position",
    "model__moe__pad_to_capacity": "true",
    "model__moe__shared_experts": "1",
    "model__moe__load_scope": "global_batch",
    "parallel__expert": "2",
    "parallel__overlap": "2",
    "train__batch": "16",
    "train__steps": "20",
    "log__experts_every": "1",
}
MXFP8 = {"precision__recipe": "mxfp8", "parallel__dispatch": "mxfp8", "log__quantization_every": "1"}


def loads(run: Path) -> list[dict]:
    """What experts.jsonl says of the layers, not of how long ranks waited."""
    return [json.loads(line)["layers"] for line in (run / "experts.jsonl").read_text().splitlines()]


def expect_a_plan_within_the_budget(run: Path) -> None:
    nodes = [node["name"] for node in json.loads((run / "graph.json").read_text())["nodes"]]
    actions = json.loads((run / "plan.json").read_text())["actions"]
    ours = [node for node in nodes if "all_to_all" in node or "all_reduce" in node]
    ran = [action["node"] for action in actions if action["op"] == "compute"]
    assert ours
    assert [node for node in ran if node in ours] == ours, "every collective runs once, in the order of the step"
    memory = json.loads((run / "memory_plan.json").read_text())
    assert memory["step_bytes"] <= memory["budget_bytes"] < memory["keep_all_bytes"]


def test_two_ranks_by_plan_have_the_bits_of_two_ranks_without(tmp_path):
    workspace = make_workspace(tmp_path)
    launch(workspace, 2, "plain", **MODEL)
    (workspace / "tier").mkdir()
    for name, folder in [("memory", ""), ("disk", "tier")]:
        budget = {"memory__budget": "0.6x", "memory__folder": folder, "memory__solve_s": "1"}
        launch(workspace, 2, name, **MODEL, **budget)
        assert metrics(workspace / name) == metrics(workspace / "plain")
        plan = json.loads((workspace / name / "plan.json").read_text())
        assert any(action["op"] == "offload" for action in plan["actions"])
        expect_a_plan_within_the_budget(workspace / name)


@pytest.mark.parametrize("precision", [{}, MXFP8], ids=["fp32", "mxfp8"])
def test_experts_over_two_ranks_by_plan_have_the_bits_of_those_without(tmp_path, precision):
    workspace = make_workspace(tmp_path)
    settings = EXPERTS | precision
    launch(workspace, 2, "plain", **settings)
    launch(workspace, 2, "planned", **settings, memory__budget="0.6x", memory__solve_s="1")
    plain, planned = workspace / "plain", workspace / "planned"
    assert metrics(planned) == metrics(plain)
    assert loads(planned) == loads(plain)
    if precision:
        assert (planned / "quantization.jsonl").read_bytes() == (plain / "quantization.jsonl").read_bytes()
    expect_a_plan_within_the_budget(planned)
