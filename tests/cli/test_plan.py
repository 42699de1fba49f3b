"""`dovetail plan`: plans made and checked, held against the checker of tests/plan/check_plan.py."""

import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

from cli import dovetail, dovetail_json
from tiny_run import make_workspace

CHECKER = Path(__file__).resolve().parents[1] / "plan" / "check_plan.py"
SMALL = [w for s in ("model.width=64", "model.context=64", "train.batch=8") for w in ("--set", s)]


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
    assert made["makespan_s"] >= made["bound_s"] - 1e-9 > 0
    assert abs(made["gap"] - (1 - made["bound_s"] / made["makespan_s"])) < 1e-9
    text = dovetail("plan", "graph.json", "--budget", "0.6x", folder=tmp_path).stdout
    assert "cost in time" in text and "MiB; floor" in text


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
    assert "--budget = 300 B is below the floor of this step" in stderr
    assert "the largest single operation is b" in stderr
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


def test_the_limit_of_the_host_binds_the_plan(tmp_path):
    graph = chain(6)
    budget = ["--budget", "520", "--time-limit", "1", "--out", "plan.json"]
    for host_bytes in (0, 60, 150):
        limited = {**graph, "host_bytes": host_bytes, "budget_bytes": 520}
        (tmp_path / "graph.json").write_text(json.dumps(limited))
        dovetail_json("plan", "graph.json", *budget, folder=tmp_path)
        verdict = oracle(tmp_path, limited)
        assert verdict["valid"] and verdict["host_peak"] <= host_bytes, verdict


def test_over_budget_names_the_action_at_the_peak(tmp_path):
    (tmp_path / "graph.json").write_text(json.dumps(chain(4)))
    dovetail("plan", "graph.json", "--out", "plan.json", folder=tmp_path)
    words = ["plan", "graph.json", "--check", "plan.json", "--budget", "450"]
    stderr = dovetail(*words, folder=tmp_path, code=2).stderr
    assert re.search(r"over the budget: \d+ > 450 bytes at \S+ s, in compute of [fbu]\d", stderr), stderr


def branching(seed: int) -> dict:
    """A step whose tensors wait for later nodes at random, so that their places leave gaps."""
    draw = random.Random(seed)
    tensors, nodes = [{"id": "a0", "bytes": 100, "kind": "input"}], []
    for i in range(30):
        tensors.append({"id": f"a{i + 1}", "bytes": draw.randrange(30, 200, 10), "kind": "activation"})
        inputs = [f"a{j}" for j in sorted({i, draw.randrange(max(0, i - 8), i + 1)})]
        algorithms = [{"name": "only", "time": 1, "workspace": 0}]
        nodes.append({"name": f"n{i}", "inputs": inputs, "outputs": [f"a{i + 1}"], "algos": algorithms})
    bandwidth = {"d2h": 60, "h2d": 50, "duplex": True}
    return {
        "version": 1,
        "budget_bytes": 10**6,
        "bandwidth": bandwidth,
        "tensors": tensors,
        "nodes": nodes,
        "final": ["a30"],
    }


def test_a_plan_has_places_within_the_budget(tmp_path):
    (tmp_path / "graph.json").write_text(json.dumps(branching(23)))
    still = ["--without", "offload", "--without", "recompute", "--time-limit", 0.2]
    made = dovetail_json("plan", "graph.json", *still, "--out", "plan.json", folder=tmp_path)
    held, floor = made["peak_bytes"], made["floor_bytes"]
    assert held == made["keep_all_bytes"] < floor <= made["places_bytes"]
    at_floor = dovetail_json("plan", "graph.json", *still, "--budget", floor, "--out", "at_floor.json", folder=tmp_path)
    assert at_floor["places_bytes"] <= floor
    checked = dovetail_json("plan", "graph.json", "--check", "at_floor.json", "--budget", floor, folder=tmp_path)
    assert checked["places_bytes"] == at_floor["places_bytes"]
    # Nothing can go away, and what is held has no places within its own peak.
    assert oracle(tmp_path, {**branching(23), "budget_bytes": held})["valid"]
    stderr = dovetail("plan", "graph.json", *still, "--budget", held, folder=tmp_path, code=2).stderr
    assert "gaps between places take" in stderr
    words = ["plan", "graph.json", "--check", "plan.json", "--budget", held]
    assert "no places for its tensors were found" in dovetail(*words, folder=tmp_path, code=2).stderr


