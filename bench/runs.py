"""Runs of the built engine that a study compares."""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOVETAIL = ROOT / "build/release/bin/dovetail"


def write_file_list() -> None:
    """The list of texts that the configs of the studies read."""
    files = ROOT / "data/quickstart/files.txt"
    files.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, ROOT / "tools/quickstart_text.py", "--out", files], check=True)


def dense_config(config: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Writes `config` without its [model.moe] to `out`/dense.toml."""
    text, removed = re.subn(r"^\[model\.moe\]\n(?:.+\n)*", "", config.read_text(), flags=re.MULTILINE)
    assert removed == 1
    out.mkdir(parents=True, exist_ok=True)
    path = out / "dense.toml"
    path.write_text(text)
    return path


def finished(folder: pathlib.Path) -> bool:
    machine = folder / "machine.json"
    return machine.exists() and json.loads(machine.read_text())["finished"]


def train_once(config: pathlib.Path, folder: pathlib.Path, settings: list[str], jobs: int = 1, ranks: int = 1) -> None:
    """Trains in `folder` unless a run has finished there, beside `jobs` - 1 others. Exits where it fails."""
    if finished(folder):
        return
    threads = max(1, len(os.sched_getaffinity(0)) // (jobs * ranks))
    launch = [] if ranks == 1 else ["launch", "-n", str(ranks)]
    command = [str(DOVETAIL), *launch, "train", str(config)]
    for setting in [f"run.folder={folder}", f"run.name={folder.name}", f"run.threads={threads}", *settings]:
        command += ["--set", setting]
    print(folder.name, flush=True)
    environment = {**os.environ, "DOVETAIL_PYTHON": sys.executable}
    code = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if code != 0:
        sys.exit(f"{folder.name}: dovetail ended with code {code}")


def read_lines(folder: pathlib.Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def read_machine(folder: pathlib.Path) -> dict:
    return json.loads((folder / "machine.json").read_text())


def final_loss(folder: pathlib.Path) -> float:
    return read_lines(folder, "metrics.jsonl")[-1]["validation_loss"]
