"""`dovetail plan`: plans made and checked, held against the checker of tests/plan/check_plan.py."""

import json
import subprocess
import sys
from pathlib import Path

from cli import dovetail, dovetail_json

CHECKER = Path(__file__).resolve().parents[1] / "plan" / "check_plan.py"


def chain(layers: int) -> dict:
    """A step of so many layers, each of whose outputs its backward reads again."""
    tensors = [{"id": "a0", "bytes": 100, "kind": "input"}]
    nodes = []

    def node(name, inputs, outputs, time, **more):
        algorithms = [
            {"name": "slow", "time": 2 * time, "workspace": 0},
            {"name": "fast", "time": time, "workspace": 40},
        ]
        nodes.append({"name": name, "inputs": inputs, "outputs": outputs, "algos": algorithms, **more})

    for i in range(layers):
        tensors += [
            {"id": f"w{i}", "bytes": 8, "kind": "param"},
            {"id": f"a{i + 1}", "bytes": 100, "kind": "activation"},
        ]
        node(f"f{i}", [f"a{i}", f"w{i}"], [f"a{i + 1}"], 1)
    gradient = f"a{layers}"
    for i in reversed(range(layers)):
        tensors += [{"id": f"g{i}", "bytes": 100, "kind": "grad"}, {"id": f"d{i}", "bytes": 8, "kind": "grad"}]
        node(f"b{i}", [gradient, f"a{i}", f"w{i}"], [f"g{i}", f"d{i}"], 2)
        node(f"u{i}", [f"d{i}"], [], 0.1, mutates=[f"w{i}"])
        gradient = f"g{i}"
    return {
        "version": 1,
        "budget_bytes": 10**6,
        "bandwidth": {"d2h": 60, "h2d": 50, "duplex": True},
        "tensors": tensors,
        "nodes": nodes,
        "final": [f"w{i}" for i in range(layers)],
    }


def oracle(folder: Path, graph: dict) -> dict:
    (folder / "within.json").write_text(json.dumps(graph))
    words = [sys.executable, CHECKER, folder / "within.json", folder / "plan.json"]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)


def test_plans_are_valid_and_smaller_budgets_take_longer(tmp_path):
    graph = chain(8)
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    before = 0.0
    for budget in (10**6, 900, 700, 560):
        words = ["plan", "graph.json", "--budget", budget, "--out", "plan.json", "--time-limit", 5]
        made = dovetail_json(*words, folder=tmp_path)
        verdict = oracle(tmp_path, {**graph, "budget_bytes": budget})
        assert verdict["valid"], verdict
        assert verdict["peak_bytes"] == made["peak_bytes"] <= budget
        assert abs(verdict["makespan"] - made["makespan_s"]) < 1e-9
        assert made["makespan_s"] >= before - 1e-9
        before = made["makespan_s"]
        checked = dovetail_json("plan", "graph.json", "--budget", budget, "--check", "plan.json", folder=tmp_path)
        assert checked["valid"] and checked["makespan_s"] == made["makespan_s"]
    assert made["makespan_s"] > made["bound_s"]
    text = dovetail("plan", "graph.json", "--budget", "0.6x", folder=tmp_path).stdout
    assert "between two uses" in text and "MiB; floor" in text


def test_what_is_left_out_is_not_used(tmp_path):
    graph = chain(6)
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    words = ["plan", "graph.json", "--budget", "600", "--out", "plan.json"]
    dovetail(*words, "--without", "offload", folder=tmp_path)
    operations = {action["op"] for action in json.loads((tmp_path / "plan.json").read_text())["actions"]}
    assert operations == {"compute", "free"}
    dovetail(*words, "--without", "recompute", "--without", "algorithms", folder=tmp_path)
    actions = json.loads((tmp_path / "plan.json").read_text())["actions"]
    computed = [action["node"] for action in actions if action["op"] == "compute"]
    assert len(computed) == len(set(computed)) and any(action["op"] == "offload" for action in actions)
    assert all(action["algo"] == "fast" or action["node"].startswith("u") for action in actions if "algo" in action)


def test_parameters_and_state_may_be_on_the_host_between_steps(tmp_path):
    graph = chain(6)
    for tensor in graph["tensors"]:
        if tensor["kind"] == "param":
            tensor["bytes"] = 60
    for i in range(6):
        update = next(node for node in graph["nodes"] if node["name"] == f"u{i}")
        for moment in (f"m{i}", f"v{i}"):
            graph["tensors"].append({"id": moment, "bytes": 60, "kind": "state"})
            graph["final"].append(moment)
            update["mutates"].append(moment)
    resident = 100 + 6 * 3 * 60
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    words = ["plan", "graph.json", "--budget", "600", "--time-limit", 3]
    stderr = dovetail(*words, "--without", "across-steps", folder=tmp_path, code=2).stderr
    assert "below the floor of this step" in stderr
    made = dovetail_json(*words, "--out", "plan.json", folder=tmp_path)
    assert made["floor_bytes"] <= 600 < resident
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert len(plan["starts_on_host"]) * 60 == made["starts_on_host"]["bytes"] >= resident - 600
    verdict = oracle(tmp_path, {**graph, "budget_bytes": 600})
    assert verdict["valid"] and abs(verdict["makespan"] - made["makespan_s"]) < 1e-9, verdict
    assert verdict["host_peak"] >= made["starts_on_host"]["bytes"]
    assert "MiB, are on the host when the step begins" in dovetail(*words, folder=tmp_path).stdout
    ample = dovetail_json("plan", "graph.json", "--budget", 10**6, "--out", "plan.json", folder=tmp_path)
    assert ample["starts_on_host"]["tensors"] == 0
    assert "starts_on_host" not in json.loads((tmp_path / "plan.json").read_text())


def test_mistakes_are_named(tmp_path):
    graph = chain(4)
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    stderr = dovetail("plan", "graph.json", "--budget", "300", folder=tmp_path, code=2).stderr
    assert "below the floor of this step" in stderr and "which node b" in stderr
    assert "not a memory budget" in dovetail("plan", "graph.json", "--budget", "much", folder=tmp_path, code=2).stderr
    dovetail("plan", "graph.json", "--out", "plan.json", folder=tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan["actions"].pop()
    plan["actions"] = [action for action in plan["actions"] if action.get("node") != "u0"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    stderr = dovetail("plan", "graph.json", "--check", "plan.json", folder=tmp_path, code=2).stderr
    assert "plan.json" in stderr and "node u0 never runs" in stderr
    (tmp_path / "graph.json").write_text(json.dumps({**graph, "nodes": [{**graph["nodes"][0], "inputs": ["z"]}]}))
    stderr = dovetail("plan", "graph.json", folder=tmp_path, code=2).stderr
    assert 'graph.json: nodes[0]: inputs: there is no tensor "z"' in stderr