def test_a_graph_without_nodes_is_refused(tmp_path):
    (tmp_path / "graph.json").write_text(json.dumps({**chain(1), "nodes": [], "final": []}))
    assert "graph.json has no nodes" in dovetail("plan", "graph.json", folder=tmp_path, code=2).stderr


def gaps_of(graph: dict) -> set[str]:
    """Returns storages with a gap: a node between two of their uses that does not use them.

    Storages that are kept from one step to the next count if some node does not use them.
    """
    found = set()
    for tensor in graph["tensors"]:
        if tensor.get("alias_of") or tensor["bytes"] == 0:
            continue
        kept = tensor["kind"] in ("param", "state")
        uses = [
            n
            for n, node in enumerate(graph["nodes"])
            if tensor["id"] in node["inputs"] + node["outputs"] + node.get("mutates", [])
        ]
        if kept and uses and len(uses) < len(graph["nodes"]):
            found.add(tensor["id"])
        if any(b > a + 1 for a, b in itertools.pairwise(uses)):
            found.add(tensor["id"])
    return found


def counted(graph: dict, plan: dict) -> dict:
    """Counts the actions of a plan from the two files alone."""
    nodes = {node["name"]: node for node in graph["nodes"]}
    size = {tensor["id"]: tensor["bytes"] for tensor in graph["tensors"]}
    times = {name: {a["name"]: a["time"] for a in node["algos"]} for name, node in nodes.items()}
    copied, on_host, again, moved, again_s, runs = set(), set(), set(), 0, 0.0, set()
    hosts = {name: {a["name"]: a.get("host", []) for a in node["algos"]} for name, node in nodes.items()}
    for action in plan["actions"]:
        if action["op"] in ("offload", "prefetch"):
            copied.add(action["tensor"])
            moved += size[action["tensor"]]
        if action["op"] == "compute":
            name = action["node"]
            algorithm = action.get("algo", nodes[name]["algos"][0]["name"])
            if name in runs:
                again |= set(nodes[name]["outputs"])
                again_s += times[name][algorithm]
            runs.add(name)
            on_host |= set(hosts[name][algorithm])
    offloaded = copied | (set(plan.get("starts_on_host", [])) - on_host)
    kept = gaps_of(graph) - offloaded - on_host - again
    return {
        "kept": kept,
        "offloaded": offloaded,
        "updated on the host": on_host,
        "recomputed": again,
        "moved_bytes": moved,
        "again_s": again_s,
        "once_s": sum(min(t for a, t in times[name].items() if not hosts[name][a]) for name in nodes),
        "bytes": lambda storages: sum(size[storage] for storage in storages),
    }


def expect_counted(said: dict, graph: dict, plan: dict):
    expected = counted(graph, plan)
    rows = {row["decision"]: row for row in said["decisions"]}
    for decision in ("kept", "offloaded", "updated on the host", "recomputed"):
        assert rows[decision]["storages"] == len(expected[decision]), decision
        assert rows[decision]["bytes"] == expected["bytes"](expected[decision]), decision
        layers = [row for row in said["layers"] if row["decision"] == decision]
        assert sum(row["storages"] for row in layers) == len(expected[decision]), decision
        assert all(row["why"] for row in layers)
    assert said["moved"]["out_bytes"] + said["moved"]["in_bytes"] == expected["moved_bytes"]
    assert abs(said["step"]["again_s"] - expected["again_s"]) < 1e-9
    assert abs(said["step"]["once_s"] - expected["once_s"]) < 1e-9
    parts = ("once_s", "again_s", "packed_s", "algorithms_s", "waited_s", "behind_s")
    assert abs(said["step"]["predicted_s"] - sum(said["step"][part] for part in parts)) < 1e-9


