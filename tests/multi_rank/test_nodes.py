"""`dovetail kmeans` and `fit` on several nodes under torchrun: the bits of one, and a node that dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import BINARY, processes_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from cli import dovetail_json


def clouds(rows, columns, k):
    random = np.random.default_rng(4)
    return (
        random.normal(0, 2, (k, columns))[random.integers(0, k, rows)] + random.normal(0, 1, (rows, columns))
    ).astype(np.float32)


def launched(words, folder, ranks=2):
    done = subprocess.run(
        [BINARY, "launch", "-n", str(ranks), *map(str, words), "--timeout", "250", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    x = clouds(60_000, 6, 5)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", np.column_stack([x, x[:, 0] > x[:, 1]]).astype(np.float32))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["kmeans", "--data", "x.npy", "--k", 20],
        ["kmeans", "--data", "x.npy", "--k", 5, "--batch", 5000],
        ["fit", "gmm", "--data", "x.npy", "--k", 4, "--iterations", 5],
        ["fit", "logistic", "--data", "y.npy", "--target", "c6"],
        ["fit", "pca", "--data", "x.npy"],
    ],
)
def test_two_nodes_write_what_one_writes(table, tmp_path, words):
    words = [table / word if str(word).endswith(".npy") else word for word in words]
    alone = dovetail_json(*words, "--out", "alone", folder=tmp_path)
    both = launched([*words, "--out", "both"], tmp_path)
    assert all(node["rows"] > 0 for node in both["nodes"])
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == names
    files = [name for name in names if name.endswith(".csv")]
    assert files
    for name in files:
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "both" / name).read_bytes(), name
    for key in ["iterations", "inertia", "counts", "log_likelihood", "loss", "accuracy", "variances"]:
        assert both.get(key) == alone.get(key), key


def test_nodes_have_executors_of_their_own_on_processors_of_their_own(table):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    words = ["kmeans", "--data", "x.npy", "--k", 5, "--executors", "cpu:1"]
    both = launched([*words, "--out", "executors"], table)
    assert [[executor["name"] for executor in node["executors"]] for node in both["nodes"]] == [["cpu:1"], ["cpu:1"]]
    assert "rows of cpu:1 on node 1" in (table / "executors/report.html").read_text()


def test_processes_of_a_machine_do_not_share_a_gpu(table):
    words = ["kmeans", "--data", "x.npy", "--k", "5", "--executors", "cuda:0"]
    launch = [BINARY, "launch", "-n", "2", "--max-restarts", "0", *words]
    done = subprocess.run(launch, cwd=table, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "all processes of this machine would share cuda:0" in done.stderr


def killed_after_a_state(words, folder, run):
    """Runs on two nodes and kills one once a state exists. Returns the log, or None if the job ended before."""
    state = folder / run / "state.safetensors"
    process = subprocess.Popen(
        [BINARY, "launch", "-n", "2", *map(str, words), "--out", run],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    nodes = []
    while process.poll() is None and not (len(nodes) == 2 and state.exists()):
        nodes = processes_of(folder, run.encode())
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(nodes[1], signal.SIGKILL)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    return log if "of a job that was stopped" in log else None


def test_a_dead_node_is_restarted_from_the_last_iteration(table):
    np.save(table / "big.npy", clouds(200_000, 16, 40))
    words = ["kmeans", "--data", "big.npy", "--k", 60, "--init", "first", "--tolerance", 0, "--iterations", 150]
    whole = dovetail_json(*words, "--out", "whole", folder=table)
    runs = [f"killed{i}" for i in range(3)]
    run = next(run for run in runs if killed_after_a_state(words, table, run))
    for name in ["centres.csv", "labels.csv"]:
        assert (table / "whole" / name).read_bytes() == (table / run / name).read_bytes(), name
    result = json.loads((table / run / "kmeans.json").read_text())
    assert result["inertia"] == whole["inertia"]
    steps = [json.loads(line) for line in (table / run / "iterations.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, whole["iterations"] + 1))
