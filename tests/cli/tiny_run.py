"""A small training run as a user starts one, for tests that need whole processes."""

import json
import os
import random
import subprocess
from pathlib import Path

BINARY = os.environ["DOVETAIL_BINARY"]
SANITIZED = "asan" in BINARY or "tsan" in BINARY

CONFIG = """
[run]
name = "tiny"
device = "cpu"
threads = 1
[model]
layers = 2
width = 32
heads = 2
context = 32
[data]
text = ["text"]
path = "data"
validation_fraction = 0.1
validation_split = "tail"
[train]
steps = 60
batch = 4
[optimizer]
lr = 5e-3
[schedule]
warmup_steps = 10
[precision]
recipe = "fp32"
[eval]
every_steps = 20
max_tokens = 256
[log]
tensorboard = false
sample_prompts = ["two "]
sample_tokens = 16
"""

WORDS = ["two", "gears", "mesh", "and", "neither", "waits", "for", "the", "other", "while", "data", "flows\n"]


def make_workspace(folder: Path) -> Path:
    """A folder with text and a config, in which `dovetail train run.toml` works."""
    words = random.Random(1)
    (folder / "text").mkdir(parents=True)
    for i in range(4):
        (folder / "text" / f"{i}.txt").write_text(" ".join(words.choice(WORDS) for _ in range(1500)))
    (folder / "run.toml").write_text(CONFIG)
    return folder


def command(run: str, **settings) -> list[str]:
    """The words after `dovetail`: train into the folder `run`, with settings as section__key=value."""
    words = ["train", "run.toml", "--set", f"run.folder={run}"]
    for key, value in settings.items():
        words += ["--set", f"{key.replace('__', '.')}={value}"]
    return words


def train(folder: Path, run: str, **settings) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, *command(run, **settings)], cwd=folder, capture_output=True, text=True, timeout=600)


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
