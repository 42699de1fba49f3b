"""kill -9 at random moments of preparing, training and saving: each restart goes on, to the undisturbed run's end.

10 kills; 100 with DOVETAIL_ALL=1.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tiny_run import BINARY, command, make_workspace, metrics, train

KILLS = 100 if os.environ.get("DOVETAIL_ALL") else 10
STEPS = 100 + 50 * KILLS
SETTINGS = {"train__steps": STEPS, "checkpoint__every_steps": 5, "eval__every_steps": 50}


def check_final_names_are_whole(run: Path) -> None:
    """Checks that files with their final names are complete, whenever the process died."""
    for checkpoint in (run / "checkpoints").glob("step-*"):
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        names = {file["name"] for file in manifest["files"]}
        assert names | {"manifest.json"} == {path.name for path in checkpoint.iterdir()}
        for file in manifest["files"]:
            content = (checkpoint / file["name"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == file["sha256"], checkpoint
    for name in ["machine.json", "samples.json"]:
        if (run / name).exists():
            json.loads((run / name).read_text())
    if (run / "report.html").exists():
        assert (run / "report.html").read_text().rstrip().endswith("</html>")


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name.endswith(".partial")]


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def wait_for_steps(process: subprocess.Popen, run: Path, steps: int) -> None:
    """Until the process has written metrics of about `steps` steps, or has ended."""
    path = run / "metrics.jsonl"
    opened = path.stat().st_mtime_ns if path.exists() else 0
    while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == opened):
        time.sleep(0.001)  # opening the file cuts it back, which changes its time
    begin = size_of(path)
    while process.poll() is None and size_of(path) < begin + 100 * steps:
        time.sleep(0.001)


def model_hashes(run: Path) -> list[str]:
    newest = max((run / "checkpoints").glob("step-*"))
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(newest.glob("*.safetensors"))]


def test_every_kill_is_survived(tmp_path):
    folder = make_workspace(tmp_path)
    undisturbed = train(folder, "undisturbed", **SETTINGS)
    assert undisturbed.returncode == 0, undisturbed.stderr

    moments = random.Random(20)
    run = folder / "killed"
    settings = {**SETTINGS, "data__path": "data-killed"}
    for kill in range(KILLS):
        process = subprocess.Popen(
            [BINARY, *command("killed", **settings)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if kill % 5 == 4:
            time.sleep(moments.uniform(0, 0.8))  # while it starts, prepares or resumes
        else:
            wait_for_steps(process, run, moments.randrange(40))
            time.sleep(moments.uniform(0, 0.01))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), errors.decode()
        check_final_names_are_whole(run)

    final = train(folder, "killed", **settings)
    assert final.returncode == 0, final.stderr
    assert (run / "metrics.jsonl").read_bytes() == (folder / "undisturbed" / "metrics.jsonl").read_bytes()
    assert [line["step"] for line in metrics(run)] == list(range(1, STEPS + 1))
    assert model_hashes(run) == model_hashes(folder / "undisturbed")
    assert (run / "samples.json").read_text() == (folder / "undisturbed" / "samples.json").read_text()
    assert leftovers(folder) == []
    # The kills did interrupt training, or this test would prove nothing.
    resumed_from = json.loads((run / "machine.json").read_text())["resumed_from"]
    assert len(set(resumed_from)) >= 2, resumed_from


def test_sigterm_saves_and_exits_cleanly(tmp_path):
    folder = make_workspace(tmp_path)
    process = subprocess.Popen(
        [BINARY, *command("run", train__steps=1000000)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_for_steps(process, folder / "run", 5)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    newest = max((folder / "run" / "checkpoints").glob("step-*"))
    assert int(newest.name.removeprefix("step-")) == metrics(folder / "run")[-1]["step"]
    assert leftovers(folder) == []
