"""D- and K-Interleaving in the engine's trace: the order of a step's parts, and messages that the other parts hide."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from ranks import BINARY

FEATURES, ROWS, BATCH, GRAIN, RANKS = 6, 300, 4096, 512, 2
STEPS = range(3, 11)  # steps with a trace
PARTS = ("dovetail::embedding_pool", "dovetail::embedding_stitch", "dovetail::embedding_gradient")
PARTS += ("dovetail::embedding_update", "forward", "backward")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interleaving")
    draw = random.Random(1)
    lines = ["\t".join(["label", "x", *(f"c{i}" for i in range(FEATURES))])]
    for _ in range(BATCH * 12):
        ids = "\t".join(str(draw.randrange(ROWS)) for _ in range(FEATURES))
        lines.append(f"{draw.randrange(2)}\t{draw.random():.3f}\t{ids}")
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    sparse = "".join(f'{{ columns = ["c{i}"], ids = "integer", num_rows = {ROWS} }},' for i in range(FEATURES))
    (folder / "run.toml").write_text(
        f'[recommender]\nmodel = "dlrm"\ndim = 64\nbottom = [16]\ndeep = [32]\ngrain = {GRAIN}\n'
        f'[rows]\nfiles = ["rows.tsv"]\nlabel = "label"\ndense = [{{ columns = ["x"] }}]\nsparse = [{sparse}]\n'
        f'[precision]\nrecipe = "fp32"\n[embedding]\ntransfer = "bags"\n[train]\nbatch = {BATCH}\nsteps = 12\n'
        "[schedule]\nwarmup_steps = 0\n[checkpoint]\nevery_steps = 0\n[log]\ntensorboard = false\n"
        f"trace_steps = {list(STEPS)}\n"
    )
    return folder


def traces(folder: Path, **settings) -> list[list[dict]]:
    """Events of rank 0 in each traced step, by their beginning."""
    name = "-".join(str(value) for value in settings.values())
    words = [f"run.folder={name}", "run.threads=1", *(f"{key.replace('__', '.')}={v}" for key, v in settings.items())]
    command = [BINARY, "launch", "-n", str(RANKS), "--max-restarts", "0", "train", "run.toml"]
    for word in words:
        command += ["--set", word]
    subprocess.run(command, cwd=folder, env={**os.environ}, capture_output=True, text=True, check=True)
    found = []
    for step in STEPS:
        events = json.loads((folder / name / f"trace-{step}.json").read_text())["traceEvents"]
        found.append(sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]))
    return found


def order_of(events: list[dict]) -> list[str]:
    """Names of the parts of the step on its own thread; equal ones in a row count once."""
    thread = next(e["tid"] for e in events if e["name"] == "forward")
    names = [
        e["name"].removeprefix("dovetail::embedding_") for e in events if e["tid"] == thread and e["name"] in PARTS
    ]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


def test_the_rows_of_the_next_micro_batch_are_sent_before_the_dense_part(folder):
    per_rank = BATCH // RANKS
    whole = traces(folder, train__micro_batch=per_rank, embedding__groups=1)
    cut = traces(folder, train__micro_batch=per_rank // 4, embedding__groups=1)
    for events in whole:  # no rows to send while the dense part computes
        dense = ["forward", "backward"] * (per_rank // GRAIN)
        assert order_of(events) == ["pool", "stitch", *dense, "gradient", "update"]
    for events in cut:
        dense = ["forward", "backward"] * (per_rank // 4 // GRAIN)
        part = ["stitch", "pool", *dense, "gradient"]
        assert order_of(events) == ["pool", *part * 3, "stitch", *dense, "gradient", "update"]


def test_the_ids_of_the_next_step_are_placed_before_the_update(folder):
    per_rank = BATCH // RANKS
    for micro_batch in (per_rank, per_rank // 4):
        for events in traces(folder, train__micro_batch=micro_batch, embedding__groups=1, run__name="place"):
            thread = next(e["tid"] for e in events if e["name"] == "forward")
            own = [e for e in events if e["tid"] == thread]
            placed = [e["ts"] for e in own if e["name"] == "dovetail::embedding_place_ids"]
            sent = next(e["ts"] for e in own if e["name"] == "dovetail::embedding_gradient")
            updated = next(e["ts"] for e in own if e["name"] == "dovetail::embedding_update")
            assert len(placed) == 1
            assert sent < placed[0] < updated


def test_a_group_is_pooled_before_the_rows_of_the_previous_one_have_arrived(folder):
    pools = {}
    hidden = 0
    for groups in (1, 2):
        for events in traces(folder, train__micro_batch=BATCH // RANKS, embedding__groups=groups):
            forward = next(e["ts"] for e in events if e["name"] == "forward")
            pooled = [e["ts"] for e in events if e["name"] == "dovetail::embedding_pool" and e["ts"] < forward]
            pools[groups] = len(pooled)
            # A group is pooled once for each rank, then its rows are sent.
            sent = next(e for e in events if e["name"] == "gloo:all_to_all" and e["ts"] > pooled[0])
            hidden += groups == 2 and sent["ts"] + sent["dur"] > pooled[RANKS]
    assert pools == {1: RANKS, 2: 2 * RANKS}
    assert hidden > 0
