"""Runs that go day by day: `rows.day`, measured on each day before it is trained on."""

import hashlib
import json
import math
import random
import signal
import statistics
import subprocess
import time

import pytest
from cli import dovetail, dovetail_json
from tiny_run import BINARY

BATCH, DAYS = 16, 5
CONFIG = """
[run]
threads = 1
device = "cpu"
[recommender]
model = "deepfm"
dim = 4
deep = [8]
[rows]
label = "clicked"
shuffle_window = 1
dense = [{ columns = ["price"], transform = "log1p" }]
sparse = [{ columns = ["user"], num_rows = 40 }, { columns = ["item"], num_rows = 40 }]
[embedding]
lr = 0.1
[train]
batch = 16
[schedule]
decay = "constant"
[precision]
recipe = "fp32"
[checkpoint]
every_steps = "end"
[log]
tensorboard = false
"""


def write_days(folder, rows_of_day):
    draw = random.Random(4)
    for day, rows in enumerate(rows_of_day, start=1):
        lines = ["date\tuser\titem\tprice\tclicked"]
        for _ in range(rows):
            user, item = draw.randrange(30), draw.randrange(20)
            clicked = int(draw.random() < (0.9 if (user + item) % 2 else 0.1))
            lines.append(f"{day + 8}\tu{user}\ti{item}\t{draw.randrange(1, 50) + day}\t{clicked}")
        (folder / f"day{day}.tsv").write_text("\n".join(lines) + "\n")


def words(name, days, **settings):
    files = json.dumps([f"day{day}.tsv" for day in days])
    settings = {"run.folder": name, "rows.files": files, **settings}
    return [
        "train",
        "run.toml",
        "--quiet",
        *(w for key, value in settings.items() for w in ("--set", f"{key}={value}")),
    ]


def by_day(name, days, **settings):
    return words(name, days, **{"rows.day": "date", "train.steps": "pass", **settings})


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def validation(line):
    return {key: line[key] for key in ("validation_loss", "validation_samples", "auc", "calibration")}


def tensors_of(run):
    newest = max((run / "checkpoints").glob("step-*"))
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(newest.glob("*.safetensors"))]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def test_each_day_is_measured_as_by_a_run_on_the_days_before_it(folder):
    write_days(folder, [3 * BATCH] * DAYS)
    dovetail(*by_day("stream", range(1, DAYS + 1)), folder=folder)
    lines = lines_of(folder / "stream")
    measured = {line["day"]: (line["step"], validation(line)) for line in lines if "day" in line}
    assert len(lines) == 3 * DAYS
    assert list(measured) == [str(day + 8) for day in range(2, DAYS + 1)]
    for day in range(2, DAYS + 1):
        rows = 3 * BATCH * day
        held_out = {"rows.validation_fraction": (3 * BATCH + 0.5) / rows, "train.steps": 3 * (day - 1)}
        dovetail(*words(f"until{day}", range(1, day + 1), **held_out), folder=folder)
        last = lines_of(folder / f"until{day}")[-1]
        assert measured[str(day + 8)] == (3 * (day - 1) + 1, validation(last)), day


def test_batches_end_with_their_day_and_scales_are_of_the_first(folder):
    write_days(folder, [37, 5, 20])
    settings = {"rows.dense": '[{columns=["price"],transform="standard"}]', "rows.shuffle_window": "all"}
    dovetail(*by_day("run", [1, 2, 3], **settings), folder=folder)
    lines = lines_of(folder / "run")
    assert [line["samples"] for line in lines] == [16, 32, 37, 42, 58, 62]
    assert [(line["step"], line["validation_samples"]) for line in lines if "day" in line] == [(4, 5), (5, 20)]
    (checkpoint,) = (folder / "run" / "checkpoints").glob("step-*")
    (scale,) = json.loads((checkpoint / "manifest.json").read_text())["state"]["dense_scales"]
    prices = [float(line.split("\t")[3]) for line in (folder / "day1.tsv").read_text().splitlines()[1:]]
    assert scale["mean"] == pytest.approx(statistics.fmean(prices), rel=1e-12)
    assert scale["deviation"] == pytest.approx(statistics.pstdev(prices), rel=1e-12)
    assert "mean of 2 days" in (folder / "run" / "report.html").read_text()


