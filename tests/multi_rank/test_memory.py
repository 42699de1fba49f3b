"""memory.budget on several ranks: each by a plan of its own, all with the bits of the same run without one."""

import json

from ranks import launch
from tiny_run import make_workspace, metrics

# Large enough that something can be moved: storages from 64 KiB on.
MODEL = {"model__width": "128", "model__context": "64", "train__batch": "8", "train__steps": "30"}


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
