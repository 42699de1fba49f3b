"""`dovetail kmeans` with scikit-learn as the oracle: the same start, the same clusters."""

import itertools
import json
import os
import subprocess
import time

import numpy as np
import pytest
from cli import dovetail, dovetail_json
from report_page import assert_readable, tiles_of
from tiny_run import BINARY

sklearn_cluster = pytest.importorskip("sklearn.cluster")
sklearn_metrics = pytest.importorskip("sklearn.metrics")
pa = pytest.importorskip("pyarrow")


def clouds(rows=600, columns=6, k=5, seed=1):
    random = np.random.default_rng(seed)
    middles = random.normal(0, 4, (k, columns))
    return (middles[random.integers(0, k, rows)] + random.normal(0, 1, (rows, columns))).astype(np.float32)


def write_table(path, x):
    names = [f"c{i}" for i in range(x.shape[1])]
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.table({n: x[:, i] for i, n in enumerate(names)}), path, row_group_size=97)
    else:
        blank = {".csv": ",", ".tsv": "\t", ".txt": "  "}[path.suffix]
        lines = [blank.join(repr(float(v)) for v in row) for row in x]
        path.write_text("\n".join([blank.join(names), *lines]) + "\n")


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".csv", ".tsv", ".txt"])
def test_every_format_gives_the_clusters_of_scikit_learn(tmp_path, suffix):
    x = clouds()
    write_table(tmp_path / f"x{suffix}", x)
    words = ["kmeans", "--data", f"x{suffix}", "--k", 5, "--init", "first", "--tolerance", 0, "--out", "run"]
    result = dovetail_json(*words, folder=tmp_path)
    oracle = sklearn_cluster.KMeans(5, init=x[:5].astype(np.float64), n_init=1, tol=0, algorithm="lloyd").fit(
        x.astype(np.float64)
    )
    assert result["inertia"] == pytest.approx(oracle.inertia_, rel=1e-9)
    assert result["iterations"] == oracle.n_iter_
    assert result["converged"]
    assert result["counts"] == np.bincount(oracle.labels_).tolist()
    labels = np.loadtxt(tmp_path / "run/labels.csv", delimiter=",", skiprows=1, dtype=int)
    assert (labels[:, 0] == np.arange(len(x))).all()
    assert (labels[:, 1] == oracle.labels_).all()
    centres = np.loadtxt(tmp_path / "run/centres.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(centres, oracle.cluster_centers_, rtol=1e-9, atol=1e-9)
    assert json.loads((tmp_path / "run/kmeans.json").read_text())["inertia"] == result["inertia"]


def test_the_silhouette_is_that_of_scikit_learn(tmp_path):
    from sklearn.metrics import silhouette_score

    x = clouds(rows=500)
    np.save(tmp_path / "x.npy", x)
    result = dovetail_json("kmeans", "--data", "x.npy", "--k", 3, "--out", "run", folder=tmp_path)
    labels = np.loadtxt(tmp_path / "run/labels.csv", delimiter=",", skiprows=1, dtype=int)[:, 1]
    assert result["silhouette_rows"] == 500
    assert result["silhouette"] == pytest.approx(silhouette_score(x.astype(np.float64), labels), abs=1e-9)


@pytest.mark.parametrize("init", ["k-means++", "k-means-parallel"])
def test_good_starts_find_the_clouds_and_the_seed_repeats_them(tmp_path, init):
    x = clouds(rows=900, k=6, seed=3)
    np.save(tmp_path / "x.npy", x)
    oracle = sklearn_cluster.KMeans(6, n_init=10, random_state=0).fit(x)
    words = ["kmeans", "--data", "x.npy", "--k", 6, "--init", init]
    first = dovetail_json(*words, "--out", "a", folder=tmp_path)
    assert first["inertia"] == pytest.approx(oracle.inertia_, rel=1e-3)
    again = dovetail_json(*words, "--out", "b", "--threads", 1, folder=tmp_path)
    assert again["inertia"] == first["inertia"]
    assert (tmp_path / "a/centres.csv").read_bytes() == (tmp_path / "b/centres.csv").read_bytes()


def test_random_rows_differ_by_the_seed(tmp_path):
    np.save(tmp_path / "x.npy", clouds())
    words = ["kmeans", "--data", "x.npy", "--k", 20, "--init", "random", "--iterations", 1]
    inertias = {dovetail_json(*words, "--seed", seed, folder=tmp_path)["inertia"] for seed in (1, 2, 3)}
    assert len(inertias) == 3


def test_centres_of_a_run_start_another(tmp_path):
    np.save(tmp_path / "x.npy", clouds())
    words = ["kmeans", "--data", "x.npy", "--k", 5, "--tolerance", 0]
    first = dovetail_json(*words, "--out", "a", folder=tmp_path)
    again = dovetail_json(*words, "--init", "a/centres.csv", "--out", "b", folder=tmp_path)
    assert again["iterations"] <= 2  # centres are read back as float32
    assert again["inertia"] == pytest.approx(first["inertia"], rel=1e-9)
    stderr = dovetail("kmeans", "--data", "x.npy", "--k", 4, "--init", "a/centres.csv", folder=tmp_path, code=2).stderr
    assert "a/centres.csv has 5 rows of 6 columns, not 4 (--k) of 6 (the data)" in stderr
    stderr = dovetail("kmeans", "--data", "x.npy", "--k", 4, "--init", "frist", folder=tmp_path, code=2).stderr
    assert "frist is neither a file nor k-means++" in stderr


def test_empty_clusters_stay_or_move(tmp_path):
    np.savetxt(tmp_path / "x.txt", np.array([[0.0], [1], [10]]))
    (tmp_path / "start.txt").write_text("0.5\n1000\n")
    words = ["kmeans", "--data", "x.txt", "--k", 2, "--init", "start.txt"]
    assert dovetail_json(*words, "--empty", "keep", folder=tmp_path)["counts"] == [3, 0]
    assert dovetail_json(*words, folder=tmp_path)["counts"] == [2, 1]


@pytest.mark.parametrize("batch", [0, 500])
def test_a_column_has_the_weights_of_the_rows(tmp_path, batch):
    x, weights = clouds(), np.random.default_rng(5).integers(0, 4, 600)
    names = ",".join(["a", "b", "w", "c", "d", "e", "f"])
    np.savetxt(tmp_path / "x.csv", np.insert(x, 2, weights, axis=1), "%.9g", ",", header=names, comments="")
    np.save(tmp_path / "start.npy", x[:5])
    words = ["kmeans", "--k", 5, "--tolerance", 0, "--iterations", 9, "--init", "start.npy"]
    words += ["--batch", min(batch, np.count_nonzero(weights))] if batch else []
    result = dovetail_json(*words, "--data", "x.csv", "--weights", "w", "--out", "run", folder=tmp_path)
    assert result["weights"] == "w" and result["total_weight"] == weights.sum()
    assert result["columns"] == 6 and result["rows"] == sum(result["counts"]) == 600
    assert "--weights w" in (tmp_path / "run/report.html").read_text()
    centres = np.loadtxt(tmp_path / "run/centres.csv", delimiter=",", skiprows=1)
    assert (tmp_path / "run/centres.csv").read_text().splitlines()[0] == "a,b,c,d,e,f"
    by_place = dovetail_json(*words, "--data", "x.csv", "--weights", "2", "--out", "place", folder=tmp_path)
    assert by_place["inertia"] == result["inertia"]
    if batch:
        return
    oracle = sklearn_cluster.KMeans(5, init=x[:5].astype(np.float64), n_init=1, tol=0, max_iter=9, algorithm="lloyd")
    oracle.fit(x.astype(np.float64), sample_weight=weights)
    assert result["inertia"] == pytest.approx(oracle.inertia_, rel=1e-9)
    np.testing.assert_allclose(centres, oracle.cluster_centers_, rtol=1e-9, atol=1e-9)


def test_weights_that_are_missing_or_bad_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,w,v,z\n1,2,0,0\n3,-1,0,0\n5,1,x,0\n")
    words = ["kmeans", "--data", "x.csv", "--k", 2, "--weights"]
    for column, message in [
        ("q", "--weights: no column is named q"),
        ("w", "the weight of row 1 is -1"),
        ("v", "column 2 (`v`)"),
        ("z", "all weights are 0"),
    ]:
        drops = [] if column in "vq" else ["--drop-columns", "v"]
        stderr = dovetail(*words, column, *drops, folder=tmp_path, code=2).stderr
        assert message in stderr, stderr
    (tmp_path / "w.csv").write_text("w\n1\n2\n")
    stderr = dovetail("kmeans", "--data", "w.csv", "--k", 1, "--weights", "w", folder=tmp_path, code=2).stderr
    assert "--weights: w is the only column" in stderr


def test_executors_change_nothing_but_who_computes(tmp_path):
    np.save(tmp_path / "x.npy", clouds(rows=40_000))
    words = ["kmeans", "--data", "x.npy", "--k", 5]
    alone = dovetail_json(*words, "--out", "a", folder=tmp_path)
    assert "executors" not in alone
    names = ["cpu:1"] * min(2, len(os.sched_getaffinity(0)))
    for share in ["stealing", "affine", "static"]:
        shared = dovetail_json(*words, "--executors", ",".join(names), "--share", share, "--out", "b", folder=tmp_path)
        assert shared["inertia"] == alone["inertia"]
        assert (tmp_path / "a/centres.csv").read_bytes() == (tmp_path / "b/centres.csv").read_bytes()
        assert (tmp_path / "a/labels.csv").read_bytes() == (tmp_path / "b/labels.csv").read_bytes()
        assert [executor["name"] for executor in shared["executors"]] == ["cpu:1", "cpu:1 (1)"][: len(names)]
        assert sum(executor["rows"] for executor in shared["executors"]) % 40_000 == 0
        assert "rows of cpu:1" in (tmp_path / "b/report.html").read_text()


def test_the_schedule_is_told_in_the_result_the_iterations_and_a_trace(tmp_path):
    names = ["cpu:1"] * min(2, len(os.sched_getaffinity(0)))
    x = np.random.default_rng(4).normal(0, 1, (60_000, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ["kmeans", "--data", "x.npy", "--k", 9, "--init", "first", "--iterations", 6, "--tolerance", 0]
    words += ["--executors", ",".join(names), "--trace", "trace.json", "--out", "run"]
    result = dovetail_json(*words, folder=tmp_path)
    executors = result["executors"]
    assert sum(executor["share"] for executor in executors) == pytest.approx(1)
    for executor in executors:
        assert executor["busy_s"] > 0 and executor["idle_s"] >= 0
        assert executor["rows_per_s"] == pytest.approx(executor["rows"] / executor["busy_s"])
        assert executor["alpha"] == pytest.approx(executor["rows_per_s"] / executors[0]["rows_per_s"])
    # All executors ran for as long as the jobs did.
    spans = [executor["busy_s"] + executor["idle_s"] for executor in executors]
    assert spans == pytest.approx([spans[0]] * len(spans), rel=0.02)
    lines = [json.loads(line) for line in (tmp_path / "run/iterations.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    for line in lines:
        assert sum(line["executor_rows"]) == len(x) and len(line["executor_rows"]) == len(names)
        assert 0 <= line["apart_s"] <= line["seconds"]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    busy = {lanes[event["tid"]] for event in events if event["name"] == "kmeans.assign"}
    assert busy == {"cpu:1 .0", "cpu:1 (1) .0"} if len(names) == 2 else {"cpu:1 .0"}
    text = dovetail(*words[:-1], "again", folder=tmp_path).stdout
    assert "busy" in text and "idle" in text and "alpha" in text


def test_mini_batches_come_near_and_are_the_same_bits_on_executors(tmp_path):
    x = clouds(rows=20_000)
    np.save(tmp_path / "x.npy", x)
    words = ["kmeans", "--data", "x.npy", "--k", 5, "--seed", 2]
    full = dovetail_json(*words, "--out", "a", folder=tmp_path)
    table, words = words, [*words, "--batch", 5000]
    alone = dovetail_json(*words, "--out", "b", folder=tmp_path)
    assert alone["batch"] == 5000
    assert alone["inertia"] < 1.01 * full["inertia"]
    assert sum(alone["counts"]) == len(x)
    steps = [json.loads(line) for line in (tmp_path / "b/iterations.jsonl").read_text().splitlines()]
    assert len(steps) == alone["iterations"]
    assert all("changed" not in step and abs(step["inertia"] / full["inertia"] - 1) < 0.1 for step in steps[3:])
    names = ",".join(["cpu:1"] * min(2, len(os.sched_getaffinity(0))))
    shared = dovetail_json(*words, "--executors", names, "--out", "c", folder=tmp_path)
    assert shared["inertia"] == alone["inertia"]
    assert (tmp_path / "b/centres.csv").read_bytes() == (tmp_path / "c/centres.csv").read_bytes()
    three = dovetail_json(*words, "--patience", 0, "--iterations", 3, "--out", "d", folder=tmp_path)
    assert (three["iterations"], three["converged"]) == (3, False)
    assert "--batch 5000 --patience 0" in (tmp_path / "d/report.html").read_text()
    for more, message in [
        (["--batch", 5000, "--empty", "reseed"], "--empty reseed looks for the farthest of all rows"),
        (["--batch", 20_001], "batches of 20001 rows of 20000"),
        (["--patience", 3], "--patience is about mini-batches"),
    ]:
        assert message in dovetail(*table, *more, folder=tmp_path, code=2).stderr


def killed_after_a_state(words, folder):
    """Starts a job and kills it once it has saved where it stands; False where it was over before."""
    process = subprocess.Popen([BINARY, *map(str, words)], cwd=folder, stdout=subprocess.DEVNULL)
    state = folder / "run/state.safetensors"
    while process.poll() is None and not state.exists():
        time.sleep(0.001)
    process.kill()
    process.wait()
    return state.exists()


def test_a_job_that_was_killed_goes_on(tmp_path):
    np.save(tmp_path / "x.npy", clouds(rows=50_000, columns=16, k=40))
    words = ["kmeans", "--data", "x.npy", "--k", 60, "--init", "first", "--tolerance", 0, "--iterations", 60]
    whole = dovetail_json(*words, "--out", "whole", folder=tmp_path)
    for change in ["none", "options", "fresh"]:
        assert any(killed_after_a_state([*words, "--out", "run"], tmp_path) for _ in range(5))
        if change == "options":
            stderr = dovetail(*words, "--seed", 1, "--out", "run", folder=tmp_path, code=2).stderr
            assert "holds a job that was stopped, of other options or another table" in stderr
        again = [*words, "--fresh"] if change == "fresh" else words
        stderr = dovetail(*again, "--out", "run", folder=tmp_path).stderr
        assert ("going on after iteration" in stderr) == (change != "fresh")
        assert (tmp_path / "whole/centres.csv").read_bytes() == (tmp_path / "run/centres.csv").read_bytes()
        assert len((tmp_path / "run/iterations.jsonl").read_text().splitlines()) == whole["iterations"]
        assert not (tmp_path / "run/state.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executors", "cpu"], '"cpu" is no list of executors'),
        (["--executors", "gpu:0"], '"gpu:0" is no list of executors'),
        (["--executors", "cpu:99999"], "executors of 99999 threads"),
        (["--executors", "cpu:1", "--threads", 2], "give only --executors cpu:1"),
        (["--executors", "cpu:1", "--verify", 4], "takes two executors"),
        (["--share", "affine"], "--share and --verify are about --executors"),
    ],
)
def test_executors_that_cannot_be_are_refused(tmp_path, words, message):
    np.save(tmp_path / "x.npy", clouds())
    assert message in dovetail("kmeans", "--data", "x.npy", "--k", 5, *words, folder=tmp_path, code=2).stderr


BAD = "a,b,name\n1,2,x\n3,oops,y\n5,,z\n7,8,w\n9,inf,v\n"


def test_a_bad_value_names_its_line_and_column(tmp_path):
    (tmp_path / "x.csv").write_text(BAD)
    words = ["kmeans", "--data", "x.csv", "--k", 1, "--drop-columns", 2]
    stderr = dovetail(*words, folder=tmp_path, code=2).stderr
    assert 'line 3, column 1 (`b`): "oops" is not a number' in stderr
    assert "--bad-values skip" in stderr
    stderr = dovetail(*words[:-2], folder=tmp_path, code=2).stderr
    assert 'line 2, column 2 (`name`): "x" is not a number' in stderr
    assert "--drop-columns 2" in stderr


def test_bad_values_are_zero_or_their_rows_are_left_out(tmp_path):
    (tmp_path / "x.csv").write_text(BAD)
    words = ["kmeans", "--data", "x.csv", "--k", 1, "--drop-columns", 2, "--out", "run", "--bad-values"]
    result = dovetail_json(*words, "zero", folder=tmp_path)
    assert (result["rows"], result["bad_values"], result["rows_left_out"]) == (5, 3, 0)
    assert (tmp_path / "run/centres.csv").read_text() == "a,b\n5,2\n"
    result = dovetail_json(*words, "skip", folder=tmp_path)
    assert (result["rows"], result["bad_values"], result["rows_left_out"]) == (2, 3, 3)
    assert (tmp_path / "run/centres.csv").read_text() == "a,b\n4,5\n"
    assert (tmp_path / "run/labels.csv").read_text() == "row,label\n0,0\n3,0\n"


def test_text_may_have_comments_blank_lines_and_no_header(tmp_path):
    (tmp_path / "x.dat").write_text("# made by hand\n\n1 2\t3\n  4   5 6 \r\n\n7 8 9\n")
    result = dovetail_json(
        "kmeans", "--data", "x.dat", "--k", 1, "--drop-columns", "0,2", "--out", "r", folder=tmp_path
    )
    assert (result["rows"], result["columns"]) == (3, 1)
    assert (tmp_path / "r/centres.csv").read_text() == "c1\n5\n"
    (tmp_path / "x.dat").write_text("1 2\n3 4\n5\n")
    stderr = dovetail("kmeans", "--data", "x.dat", "--k", 1, folder=tmp_path, code=2).stderr
    assert "line 3: 1 fields, not 2" in stderr


def test_what_cannot_be_done_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", clouds(rows=5))
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    for words, message in [
        (["--data", "x.npy", "--k", 6], "6 centres of 5 rows"),
        (["--data", "x.npy", "--k", 2, "--drop-columns", "9"], "--drop-columns: no column is named 9"),
        (["--data", "x.npy", "--k", 2, "--drop-columns", "1,x"], "--drop-columns: no column is named x"),
        (["--data", "cube.npy", "--k", 1], "3 dimensions, not one or two"),
        (["--data", "words.npy", "--k", 1], "values of type U1 are not read"),
        (["--data", "none.csv", "--k", 1], "none.csv"),
    ]:
        assert message in dovetail("kmeans", *words, folder=tmp_path, code=2).stderr, words


def test_the_report_shows_the_clusters(tmp_path):
    np.save(tmp_path / "<x>.npy", clouds(rows=300))
    result = dovetail_json("kmeans", "--data", "<x>.npy", "--k", 3, folder=tmp_path)
    assert result["folder"] == "runs/kmeans-<x>"
    html = (tmp_path / result["report"]).read_text()
    assert html.count("<circle") == 300
    assert html.count('stroke="var(--ink)"') == 3
    assert "component 1" in html
    assert "By iteration: inertia" in html
    assert "<x>" not in html, "not escaped"
    lines = [json.loads(line) for line in (tmp_path / result["folder"] / "iterations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, result["iterations"] + 1))
    assert all(a["inertia"] >= b["inertia"] for a, b in itertools.pairwise(lines))


def ugly(name):
    """A table and K."""
    random = np.random.default_rng(8)
    x = random.normal(0, 1, (3000, 3))
    return {
        "one cluster": (x, 1),
        "one column": (x[:, :1], 4),
        "200 columns": (random.normal(0, 1, (3000, 200)), 5),
        "1e14": (1e14 * x, 5),
        "-1e14 to 1e-14": (np.stack([-1e14 * x[:, 0] ** 2, 1e-14 * x[:, 1]], axis=1), 5),
        "a constant column": (np.concatenate([x, np.full((3000, 1), 7)], axis=1), 3),
        "all rows alike": (np.full((3000, 2), 7.0), 1),
        "far from zero": (1e6 + 1e-1 * x, 3),
        "1024 clusters": (x, 1024),
        "heavy tails": (np.exp(4 * x), 6),
        "two rows": (x[:2], 2),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "one cluster",
        "one column",
        "200 columns",
        "1e14",
        "-1e14 to 1e-14",
        "a constant column",
        "all rows alike",
        "far from zero",
        "1024 clusters",
        "heavy tails",
        "two rows",
    ],
)
def test_the_report_is_readable_whatever_the_table(tmp_path, name):
    x, k = ugly(name)
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    result = dovetail_json("kmeans", "--data", "x.npy", "--k", k, "--iterations", 9, folder=tmp_path)
    html = (tmp_path / result["report"]).read_text()
    charts = assert_readable(html)
    scatter = next(chart for title, chart in charts.items() if "centres" in title)
    assert len(scatter.all("circle")) == min(2000, len(x))
    assert len(scatter.legend) == min(k, 13)
    assert scatter.legend[0].endswith(f"({100 * max(result['counts']) / len(x):.3g} %)")
    if k > 12:
        assert scatter.legend[-1] == f"and {k - 12:,} smaller"
    bars = charts["Sizes of the clusters, largest first"].all("rect")
    counts = sorted(result["counts"], reverse=True)
    assert [int(bar[0].text.split(": ")[1].split(" rows")[0].replace(",", "")) for bar in bars] == counts
    heights = [float(bar.get("height")) for bar in bars]
    assert heights == sorted(heights, reverse=True)
    value, exact, _ = tiles_of(html)["inertia"]
    assert float(value) == pytest.approx(result["inertia"], rel=6e-4)
    assert float(exact or value) == pytest.approx(result["inertia"], rel=1e-11)


@pytest.mark.parametrize("scale", ["beside a column in millions", "with heavy tails"])
def test_clusters_are_apart_in_the_picture(tmp_path, scale):
    """Judged by the silhouette of the colours along the first component, and by pixels between clusters."""
    random = np.random.default_rng(3)
    if scale == "with heavy tails":
        x = np.exp(np.repeat([[0.0], [2], [4], [6]], 300, axis=0) + random.normal(0, 0.2, (1200, 3)))
    else:
        x = random.normal(0, [1e5, 1, 1e-3], (1200, 3)) + np.repeat(
            [[0, 0, 0], [1e6, 0, 0], [2e6, 0, 0], [3e6, 0, 0]], 300, axis=0
        )
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    np.save(tmp_path / "start.npy", x[::300].astype(np.float32))
    words = ["kmeans", "--data", "x.npy", "--k", 4, "--init", "start.npy", "--iterations", 1]
    result = dovetail_json(*words, folder=tmp_path)
    charts = assert_readable((tmp_path / result["report"]).read_text())
    title, scatter = next((title, chart) for title, chart in charts.items() if "centres" in title)
    assert ("divided by its interquartile range" in title) == (scale == "beside a column in millions")
    points = np.stack([scatter.numbers("circle", "cx"), scatter.numbers("circle", "cy")], axis=1)
    colours = [circle.get("fill") for circle in scatter.all("circle")]
    assert len(set(colours)) == 4
    assert sklearn_metrics.silhouette_score(points[:, :1], colours) > 0.5
    assert np.std(points, axis=0).min() > 30
    middles = [np.median(points[[c == colour for c in colours], 0]) for colour in set(colours)]
    assert np.diff(sorted(middles)).min() > 15
    assert ("logarithmic" in " ".join(box[0] for box in scatter.boxes())) == (scale == "with heavy tails")


def test_the_report_shows_the_schedule(tmp_path):
    names = ["cpu:1"] * min(2, len(os.sched_getaffinity(0)))
    np.save(tmp_path / "x.npy", clouds(rows=60_000, columns=12))
    words = ["kmeans", "--data", "x.npy", "--k", 9, "--iterations", 7, "--tolerance", 0, "--executors", ",".join(names)]
    result = dovetail_json(*words, folder=tmp_path)
    charts = assert_readable((tmp_path / result["report"]).read_text())
    lanes = charts["Time of each executor"]
    assert lanes.legend == ["computing", "copying", "idle"]
    text = " ".join(box[0] for box in lanes.boxes())
    assert "alpha" in text and f"rows of {result['executors'][0]['name']}: {result['executors'][0]['rows']:,}" in text
    bars = lanes.all("rect")
    for executor, y in zip(result["executors"], sorted({float(bar.get("y")) for bar in bars}), strict=True):
        parts = {bar[0].text.split()[0]: float(bar.get("width")) for bar in bars if float(bar.get("y")) == y}
        span = executor["busy_s"] + executor["idle_s"]
        assert 0 < executor["copy_s"] < executor["busy_s"]
        shares = [executor["busy_s"] - executor["copy_s"], executor["copy_s"], executor["idle_s"]]
        for name, share in zip(["computing", "copying", "idle"], shares, strict=True):
            assert parts.get(name, 0) / sum(parts.values()) == pytest.approx(share / span, abs=2e-3)
    assert "Rows of each executor" in charts
    assert "Time between the first executor that ended and the last" in charts
