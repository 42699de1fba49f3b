"""memory.budget on several ranks. Each rank has its own plan; results are bitwise equal to a run without a budget."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import launch
from tiny_run import BINARY, command, make_workspace, metrics

ALL = "DOVETAIL_ALL" in os.environ  # `./dev test --all`

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
    """Returns the layers' records of experts.jsonl, without the ranks' waiting times."""
    return [json.loads(line)["layers"] for line in (run / "experts.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, bytes]:
    """The tensors of the last checkpoint, file by file."""
    last = max((run / "checkpoints").glob("step-*"))
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def expect_a_plan_within_the_budget(run: Path, collectives: tuple[str, ...] = ("all_to_all", "all_reduce")) -> None:
    nodes = [node["name"] for node in json.loads((run / "graph.json").read_text())["nodes"]]
    actions = json.loads((run / "plan.json").read_text())["actions"]
    ours = [node for node in nodes if any(name in node for name in collectives)]
    ran = [action["node"] for action in actions if action["op"] == "compute"]
    assert ours
    assert [node for node in ran if node in ours] == ours, "every collective runs once, in the order of the step"
    memory = json.loads((run / "memory_plan.json").read_text())
    assert memory["step_bytes"] <= memory["budget_bytes"] < memory["keep_all_bytes"]


def test_two_ranks_by_plan_have_the_bits_of_two_ranks_without(tmp_path):
    workspace = make_workspace(tmp_path)
    launch(workspace, 2, "plain", **MODEL)
    (workspace / "tier").mkdir()
    for name, share, folder in [("recomputing", "0.9x", ""), ("disk", "0.6x", "tier")]:
        budget = {"memory__budget": share, "memory__folder": folder, "memory__solve_s": "1"}
        launch(workspace, 2, name, **MODEL, **budget)
        assert metrics(workspace / name) == metrics(workspace / "plain")
        plan = json.loads((workspace / name / "plan.json").read_text())
        assert any(action["op"] in ("offload", "prefetch") for action in plan["actions"]) == (folder != "")
        expect_a_plan_within_the_budget(workspace / name)


@pytest.mark.parametrize("precision", [MXFP8, *([{}] if ALL else [])], ids=lambda p: "mxfp8" if p else "fp32")
def test_experts_over_two_ranks_by_plan_have_the_bits_of_those_without(tmp_path, precision):
    workspace = make_workspace(tmp_path)
    settings = EXPERTS | precision
    launch(workspace, 2, "plain", **settings)
    launch(workspace, 2, "planned", **settings, memory__budget="0.6x", memory__folder=".", memory__solve_s="1")
    plain, planned = workspace / "plain", workspace / "planned"
    assert metrics(planned) == metrics(plain)
    assert loads(planned) == loads(plain)
    if precision:
        assert (planned / "quantization.jsonl").read_bytes() == (plain / "quantization.jsonl").read_bytes()
    expect_a_plan_within_the_budget(planned)


RECOMMENDER = """
[run]
name = "clicks"
device = "cpu"
threads = 1
[recommender]
model = "dlrm"
dim = 8
bottom = [128, 128]
deep = [128, 128, 128]
grain = 256
[rows]
files = ["rows.tsv"]
label = "clicked"
dense = [{ columns = "size", transform = "standard" }]
sparse = [{ columns = "user", num_rows = 50 }, { columns = "item", num_rows = 60 }]
[precision]
recipe = "fp32"
[embedding]
sharding = "row"
[train]
steps = 12
batch = 1024
[schedule]
decay = "constant"
[log]
tensorboard = false
"""


def make_clicks(folder: Path) -> Path:
    draw = random.Random(1)
    rows = [
        f"u{draw.randrange(40)}\ti{draw.randrange(30)}\t{draw.random():.3f}\t{draw.randrange(2)}" for _ in range(6000)
    ]
    (folder / "rows.tsv").write_text("\n".join(["user\titem\tsize\tclicked", *rows]) + "\n")
    (folder / "run.toml").write_text(RECOMMENDER)
    return folder


def test_a_recommender_on_two_ranks_by_plan_has_the_bits_of_one_without(tmp_path):
    make_clicks(tmp_path)
    launch(tmp_path, 2, "plain")
    launch(
        tmp_path, 2, "planned", memory__budget="0.7x", memory__folder=".", memory__solve_s="1", train__micro_batch="256"
    )
    assert metrics(tmp_path / "planned") == metrics(tmp_path / "plain")
    assert weights(tmp_path / "planned") == weights(tmp_path / "plain") != {}
    expect_a_plan_within_the_budget(tmp_path / "planned", collectives=("all_reduce", "lookup", "send_gradient"))


def test_ranks_with_uneven_shares_by_plan_have_the_bits_of_those_without(tmp_path):
    workspace = make_workspace(tmp_path)
    shares = {"train__micro_batch": "2", "balance__mode": "fixed", "balance__shares": "[1, 3]"}
    launch(workspace, 2, "plain", **MODEL, **shares)
    launch(workspace, 2, "planned", **MODEL, **shares, memory__budget="0.6x", memory__folder=".", memory__solve_s="1")
    assert metrics(workspace / "planned") == metrics(workspace / "plain")
    expect_a_plan_within_the_budget(workspace / "planned")


SLOW_SECOND = """#!/bin/sh
# The second rank has no vectors.
[ "$RANK" = 1 ] && export DOVETAIL_SIMD=scalar
exec "$@"
"""


def launch_with_a_slow_rank(folder: Path, run: str, **settings) -> None:
    script = folder / "slow_second.sh"
    script.write_text(SLOW_SECOND)
    script.chmod(0o755)
    words = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*words, script, BINARY, *command(run, **settings)], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("model", "tier"),
    [("gpt", "tier"), ("recommender", ""), *([("gpt", ""), ("recommender", "tier")] if ALL else [])],
    ids=lambda value: value or "recomputing",
)
def test_where_shares_move_ranks_plan_anew(tmp_path, model, tier):
    settings = {"train__steps": "26", "balance__mode": "auto", "memory__solve_s": "0.5"}
    if model == "gpt":
        workspace = make_workspace(tmp_path)
        settings |= {"model__width": "128", "model__context": "64", "train__batch": "16", "train__micro_batch": "2"}
    else:
        workspace = make_clicks(tmp_path)
        settings |= {"train__batch": "2048", "train__micro_batch": "256"}
    (workspace / "tier").mkdir()
    budget = "0.8x" if tier else "0.95x"
    launch_with_a_slow_rank(workspace, "planned", **settings, memory__budget=budget, memory__folder=tier)
    shares = [json.loads(line) for line in (workspace / "planned" / "balance.jsonl").read_text().splitlines()]
    # Seven steps until there is a plan tell nothing, then four do; the lookups of a step leave one step before it.
    assert [line["step"] for line in shares[:2]] == [1, 12 if model == "gpt" else 13]
    assert shares[0]["shares"] == [4, 4] and shares[-1]["shares"][0] > 4
    graph = json.loads((workspace / "planned" / "graph.json").read_text())
    clocks = [node for node in graph["nodes"] if node["name"].startswith("dovetail::start_clock")]
    assert len(clocks) in [line["shares"][0] for line in shares[1:]], "the plan is of the shares before"
    expect_a_plan_within_the_budget(workspace / "planned", collectives=("all_reduce",))
    del settings["balance__mode"], settings["memory__solve_s"]
    launch(workspace, 2, "plain", **settings)
    for planned, plain in zip(metrics(workspace / "planned"), metrics(workspace / "plain"), strict=True):
        assert planned["loss"] == pytest.approx(plain["loss"], rel=1e-4)