def test_a_killed_run_goes_on_to_the_same_figures(folder):
    write_days(folder, [600, 500, 700, 400])
    settings = {"rows.shuffle_window": 100, "rows.cache_bytes": 0, "schedule.decay": "cosine"}
    command = {**settings, "checkpoint.every_steps": 7}
    dovetail(*by_day("whole", range(1, 5), **settings), folder=folder)
    kills = 0
    for moment in (0.2, 0.3, 0.4, 0.5):
        process = subprocess.Popen([BINARY, *by_day("killed", range(1, 5), **command)], cwd=folder)
        path = folder / "killed" / "metrics.jsonl"
        while process.poll() is None and not (path.exists() and path.stat().st_size > 0):
            time.sleep(0.001)
        time.sleep(moment * 0.3)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    dovetail(*by_day("killed", range(1, 5), **command), folder=folder)
    assert kills > 0
    assert (folder / "killed" / "metrics.jsonl").read_bytes() == (folder / "whole" / "metrics.jsonl").read_bytes()
    assert tensors_of(folder / "killed") == tensors_of(folder / "whole")


def test_a_run_goes_on_when_another_day_is_there(folder):
    write_days(folder, [40, 30, 50])
    dovetail(*by_day("whole", [1, 2, 3]), folder=folder)
    dovetail(*by_day("grown", [1, 2]), folder=folder)
    dovetail(*by_day("grown", [1, 2, 3]), folder=folder)
    assert lines_of(folder / "grown") == lines_of(folder / "whole")
    assert tensors_of(folder / "grown") == tensors_of(folder / "whole")
    # The day after is measured by the checkpoint of the day before.
    dovetail(*by_day("two", [1, 2]), folder=folder)
    found = dovetail_json("eval", "two", "--data", "day3.tsv", folder=folder)["validation"]
    (line,) = (line for line in lines_of(folder / "whole") if line.get("day") == "11")
    assert (found["loss"], found["tasks"]["clicked"]["auc"]) == (line["validation_loss"], line["auc"])
    error = dovetail_json("eval", "two", folder=folder, code=2)["error"]
    assert "holds none out" in error["message"]


def test_two_ranks_measure_the_same_days(folder):
    write_days(folder, [33, 17, 20])
    dovetail(*by_day("one", [1, 2, 3]), folder=folder)
    dovetail("launch", "-n", "2", *by_day("two", [1, 2, 3]), folder=folder)
    for a, b in zip(lines_of(folder / "one"), lines_of(folder / "two"), strict=True):
        assert a["samples"] == b["samples"] and a.get("day") == b.get("day")
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-4)
        if "day" in a:
            assert math.isclose(a["validation_loss"], b["validation_loss"], rel_tol=1e-4)


def test_what_does_not_fit_is_an_error(folder):
    write_days(folder, [20, 20])
    for days, settings, part in [
        ([2, 1], {}, 'row 1, column `date`: "9" comes after "10"'),
        ([1], {}, "all rows have the day 9"),
        ([1, 2], {"train.steps": 9}, "train.steps = 9, but the 2 days of rows.files are 4 steps"),
        ([1, 2], {"rows.validation_fraction": 0.2}, "rows.validation_fraction = 0.2 does nothing"),
        ([1, 2], {"eval.every_steps": 3}, "eval.every_steps does nothing"),
        ([1, 2], {"rows.day": "day"}, "no column `day`"),
        ([1, 2], {"rows.day": ""}, 'train.steps = "pass" is one pass'),
        ([1, 2], {"schedule.warmup_steps": 4}, "not shorter than the run, train.steps = 4"),
    ]:
        error = dovetail_json(*by_day("wrong", days, **settings), folder=folder, code=2)["error"]
        assert part in error["message"]
