"""Real processes under torchrun: the same bits twice, one law for any number of ranks, and restarts after a death."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from tiny_run import BINARY, command, make_workspace, metrics, train


def launch_words(ranks: int, run: str, **settings) -> list[str]:
    return [BINARY, "launch", "-n", str(ranks), *command(run, **settings)]


def launch(folder: Path, ranks: int, run: str, **settings) -> None:
    done = subprocess.run(launch_words(ranks, run, **settings), cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("torchrun"))


def test_two_ranks_twice_have_the_same_bits(workspace):
    for run in ["first", "second"]:
        launch(workspace, 2, run, train__micro_batch=1)
    assert (workspace / "first" / "metrics.jsonl").read_bytes() == (workspace / "second" / "metrics.jsonl").read_bytes()
    assert json.loads((workspace / "first" / "machine.json").read_text())["ranks"] == 2


def test_ranks_change_only_the_rounding(workspace):
    settings = {"precision__recipe": "fp64", "train__steps": 50, "optimizer__lr": "1e-3"}
    alone = train(workspace, "alone", **settings)
    assert alone.returncode == 0, alone.stderr
    expected = metrics(workspace / "alone")
    for ranks in [2, 4]:
        launch(workspace, ranks, f"ranks{ranks}", **settings)
        lines = metrics(workspace / f"ranks{ranks}")
        assert len(lines) == 50
        for line, peer in zip(lines, expected, strict=True):
            assert line["tokens"] == peer["tokens"]
            assert line["loss"] == pytest.approx(peer["loss"], abs=1e-10)
            assert line.get("validation_loss") == pytest.approx(peer.get("validation_loss"), abs=1e-10)


def ranks_of(folder: Path, run: str) -> list[int]:
    """Process ids of the ranks that train into `run`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            same = os.readlink(path / "cwd") == str(folder) and f"run.folder={run}".encode() in words
            if same and os.readlink(path / "exe") == os.path.realpath(BINARY):
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def kill_a_rank_after_the_first_checkpoint(folder: Path, run: str, settings: dict) -> bool:
    """Trains on two ranks and kills one on the way; False if training was over before."""
    process = subprocess.Popen(
        launch_words(2, run, **settings), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    ranks: list[int] = []
    while process.poll() is None and not list((folder / run / "checkpoints").glob("step-*")):
        ranks = ranks_of(folder, run)
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        if len(ranks) == 2:
            os.kill(ranks[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return bool(json.loads((folder / run / "machine.json").read_text())["resumed_from"])


def test_a_dead_rank_is_restarted_from_the_last_checkpoint(workspace):
    settings = {"train__steps": 300, "checkpoint__every_steps": 20}
    launch(workspace, 2, "whole", **settings)
    attempts = [f"killed{i}" for i in range(3)]
    run = next(run for run in attempts if kill_a_rank_after_the_first_checkpoint(workspace, run, settings))
    machine = json.loads((workspace / run / "machine.json").read_text())
    assert machine["finished"] and len(machine["resumed_from"]) == 1 and machine["resumed_from"][0] >= 20
    assert (workspace / run / "metrics.jsonl").read_bytes() == (workspace / "whole" / "metrics.jsonl").read_bytes()