def test_what_was_decided_is_what_the_plan_does(tmp_path):
    graph = chain(6)
    for tensor in graph["tensors"]:  # as far apart as addresses are
        tensor["bytes"] *= 64
    for node in graph["nodes"]:
        for algorithm in node["algos"]:
            algorithm["workspace"] *= 64
    for direction in ("d2h", "h2d"):
        graph["bandwidth"][direction] *= 64
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    budget = 600 * 64
    words = ["plan", "graph.json", "--budget", str(budget), "--out", "plan.json", "--time-limit", 2]
    made = dovetail_json(*words, "--curve", folder=tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    expect_counted(made, graph, plan)
    checked = dovetail_json("plan", "graph.json", "--budget", budget, "--check", "plan.json", folder=tmp_path)
    assert checked["decisions"] == made["decisions"]
    assert made["peak_bytes"] <= made["places_bytes"] == checked["places_bytes"] <= budget
    times = [point["expected_s"] for point in made["curve"]]
    assert len(times) >= 3 and times == sorted(times, reverse=True)
    assert budget in [point["budget_bytes"] for point in made["curve"]]
    assert made["curve"][-1]["budget_bytes"] == made["keep_all_bytes"]
    text = dovetail(*words, "--layers", "--curve", folder=tmp_path).stdout
    assert "decision" in text and "why" in text and "of all kept" in text


def test_a_config_is_planned_as_its_training_would_be(tmp_path):
    make_workspace(tmp_path)
    folder = tmp_path / "seen"
    words = ["plan", "run.toml", *SMALL, "--set", "memory.budget=0.7x", "--time-limit", 0.5]
    made = dovetail_json(*words, "--out", "seen", folder=tmp_path)
    graph, plan = (json.loads((folder / name).read_text()) for name in ("graph.json", "plan.json"))
    expect_counted(made, graph, plan)
    assert made["operations"] == len(graph["nodes"]) and made["storages"] == len(graph["tensors"])
    assert graph["budget_bytes"] == made["budget_bytes"] == int(0.7 * made["eager_peak_bytes"])
    verdict = json.loads(
        subprocess.run(
            [sys.executable, CHECKER, folder / "graph.json", folder / "plan.json"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    )
    assert verdict["valid"] and verdict["peak_bytes"] == made["peak"]["predicted_bytes"], verdict
    peak = made["peak"]
    assert peak["predicted_bytes"] <= peak["places_bytes"] <= made["budget_bytes"]
    assert 0 < peak["measured_bytes"] <= peak["places_bytes"]
    step = made["step"]
    assert step["eager_s"] > 0 and step["measured_s"] > 0
    record = json.loads((folder / "memory_plan.json").read_text())
    assert record["decisions"] == made["decisions"] and len(record["curve"]) >= 3
    assert max(sum(point[1:]) for point in record["memory"]["simulated"]) == peak["predicted_bytes"]
    assert not (tmp_path / "runs").exists() and not (tmp_path / "data").exists()
    text = dovetail(*words, "--layers", folder=tmp_path).stdout
    assert "eager peak" in text and "blocks.0" in text and "measured" in text


def test_a_plan_does_what_memory_allow_has_and_nothing_else(tmp_path):
    make_workspace(tmp_path)
    fp32 = ["--set", "precision.recipe=fp32"]
    words = ["plan", "run.toml", *SMALL, *fp32, "--time-limit", 0.5, "--budget", "0.85x", "--out", "seen"]
    for allowed, decision in (("recompute", "recomputed"), ("compress_mxfp8", "compressed")):
        made = dovetail_json(*words, "--set", f"memory.allow={allowed}", folder=tmp_path)
        storages = {row["decision"]: row["storages"] for row in made["decisions"]}
        assert storages.pop("kept") > 0 and storages.pop(decision) > 0, allowed
        assert not any(storages.values()), allowed
        assert bool(made["packed"]) == (decision == "compressed")
        graph, plan = (json.loads((tmp_path / "seen" / name).read_text()) for name in ("graph.json", "plan.json"))
        verdict = oracle(tmp_path / "seen", graph)
        assert verdict["valid"] and verdict["peak_bytes"] == made["peak"]["predicted_bytes"], verdict
        packed = [a for a in plan["actions"] if a["op"] == "compress"]
        size = {tensor["id"]: tensor["bytes"] for tensor in graph["tensors"]}
        assert sum(by["bytes"] for by in made["packed"]) == sum(size[a["tensor"]] for a in packed)
        assert sum(by["times"] for by in made["packed"]) == len(packed)
    record = json.loads((tmp_path / "seen" / "memory_plan.json").read_text())
    assert record["compressed_bytes"] == sum(by["bytes"] for by in record["packed"]) > record["packed_bytes"] > 0
    at = record["memory"]["purposes"].index("compressed") + 1
    assert 0 < max(point[at] for point in record["memory"]["simulated"]) <= record["packed_bytes"]
    text = dovetail(*words, "--set", "memory.allow=compress_mxfp8", folder=tmp_path).stdout
    assert "off by up to 0.0625 of a block's largest" in text
    refused = dovetail(*words, "--set", "memory.allow=paging", folder=tmp_path, code=2).stderr
    assert "none of its values" in refused and '"compress_mxfp8"' in refused
    fits = ["plan", "run.toml", *SMALL, "--fits", "--budget", "1.05x"]
    floors = {
        allow: dovetail_json(*fits, "--set", f"memory.allow={allow}", folder=tmp_path)["floor_bytes"]
        for allow in ("[]", "compress_mxfp8", "recompute")
    }
    assert floors["recompute"] < floors["[]"] and floors["compress_mxfp8"] < floors["[]"]
    words = ["plan", "run.toml", *SMALL, "--budget", "0.8x", "--set", "memory.allow=[]"]
    nothing = dovetail(*words, folder=tmp_path, code=2)
    lower = 'memory.folder or memory.allow = ["recompute"] or memory.allow = ["compress_mxfp8"] would lower the floor'
    assert lower in nothing.stderr


def test_a_quantized_config_is_planned_as_it_is_trained(tmp_path):
    make_workspace(tmp_path)
    words = ["plan", "run.toml", *SMALL, "--budget", "0.9x", "--set", "precision.recipe=mxfp8", "--time-limit", 0.5]
    dovetail_json(*words, "--out", "seen", folder=tmp_path)
    graph = json.loads((tmp_path / "seen" / "graph.json").read_text())
    assert any(node["name"].startswith("dovetail::mx_linear:") for node in graph["nodes"])


def test_below_the_floor_names_the_operation_and_a_batch_that_fits(tmp_path):
    make_workspace(tmp_path)
    words = ["plan", "run.toml", *SMALL]
    whole = dovetail_json(*words, "--fits", "--budget", "1x", folder=tmp_path)
    budget = whole["floor_bytes"] * 9 // 10
    stderr = dovetail(*words, "--set", f"memory.budget={budget}", folder=tmp_path, code=2).stderr
    assert "memory.budget = " in stderr and "below the floor of this step" in stderr
    assert "the largest single operation is" in stderr and "workspace" in stderr
    largest = int(re.search(r"lower train.batch from 8 to (\d+)", stderr)[1])
    assert 1 <= largest < 8
    fits = ["plan", "run.toml", *SMALL, "--fits", "--budget", budget]
    assert dovetail_json(*fits, folder=tmp_path, code=1)["largest"] == largest
    smaller = dovetail_json(*fits, "--set", f"train.batch={largest}", folder=tmp_path)
    assert smaller["fits"] and smaller["floor_bytes"] <= budget
    larger = dovetail_json(*fits, "--set", f"train.batch={largest + 1}", folder=tmp_path, code=1)
    assert not larger["fits"] and larger["floor_bytes"] > budget


def test_the_largest_batch_trains_and_one_more_is_refused(tmp_path):
    make_workspace(tmp_path)
    words = ["run.toml", *SMALL, "--set", "memory.solve_s=1", "--set", "schedule.warmup_steps=0"]
    floor = dovetail_json("plan", *words, "--fits", "--budget", "1x", folder=tmp_path)["floor_bytes"]
    budget = floor * 11 // 10
    largest = dovetail_json("plan", *words, "--fits", "--budget", budget, folder=tmp_path)["largest"]
    assert largest >= 8
    train = ["train", *words, "--set", f"memory.budget={budget}", "--set", "train.steps=8"]
    dovetail(*train, "--set", f"train.batch={largest}", "--set", "run.folder=runs/fits", folder=tmp_path)
    assert (tmp_path / "runs" / "fits" / "memory_plan.json").exists()
    more = ["--set", f"train.batch={largest + 1}", "--set", "run.folder=runs/more"]
    stderr = dovetail(*train, *more, folder=tmp_path, code=2).stderr
    assert "below the floor of this step" in stderr and " step " not in stderr


def test_whether_a_config_fits_here(tmp_path):
    make_workspace(tmp_path)
    words = ["plan", "run.toml", *SMALL, "--fits"]
    answer = dovetail_json(*words, folder=tmp_path)
    assert answer["fits"] and answer["source"] == "recorded" and answer["key"] == "train.batch"
    assert answer["asked"] == 8 <= answer["largest"]
    assert answer["keep_all_bytes"] + answer["beside_bytes"] <= answer["available_bytes"]
    text = dovetail(*words, folder=tmp_path).stdout
    assert text.startswith("fits (recorded)") and "the largest train.batch that fits is" in text
    wide = ["--set", "model.width=65536", "--set", "model.layers=400"]
    no = dovetail_json("plan", "run.toml", *wide, "--fits", folder=tmp_path, code=1)
    assert not no["fits"] and no["source"] == "estimated" and no["largest"] == 0
    experts = [*words, "--set", "model.moe.experts=4"]
    assert dovetail_json(*experts, folder=tmp_path)["source"] == "recorded"
    dropping = dovetail_json(*experts, "--set", "model.moe.drop=position", folder=tmp_path)
    assert dropping["source"] == "estimated" and "pad_to_capacity = false" in dropping["why_estimated"]
    micro = dovetail_json(*words, "--set", "train.micro_batch=2", folder=tmp_path)
    assert micro["key"] == "train.micro_batch" and micro["asked"] == 2


def test_options_that_do_not_go_together_are_refused(tmp_path):
    make_workspace(tmp_path)
    (tmp_path / "graph.json").write_text(json.dumps(chain(2)))
    for words, message in (
        (["graph.json", "--fits"], "belong to a training config"),
        (["graph.json", "--set", "train.batch=2"], "belong to a training config"),
        (["run.toml", "--without", "offload"], "belong to a graph.json"),
        (["run.toml", "--fits", "--curve"], "--fits makes no plan"),
        (["run.toml"], "has no memory.budget"),
        (["run.toml", "--budget", "much"], "not a memory budget"),
        (["graph.json", "--check", "plan.json", "--out", "again.json"], "--check takes a plan as it is"),
    ):
        assert message in dovetail("plan", *words, folder=tmp_path, code=2).stderr, words


def test_sizes_of_a_graph_are_bounded(tmp_path):
    def said(path, value):
        graph = chain(3) | {"codecs": {"half": {"ratio": 0.5, "enc_Bps": 100, "dec_Bps": 100}}}
        at = graph
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        (tmp_path / "graph.json").write_text(json.dumps(graph))
        code = 2 if ("budget" not in path[-1] and "host" not in path[-1]) or value > 4e18 else 0
        return dovetail("plan", "graph.json", folder=tmp_path, code=code).stderr

    for value in (2**51, 2**61, 2**62, 9e18, 1e300):
        assert "base_bytes is" in said(["base_bytes"], value)
        assert "tensors[1]: bytes is" in said(["tensors", 1, "bytes"], value)
        assert "algos[0]: workspace is" in said(["nodes", 0, "algos", 0, "workspace"], value)
    assert "all tensors have" in said(["tensors", 1, "bytes"], 2**50)
    assert "codecs.half: a ratio of 1e+50" in said(["codecs", "half", "ratio"], 1e50)
    assert "budget_bytes is" in said(["budget_bytes"], 2**62)
    said(["budget_bytes"], 2**61)
    said(["host_bytes"], 2**61)
