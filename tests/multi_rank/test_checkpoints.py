"""kill -9 of either rank while both write checkpoints: each restart goes on from one that is whole.

4 kills; 40 with DOVETAIL_ALL=1.
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from ranks import launch, processes_of
from test_kill import check_final_names_are_whole, leftovers, model_hashes
from tiny_run import BINARY, command, make_workspace

KILLS = 40 if os.environ.get("DOVETAIL_ALL") else 4
SETTINGS = {"train__steps": 60 * KILLS, "checkpoint__every_steps": 1, "eval__every_steps": 60}


def newest_step(run: Path) -> int:
    names = [path.name for path in (run / "checkpoints").glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def test_ranks_killed_during_saves_lose_nothing(tmp_path):
    folder = make_workspace(tmp_path)
    launch(folder, 2, "whole", **SETTINGS)

    run, moments = folder / "killed", random.Random(5)
    words = [BINARY, "launch", "--max-restarts", str(KILLS), "-n", "2", *command("killed", **SETTINGS)]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for kill in range(KILLS):
        begin = newest_step(run)
        while process.poll() is None and newest_step(run) < begin + 5:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.02))
        ranks = processes_of(folder, b"run.folder=killed")
        if len(ranks) == 2:
            os.kill(ranks[kill % 2], signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "checkpoint refused" not in errors, errors

    check_final_names_are_whole(run)
    assert leftovers(folder) == []
    assert (run / "metrics.jsonl").read_bytes() == (folder / "whole" / "metrics.jsonl").read_bytes()
    assert model_hashes(run) == model_hashes(folder / "whole")
    assert any(path.name.startswith("rank-00001-") for path in max((run / "checkpoints").glob("step-*")).iterdir())
    # The kills did interrupt saves, or this test would prove nothing.
    assert json.loads((run / "machine.json").read_text())["resumed_from"]
