"""Runs of several processes under `dovetail launch`, and the death of one of them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from tiny_run import BINARY, command


def launch_words(ranks: int, run: str, **settings) -> list[str]:
    return [BINARY, "launch", "-n", str(ranks), *command(run, **settings)]


def launch(folder: Path, ranks: int, run: str, **settings) -> None:
    done = subprocess.run(launch_words(ranks, run, **settings), cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def processes_of(folder: Path, word: bytes) -> list[int]:
    """Process ids of the ranks that run in `folder` with this word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            same = os.readlink(path / "cwd") == str(folder) and word in words and b"launch" not in words
            if same and os.readlink(path / "exe") == os.path.realpath(BINARY):
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def kill_a_rank_after_checkpoints(folder: Path, run: str, settings: dict, checkpoints: int) -> bool:
    """Trains on two ranks and kills one when there are so many checkpoints; False if training was over before."""
    process = subprocess.Popen(
        launch_words(2, run, **settings), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    ranks: list[int] = []
    while process.poll() is None and len(list((folder / run / "checkpoints").glob("step-*"))) < checkpoints:
        ranks = processes_of(folder, f"run.folder={run}".encode())
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        if len(ranks) == 2:
            os.kill(ranks[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return bool(json.loads((folder / run / "machine.json").read_text())["resumed_from"])


def expect_a_killed_rank_changes_nothing(folder: Path, settings: dict, checkpoints: int = 1) -> Path:
    """Trains once undisturbed and once with a rank killed: the same metrics, bit for bit. Returns the killed run."""
    launch(folder, 2, "whole", **settings)
    attempts = [f"killed{i}" for i in range(3)]
    run = next(run for run in attempts if kill_a_rank_after_checkpoints(folder, run, settings, checkpoints))
    machine = json.loads((folder / run / "machine.json").read_text())
    assert machine["finished"] and len(machine["resumed_from"]) == 1 and machine["resumed_from"][0] >= 20
    assert (folder / run / "metrics.jsonl").read_bytes() == (folder / "whole" / "metrics.jsonl").read_bytes()
    return folder / run
