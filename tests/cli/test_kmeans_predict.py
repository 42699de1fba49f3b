"""`dovetail kmeans predict`: the nearest centres of a run, with scikit-learn as the oracle."""

import os

import numpy as np
import pytest
from cli import dovetail, dovetail_json
from test_kmeans import clouds

sklearn_cluster = pytest.importorskip("sklearn.cluster")

NAMES = ["a", "b,c", "d", "e", "f", "g"]


def write(path, x, names):
    header = ",".join(f'"{name}"' if "," in name else name for name in names)
    np.savetxt(path, x, "%.9g", ",", header=header, comments="")


def read_labels(path):
    assert path.read_text().splitlines()[0] == "row,label,distance"
    table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2]


@pytest.fixture
def run(tmp_path):
    write(tmp_path / "x.csv", clouds(), NAMES)
    dovetail_json("kmeans", "--data", "x.csv", "--k", 5, "--out", "run", folder=tmp_path)
    return tmp_path


def test_other_rows_get_the_labels_of_scikit_learn(run):
    x, weights = clouds(rows=700, seed=2), np.random.default_rng(1).uniform(0, 2, 700)
    write(run / "y.csv", x, NAMES)
    centres = np.loadtxt(run / "run/centres.csv", delimiter=",", skiprows=1)
    oracle = sklearn_cluster.KMeans(5, init=centres, n_init=1, max_iter=1).fit(centres)
    oracle.cluster_centers_ = centres
    result = dovetail_json("kmeans", "predict", "run", "--data", "y.csv", "--out", "y-labels.csv", folder=run)
    rows, labels, distances = read_labels(run / "y-labels.csv")
    expected = oracle.predict(x.astype(np.float64))
    assert (rows == np.arange(700)).all()
    assert (labels == expected).all()
    np.testing.assert_allclose(distances, oracle.transform(x.astype(np.float64)).min(1), rtol=1e-6)
    assert result["inertia"] == pytest.approx(-oracle.score(x.astype(np.float64)), rel=1e-6)
    assert result["counts"] == np.bincount(expected, minlength=5).tolist()
    assert (result["rows"], result["columns"], result["k"]) == (700, 6, 5)
    write(run / "w.csv", np.insert(x, 1, weights, axis=1), ["a", "w", *NAMES[1:]])
    weighted = dovetail_json("kmeans", "predict", "run", "--data", "w.csv", "--weights", "w", folder=run)
    assert weighted["labels"] == "run/predict-w.csv"
    assert weighted["inertia"] == pytest.approx(-oracle.score(x.astype(np.float64), sample_weight=weights), rel=1e-6)
    assert weighted["total_weight"] == pytest.approx(weights.sum())


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_the_rows_of_the_run_get_the_labels_of_the_run(tmp_path, suffix):
    x = clouds(rows=3000).astype(np.float64)
    x[:, 0] += 1.7e9
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.csv", x, "%.17g", ",")
    fit = dovetail_json("kmeans", "--data", f"x.{suffix}", "--k", 9, "--out", "run", folder=tmp_path)
    cores = min(2, len(os.sched_getaffinity(0)))
    for more in ([], ["--executors", ",".join(["cpu:1"] * cores)]):
        result = dovetail_json("kmeans", "predict", "run", "--data", f"x.{suffix}", *more, folder=tmp_path)
        assert ("executors" in result) == bool(more)
        _, labels, _ = read_labels(tmp_path / "run/predict-x.csv")
        assert (labels == np.loadtxt(tmp_path / "run/labels.csv", delimiter=",", skiprows=1)[:, 1]).all()
        assert result["inertia"] == pytest.approx(fit["inertia"], rel=1e-9)
        assert result["counts"] == fit["counts"]


def test_columns_match_by_name_in_any_order(run):
    x = clouds(rows=50, seed=3)
    write(run / "y.csv", x, NAMES)
    write(run / "z.csv", np.insert(x[:, ::-1], 2, 7, axis=1), [*NAMES[:3:-1], "extra", *NAMES[3::-1]])
    first = dovetail_json("kmeans", "predict", "run", "--data", "y.csv", folder=run)
    words = ["kmeans", "predict", "run", "--data", "z.csv"]
    assert "z.csv has 7 columns, but the run run has 6" in (error := dovetail(*words, folder=run, code=2).stderr)
    assert "--drop-columns extra leaves out the others" in error
    second = dovetail_json(*words, "--drop-columns", "extra", folder=run)
    assert second["inertia"] == pytest.approx(first["inertia"], rel=1e-12)
    assert (read_labels(run / "run/predict-y.csv")[1] == read_labels(run / "run/predict-z.csv")[1]).all()
    np.save(run / "n.npy", x)  # no names: by place
    assert dovetail_json("kmeans", "predict", "run", "--data", "n.npy", folder=run)["counts"] == first["counts"]
    write(run / "other.csv", x, ["a", "b,c", "d", "e", "f", "q"])
    error = dovetail("kmeans", "predict", "run", "--data", "other.csv", folder=run, code=2).stderr
    assert "no column of run is named q" in error


def test_bad_rows_are_left_out_and_a_missing_run_is_named(run):
    x = clouds(rows=6, seed=3)
    write(run / "y.csv", x, NAMES)
    text = (run / "y.csv").read_text().splitlines()
    text[3] = "1,2,3,oops,5,6"
    (run / "bad.csv").write_text("\n".join(text) + "\n")
    words = ["kmeans", "predict", "run", "--data", "bad.csv"]
    assert "line 4, column 3 (`e`)" in dovetail(*words, folder=run, code=2).stderr
    result = dovetail_json(*words, "--bad-values", "skip", folder=run)
    assert (result["rows"], result["rows_left_out"]) == (5, 1)
    assert read_labels(run / "run/predict-bad.csv")[0].tolist() == [0, 1, 3, 4, 5]
    error = dovetail("kmeans", "predict", "nowhere", "--data", "y.csv", folder=run, code=2).stderr
    assert "nowhere holds no finished run of `dovetail kmeans`: there is no nowhere/centres.csv" in error
    error = dovetail("kmeans", "predict", "--data", "y.csv", folder=run, code=2).stderr
    assert "dovetail kmeans predict: run is required" in error
    error = dovetail("kmeans", "--data", "y.csv", folder=run, code=2).stderr
    assert "dovetail kmeans: --k is required" in error
    text = dovetail("kmeans", "predict", "run", "--data", "y.csv", folder=run).stdout
    assert "inertia" in text and "run/predict-y.csv" in text


def test_columns_are_left_out_by_name_or_place(run):
    wanted = dovetail_json("kmeans", "--data", "x.csv", "--k", 2, "--drop-columns", '0,"b,c"', folder=run)
    for words in ('a,"b,c"', "0,1", "a,1"):
        result = dovetail_json("kmeans", "--data", "x.csv", "--k", 2, "--drop-columns", words, folder=run)
        assert result["columns"] == 4 and result["inertia"] == wanted["inertia"]
    error = dovetail("kmeans", "--data", "x.csv", "--k", 2, "--drop-columns", "aa", folder=run, code=2).stderr
    assert "--drop-columns: no column is named aa" in error
