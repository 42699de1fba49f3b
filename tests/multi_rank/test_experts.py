"""Experts over ranks in whole runs: configs/moe, and layouts that are chosen by time."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ranks import launch, launch_words
from tiny_run import make_workspace, metrics, train

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs/moe").glob("*.toml"))
# The full sizes of the mixtures, with short text and few steps.
SHORT = {
    "data__file_list": "''",
    "data__path": "data",
    "data__text": "['text']",
    "data__validation_split": "tail",
    "data__validation_fraction": 0.1,
    "data__tokenizer": "{ kind = 'bytes' }",
    "train__steps": 20,
    "train__batch": 4,
    "model__context": 64,
    "optimizer__lr": 3e-3,
    "schedule__warmup_steps": 5,
    "eval__every_steps": 20,
    "precision__recipe": "fp32",
}
# A capacity counts the choices of one rank's micro-batch, so the ranks drop others than one rank.
DROP = {"gshard", "switch"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_learns_alone_and_over_two_ranks(config, tmp_path):
    workspace = make_workspace(tmp_path)
    shutil.copy(config, workspace / "run.toml")
    train(workspace, "one", **SHORT)
    launch(workspace, 2, "two", **SHORT, parallel__expert=2)
    one, two = ([line["loss"] for line in metrics(workspace / run)] for run in ("one", "two"))
    assert len(one) == len(two) == 20
    for losses in (one, two):
        assert losses[-1] < losses[0] - 1
    if config.stem in DROP:
        return
    for alone, spread in zip(one[:5], two[:5], strict=True):
        assert abs(alone - spread) < 1e-4 * alone


TIMED = re.compile(r"([\d.]+) ms with (r \d+, overlap \d+, all_to_all \w+, \d+ shadowed)( \(taken\))?")


def test_auto_takes_the_fastest_of_the_layouts_that_it_times(tmp_path):
    workspace = make_workspace(tmp_path)
    auto = {f"parallel__{key}": "auto" for key in ("r", "overlap", "shadow")}
    mixture = {"model__moe__experts": 8, "parallel__expert": 2, "log__experts_every": 20, "train__steps": 20}
    done = subprocess.run(
        launch_words(2, "auto", **mixture, **auto), cwd=workspace, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "by the time of a step" in line]
    timed = [(float(ms), layout, bool(taken)) for ms, layout, taken in TIMED.findall(line)]
    assert 2 <= len(timed) <= 3
    plain = "r 1, overlap 1, all_to_all linear, 0 shadowed"
    (default,) = [entry for entry in timed if entry[1] == plain]
    (taken,) = [entry for entry in timed if entry[2]]
    fastest = min(ms for ms, _, _ in timed)
    assert taken[0] == fastest or (taken == default and default[0] <= 1.021 * fastest + 0.1)
    last = json.loads((workspace / "auto" / "experts.jsonl").read_text().splitlines()[-1])["layers"][0]
    used = (
        f"r {last['r']}, overlap {last['overlap']}, all_to_all {last['all_to_all']}, {len(last['shadowed'])} shadowed"
    )
    assert used == taken[1]
