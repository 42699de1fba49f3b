"""`dovetail fit` with scikit-learn as the oracle: the same start or the same objective, the same model."""

import json
import os

import numpy as np
import pytest
from cli import dovetail, dovetail_json
from report_page import assert_readable, tiles_of

linear_model = pytest.importorskip("sklearn.linear_model")
pd = pytest.importorskip("pandas")
from sklearn import cluster, datasets, decomposition, mixture  # noqa: E402


def stretched_clouds(rows=3000, columns=4, k=3, seed=1):
    """Normal clouds of different shapes that overlap."""
    random = np.random.default_rng(seed)
    shape = random.normal(0, 1, (k, columns, columns))
    which = random.integers(0, k, rows)
    rows = np.einsum("nij,nj->ni", shape[which], random.normal(0, 1, (rows, columns)))
    return (random.normal(0, 3, (k, columns))[which] + rows + 100).astype(np.float32)


def of_labels(x, labels, k, covariance):
    """A mixture's parameters when each row belongs to its label."""
    groups = [x[labels == i] for i in range(k)]
    full = np.array([np.cov(group.T, bias=True) + 1e-6 * np.eye(x.shape[1]) for group in groups])
    weights = np.bincount(labels) / len(x)
    spreads = {
        "full": full,
        "diag": np.array([np.diag(c) for c in full]),
        "tied": np.tensordot(weights, full, 1),
        "spherical": np.array([np.diag(c).mean() for c in full]),
    }[covariance]
    return weights, np.array([g.mean(0) for g in groups]), spreads


@pytest.mark.parametrize("covariance", ["full", "diag", "tied", "spherical"])
def test_a_mixture_is_that_of_scikit_learn_from_the_same_start(tmp_path, covariance):
    x, k = stretched_clouds(), 3
    np.save(tmp_path / "x.npy", x)
    words = ["fit", "gmm", "--data", "x.npy", "--k", k, "--covariance", covariance, "--init", "first", "--out", "run"]
    result = dovetail_json(*words, "--tolerance", 1e-7, "--iterations", 400, folder=tmp_path)
    wide = x.astype(np.float64)
    labels = cluster.KMeans(k, init=wide[:k], n_init=1, algorithm="lloyd").fit(wide).labels_
    weights, means, spreads = of_labels(wide, labels, k, covariance)
    precisions = np.linalg.inv(spreads) if covariance in ("full", "tied") else 1 / spreads
    oracle = mixture.GaussianMixture(
        k,
        covariance_type=covariance,
        tol=1e-7,
        max_iter=400,
        weights_init=weights,
        means_init=means,
        precisions_init=precisions,
    ).fit(wide)
    ours = json.loads((tmp_path / "run/mixture.json").read_text())
    assert result["converged"]
    assert result["iterations"] == oracle.n_iter_ > 5
    np.testing.assert_allclose(ours["weights"], oracle.weights_, rtol=1e-7)
    np.testing.assert_allclose(ours["means"], oracle.means_, rtol=1e-7)
    np.testing.assert_allclose(ours["covariances"], oracle.covariances_, rtol=1e-6, atol=1e-9)
    assert result["log_likelihood"] == pytest.approx(oracle.score(wide), rel=1e-9)
    assert result["bic"] == pytest.approx(oracle.bic(wide), rel=1e-9)
    assert result["aic"] == pytest.approx(oracle.aic(wide), rel=1e-9)
    table = np.loadtxt(tmp_path / "run/labels.csv", delimiter=",", skiprows=1, dtype=int)
    assert (table[:, 1] == oracle.predict(wide)).all()
    assert result["counts"] == np.bincount(table[:, 1]).tolist()
    steps = [json.loads(line) for line in (tmp_path / "run/iterations.jsonl").read_text().splitlines()]
    likelihoods = [step["log_likelihood"] for step in steps]
    assert len(steps) == result["iterations"]
    assert (np.diff(likelihoods) > -1e-12).all(), "a step made the rows less likely"
    html = (tmp_path / "run/report.html").read_text()
    assert "By iteration: log-likelihood of a row" in html
    assert html.count("<circle") == 2000


def test_a_mixture_of_few_dimensions_says_what_to_do(tmp_path):
    x = np.random.default_rng(0).normal(0, 1, (200, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", np.concatenate([x, x[:, :1] + x[:, 1:]], axis=1))
    words = ["fit", "gmm", "--data", "x.npy", "--k", 2]
    stderr = dovetail(*words, "--regularization", 0, folder=tmp_path, code=2).stderr
    assert "is not positive" in stderr
    assert "raise the regularization" in stderr
    assert dovetail_json(*words, folder=tmp_path)["rows"] == 200


def with_target(rows=5000, seed=2, classes=None):
    """Columns of very different scale and place, and what a linear model with noise makes of them."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 1, (rows, 5)) * [1, 100, 1e-3, 5, 1] + [0, 1e4, 0, -7, 50]
    x = x.astype(np.float32)
    z = (x.astype(np.float64) - [0, 1e4, 0, -7, 50]) / [1, 100, 1e-3, 5, 1]
    if classes is None:
        return x, (z @ [1, -2, 0.5, 3, 0] + 12 + random.normal(0, 0.5, rows)).astype(np.float32)
    scores = z @ random.normal(0, 1, (5, classes)) + random.gumbel(0, 1, (rows, classes))
    return x, (scores.argmax(1) * 2 - 3).astype(np.float32)


def save_table(path, x, y, name="y"):
    columns = [*(f"x{i}" for i in range(x.shape[1] - 1)), name, f"x{x.shape[1] - 1}"]  # the target is in the middle
    table = np.concatenate([x[:, :-1], y[:, None], x[:, -1:]], axis=1)
    lines = [",".join(columns), *(",".join(repr(float(v)) for v in row) for row in table)]
    path.write_text("\n".join(lines) + "\n")


def coefficients(path):
    table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return path.read_text().splitlines()[0].split(","), table


@pytest.mark.parametrize("l2", [0, 30])
def test_a_linear_regression_is_that_of_scikit_learn(tmp_path, l2):
    x, y = with_target()
    save_table(tmp_path / "x.csv", x, y, "price")
    words = ["fit", "linear", "--data", "x.csv", "--target", "price", "--out", "run"]
    result = dovetail_json(*words, *(["--l2", l2] if l2 else []), folder=tmp_path)
    wide, target = x.astype(np.float64), y.astype(np.float64)
    oracle = linear_model.Ridge(alpha=l2, solver="svd") if l2 else linear_model.LinearRegression()
    oracle.fit(wide, target)
    names, table = coefficients(tmp_path / "run/coefficients.csv")
    assert names == ["intercept", "x0", "x1", "x2", "x3", "x4"]
    np.testing.assert_allclose(table[0, 1:], oracle.coef_, rtol=1e-7, atol=1e-8)
    assert table[0, 0] == pytest.approx(oracle.intercept_, rel=1e-7)
    assert result["intercept"] == table[0, 0]
    assert result["r2"] == pytest.approx(oracle.score(wide, target), rel=1e-9)
    assert result["rmse"] == pytest.approx(np.sqrt(np.mean((target - oracle.predict(wide)) ** 2)), rel=1e-9)
    assert result["dependent"] == []


def test_a_dependent_column_gets_no_coefficient_and_is_named(tmp_path):
    x, y = with_target()
    x[:, 3] = 4 * x[:, 0]  # exact in float32
    save_table(tmp_path / "x.csv", x, y)
    done = dovetail("fit", "linear", "--data", "x.csv", "--target", "y", "--out", "run", "--json", folder=tmp_path)
    assert "x3: their coefficients are 0" in done.stderr
    result = json.loads(done.stdout)
    assert result["dependent"] == ["x3"]
    oracle = linear_model.LinearRegression().fit(np.delete(x, 3, axis=1).astype(np.float64), y.astype(np.float64))
    table = coefficients(tmp_path / "run/coefficients.csv")[1]
    assert table[0, 4] == 0
    np.testing.assert_allclose(np.delete(table[0, 1:], 3), oracle.coef_, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("classes", "l2"), [(2, 1), (2, 50), (4, 1), (4, 20)])
def test_a_logistic_regression_is_that_of_scikit_learn(tmp_path, classes, l2):
    x, y = with_target(classes=classes)
    save_table(tmp_path / "x.csv", x, y)
    words = ["fit", "logistic", "--data", "x.csv", "--target", "y", "--out", "run", "--tolerance", 1e-9]
    result = dovetail_json(*words, *(["--l2", l2] if l2 != 1 else []), folder=tmp_path)
    names, table = coefficients(tmp_path / "run/coefficients.csv")
    assert names == ["class", "intercept", "x0", "x1", "x2", "x3", "x4"]
    values = np.unique(y)
    assert result["classes"] == values.tolist()
    assert table[:, 0].tolist() == (values[1:] if classes == 2 else values).tolist()
    assert result["converged"]
    oracle = linear_model.LogisticRegression(C=1 / l2, solver="newton-cg", tol=1e-10, max_iter=2000)
    middle = x.astype(np.float64).mean(0)
    oracle.fit(x - middle, y)
    np.testing.assert_allclose(table[:, 2:], oracle.coef_, rtol=2e-4, atol=1e-6)
    scores = (x - middle) @ table[:, 2:].T + table[:, 1] + middle @ table[:, 2:].T
    np.testing.assert_allclose(scores, (x - middle) @ oracle.coef_.T + oracle.intercept_, rtol=1e-3, atol=1e-3)
    assert result["accuracy"] == pytest.approx(oracle.score(x - middle, y), abs=1e-3)
    from sklearn.metrics import log_loss

    assert result["loss"] == pytest.approx(log_loss(y, oracle.predict_proba(x - middle)), rel=1e-6)


@pytest.mark.parametrize("solver", ["auto", "power"])
@pytest.mark.parametrize("components", [1, 3, 6])
def test_principal_components_are_those_of_scikit_learn(tmp_path, components, solver):
    from sklearn.decomposition import PCA

    random = np.random.default_rng(5)
    x = (random.normal(0, 1, (6000, 6)) * [9, 7, 5, 3, 2, 1]) @ np.linalg.qr(random.normal(0, 1, (6, 6)))[0] + 1000
    x = x.astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ["fit", "pca", "--data", "x.npy", "--components", components, "--out", "run", "--solver", solver]
    result = dovetail_json(*words, *(["--tolerance", 1e-11] if solver == "power" else []), folder=tmp_path)
    oracle = PCA(components, svd_solver="full").fit(x.astype(np.float64))
    assert result["converged"]
    assert result["iterations"] <= 2, "its block spans all columns: the best of the span are the components"
    np.testing.assert_allclose(result["shares"], oracle.explained_variance_ratio_, rtol=1e-8)
    np.testing.assert_allclose(result["variances"], oracle.explained_variance_ * (len(x) - 1) / len(x), rtol=1e-8)
    ours = np.loadtxt(tmp_path / "run/components.csv", delimiter=",", skiprows=1, ndmin=2)
    signs = np.sign((ours * oracle.components_).sum(1))
    np.testing.assert_allclose(ours, oracle.components_ * signs[:, None], rtol=1e-6, atol=1e-8)
    scores = np.loadtxt(tmp_path / "run/scores.csv", delimiter=",", skiprows=1, ndmin=2)
    np.testing.assert_allclose(scores, oracle.transform(x.astype(np.float64)) * signs, rtol=1e-6, atol=1e-6)


def iris(folder):
    """Saves iris as train.csv, and as new.csv with its columns in another order and two more."""
    frame = datasets.load_iris(as_frame=True)
    table = frame.data.assign(species=np.array(["setosa", "versicolor", "virginica"])[frame.target])
    table.to_csv(folder / "train.csv", index=False)
    mixed = table.iloc[::-1, ::-1].assign(note="x").reset_index(drop=True)
    mixed.to_csv(folder / "new.csv", index=False)
    return table, mixed[frame.data.columns]


def predicted(folder, *words):
    """Fits on train.csv and predicts new.csv."""
    dovetail("fit", words[0], "--data", "train.csv", *words[1:], "--out", "run", folder=folder)
    result = dovetail_json("fit", "predict", "run", "--data", "new.csv", "--out", "new/out.csv", folder=folder)
    found = pd.read_csv(folder / "new/out.csv")
    assert result == {"file": "new/out.csv", "model": words[0], "rows": 150, "bad_values": 0, "rows_left_out": 0}
    assert found.row.tolist() == list(range(150))
    return found


def test_predicts_numbers_of_other_rows(tmp_path):
    import dovetail as package

    table, new = iris(tmp_path)
    x, y = table.iloc[:, :3], table.iloc[:, 3]
    found = predicted(tmp_path, "linear", "--target", y.name, "--drop-columns", "species")
    assert found.columns.tolist() == ["row", "prediction"]
    oracle = linear_model.LinearRegression().fit(x, y)
    np.testing.assert_allclose(found.prediction, oracle.predict(new[x.columns]), rtol=1e-10)
    ours = package.LinearRegression().fit(x, y)
    np.testing.assert_allclose(found.prediction, ours.predict(new[x.columns]), rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_predicts_classes_of_other_rows(tmp_path, classes):
    import dovetail as package

    table, new = iris(tmp_path)
    table = table[table.species != "setosa"] if classes == 2 else table
    table.to_csv(tmp_path / "train.csv", index=False)
    found = predicted(tmp_path, "logistic", "--target", "species", "--tolerance", 1e-10, "--iterations", 999)
    x = table.iloc[:, :4]
    oracle = linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(x, table.species)
    ours = package.LogisticRegression(tol=1e-10, max_iter=999).fit(x, table.species)
    assert found.columns.tolist() == ["row", "prediction", *("probability_of_" + name for name in oracle.classes_)]
    assert found.prediction.tolist() == oracle.predict(new).tolist() == ours.predict(new).tolist()
    np.testing.assert_allclose(found.iloc[:, 2:], oracle.predict_proba(new), atol=1e-7)
    np.testing.assert_allclose(found.iloc[:, 2:], ours.predict_proba(new), atol=1e-9)


def test_predicts_scores_of_other_rows(tmp_path):
    import dovetail as package

    table, new = iris(tmp_path)
    x = table.iloc[:, :4]
    found = predicted(tmp_path, "pca", "--components", 3, "--drop-columns", "species")
    assert found.columns.tolist() == ["row", "component0", "component1", "component2"]
    oracle = decomposition.PCA(3, svd_solver="full").fit(x)
    expected = oracle.transform(new) * np.sign((package.PCA(3).fit(x).components_ * oracle.components_).sum(1))
    np.testing.assert_allclose(found.iloc[:, 1:], expected, atol=1e-10)
    np.testing.assert_allclose(found.iloc[:, 1:], package.PCA(3).fit(x).transform(new), atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diag", "tied", "spherical"])
def test_predicts_components_of_other_rows(tmp_path, covariance):
    import dovetail as package

    _, new = iris(tmp_path)
    found = predicted(tmp_path, "gmm", "--k", 3, "--covariance", covariance, "--drop-columns", "species")
    names = ["row", "label", "log_likelihood", *(f"probability_of_{k}" for k in range(3))]
    assert found.columns.tolist() == names
    model = json.loads((tmp_path / "run/mixture.json").read_text())
    spreads = np.array(model["covariances"])
    ours = package.GaussianMixture(3, covariance_type=covariance)
    theirs = mixture.GaussianMixture(3, covariance_type=covariance)
    matrices = covariance in ("full", "tied")
    for fit in (ours, theirs):
        fit.weights_, fit.means_ = np.array(model["weights"]), np.array(model["means"])
        inverse = np.linalg.inv(spreads) if matrices else 1 / spreads
        fit.precisions_cholesky_ = np.linalg.cholesky(inverse) if matrices else np.sqrt(inverse)
    ours.n_features_in_ = 4
    for fit in (ours, theirs):
        np.testing.assert_array_equal(found.label, fit.predict(new.to_numpy()))
        np.testing.assert_allclose(found.log_likelihood, fit.score_samples(new.to_numpy()), rtol=1e-9)
        np.testing.assert_allclose(found.iloc[:, 3:], fit.predict_proba(new.to_numpy()), atol=1e-9)


def test_predictions_number_the_rows_of_the_file(tmp_path):
    pd.DataFrame({"x": [1.0, 2, 3, 4], "y": [2.0, 4, 6, 8]}).to_csv(tmp_path / "train.csv", index=False)
    (tmp_path / "new.csv").write_text("x\n10\nNA\n20\n\nbad\n30\n")
    dovetail("fit", "linear", "--data", "train.csv", "--target", "y", "--out", "run", folder=tmp_path)
    words = ["fit", "predict", "run", "--data", "new.csv", "--out", "out.csv", "--bad-values", "skip"]
    assert dovetail_json(*words, folder=tmp_path)["rows_left_out"] == 2
    found = pd.read_csv(tmp_path / "out.csv")
    assert found.row.tolist() == [0, 2, 4]
    np.testing.assert_allclose(found.prediction, [20, 40, 60], rtol=1e-12)


@pytest.mark.parametrize(
    ("new", "words", "message"),
    [
        ("a,c\n1,2\n", [], "the model of run: no column is named b"),
        ("a,2\n1,2\n", [], "the model of run: no column is named b"),
        ("1,2\n3,4\n", [], "the model of run: no column is named a"),
        ("a,b,a\n1,2,3\n", [], "the model of run: columns 0 and 2 are both named `a`"),
        ("a,b\n1,x\n", [], "skip leaves such rows out\n"),
        ("a,b\n1,2\n", ["--columns", "a"], "--columns and --drop-columns do nothing here: the model of run says"),
        ("a,b\n1,2\n", ["--drop-columns", "a"], "--columns and --drop-columns do nothing here: the model of run says"),
        ("a,b\n1,2\n", ["--threads", 2], "--threads is an option of `dovetail fit gmm`, `linear`, `logistic`, `pca`"),
        ("a,b\n1,2\n", ["--l2", 2], "--l2 is an option of `dovetail fit linear`, `logistic`, not of"),
    ],
)
def test_other_columns_than_the_models_are_refused(tmp_path, new, words, message):
    (tmp_path / "x.csv").write_text("a,b,y\n1,2,3\n4,5,6\n7,9,8\n")
    (tmp_path / "new.csv").write_text(new)
    dovetail("fit", "linear", "--data", "x.csv", "--target", "y", "--out", "run", folder=tmp_path)
    call = ["fit", "predict", "run", "--data", "new.csv", "--out", "out.csv", *words]
    assert message in dovetail(*call, folder=tmp_path, code=2).stderr
    assert not (tmp_path / "out.csv").exists()


def test_a_place_is_not_taken_for_a_name(tmp_path):
    (tmp_path / "x.csv").write_text("1,b\n1,2\n4,5\n7,9\n")
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    dovetail("fit", "pca", "--data", "x.csv", "--header", "yes", "--components", 1, "--out", "run", folder=tmp_path)
    call = ["fit", "predict", "run", "--data", "new.csv", "--out", "out.csv"]
    assert "the model needs a column named 1" in dovetail(*call, folder=tmp_path, code=2).stderr


def test_a_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n4,5\n7,9\n")
    words = ["--data", "x.csv", "--out", "out.csv"]
    for call, message in [
        (["fit", "predict", "nowhere", *words], "nowhere holds no model"),
        (["fit", "predict", *words], "the folder of a run is missing"),
        (["fit", "predict", "run", *words[:2]], "--out is required"),
        (["fit", "pca", "run", *words], "run is an option of `dovetail fit predict`"),
    ]:
        assert message in dovetail(*call, folder=tmp_path, code=2).stderr
    dovetail("fit", "pca", *words[:2], "--components", 1, "--out", "run", folder=tmp_path)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    whole = (tmp_path / "run/model.safetensors").read_bytes()
    for damaged, message in [
        (whole[:-8], "model.safetensors"),
        (whole.replace(b'\\"pca\\"', b'\\"gmm\\"'), "this is no model of `dovetail fit`"),
        (whole.replace(b'a\\",\\"b', b"abcdefg"), "the tensors are no model pca over 1 columns"),
        (whole.replace(b"dovetail.fit", b"dovetail.fix"), "this is no model of `dovetail fit`"),
    ]:
        assert damaged != whole
        (tmp_path / "run/model.safetensors").write_bytes(damaged)
        assert message in dovetail("fit", "predict", "run", *words, folder=tmp_path, code=2).stderr


def test_rows_that_float32_would_round_are_float64(tmp_path):
    random = np.random.default_rng(0)
    day = 1.7e9 + np.array([0, 30]).repeat(500) + random.normal(0, 1, 1000)
    x = np.column_stack([day, random.normal(0, 1, 1000)])
    np.save(tmp_path / "x.npy", x)
    done = dovetail("fit", "gmm", "--data", "x.npy", "--k", 2, "--out", "gmm", "--json", folder=tmp_path)
    assert "rows are float64, since float32 rounds column `c0`" in done.stderr
    assert sorted(json.loads(done.stdout)["counts"]) == [500, 500]
    means = np.sort(np.loadtxt(tmp_path / "gmm/means.csv", delimiter=",", skiprows=1)[:, 0])
    np.testing.assert_allclose(means, [day[:500].mean(), day[500:].mean()], rtol=1e-12)
    y = 3 * (x[:, 0] - 1.7e9) - x[:, 1] + random.normal(0, 0.1, 1000)
    np.save(tmp_path / "xy.npy", np.column_stack([x, y]))
    dovetail("fit", "linear", "--data", "xy.npy", "--target", "c2", "--out", "linear", folder=tmp_path)
    oracle = linear_model.LinearRegression().fit(x - [1.7e9, 0], y)
    found = np.loadtxt(tmp_path / "linear/coefficients.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(found[1:], oracle.coef_, rtol=1e-9)
    np.save(tmp_path / "far.npy", x * [1e30, 1])
    assert "scale the columns" in dovetail("fit", "gmm", "--data", "far.npy", "--k", 2, folder=tmp_path, code=2).stderr
    components = dovetail_json("fit", "pca", "--data", "far.npy", "--components", 1, "--out", "pca", folder=tmp_path)
    assert components["shares"][0] == pytest.approx(1, abs=1e-12)


def test_longley_has_ten_certified_digits(tmp_path):
    """NIST StRD, Longley: y, then x1 to x6; certified intercept and coefficients."""
    rows = """
        60323 83.0 234289 2356 1590 107608 1947
        61122 88.5 259426 2325 1456 108632 1948
        60171 88.2 258054 3682 1616 109773 1949
        61187 89.5 284599 3351 1650 110929 1950
        63221 96.2 328975 2099 3099 112075 1951
        63639 98.1 346999 1932 3594 113270 1952
        64989 99.0 365385 1870 3547 115094 1953
        63761 100.0 363112 3578 3350 116219 1954
        66019 101.2 397469 2904 3048 117388 1955
        67857 104.6 419180 2822 2857 118734 1956
        68169 108.4 442769 2936 2798 120445 1957
        66513 110.8 444546 4681 2637 121950 1958
        68655 112.6 482704 3813 2552 123366 1959
        69564 114.2 502601 3931 2514 125368 1960
        69331 115.7 518173 4806 2572 127852 1961
        70551 116.9 554894 4007 2827 130081 1962"""
    lines = [",".join(line.split()) for line in rows.strip().splitlines()]
    (tmp_path / "longley.csv").write_text("\n".join(["y,x1,x2,x3,x4,x5,x6", *lines, ""]))
    dovetail("fit", "linear", "--data", "longley.csv", "--target", "y", "--out", "run", folder=tmp_path)
    certified = [-3482258.63459582, 15.0618722713733, -0.358191792925910e-01, -2.02022980381683, -1.03322686717359,
                 -0.511041056535807e-01, 1829.15146461355]  # fmt: skip
    found = np.loadtxt(tmp_path / "run/coefficients.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(found, certified, rtol=1e-10)


def test_executors_change_nothing_but_who_computes(tmp_path):
    x, y = with_target(rows=20_000)
    z, c = with_target(rows=20_000, classes=3)
    save_table(tmp_path / "numbers.csv", x, y)
    save_table(tmp_path / "classes.csv", z, c)
    names = ",".join(["cpu:1"] * min(2, len(os.sched_getaffinity(0))))
    for words, file in [
        (["gmm", "--data", "numbers.csv", "--k", 4], "mixture.json"),
        (["linear", "--data", "numbers.csv", "--target", "y"], "coefficients.csv"),
        (["pca", "--data", "numbers.csv", "--components", 2], "components.csv"),
        (["logistic", "--data", "classes.csv", "--target", "y"], "coefficients.csv"),
    ]:
        folders = []
        for i, more in enumerate([["--threads", 1], ["--threads", 2], ["--executors", names]]):
            folders.append(tmp_path / f"{words[0]}{i}")
            result = dovetail_json("fit", *words, *more, "--out", folders[-1], folder=tmp_path)
        assert result["executors"][0]["name"] == "cpu:1"
        texts = {(folder / file).read_bytes() for folder in folders}
        assert len(texts) == 1, words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gmm"], "dovetail fit gmm: --k is required"),
        (["linear"], "dovetail fit linear: --target is required"),
        (["linear", "--target", "y", "--k", 3], "--k is an option of `dovetail fit gmm`, not of `dovetail fit linear`"),
        (["gmm", "--k", 2, "--target", "y"], "--target is an option of `dovetail fit linear`, `logistic`"),
        (["logistic", "--target", "Y"], "no column is named Y"),
        (["logistic", "--target", "x0"], "x0 has 1500 different values, more than 1000 classes"),
        (["logistic", "--target", "x1"], "x1 is 1 in every row"),
        (["pca", "--components", 4], "4 of 3 columns"),
        (["pca", "--l2", 4], "not of `dovetail fit pca`"),
        (["pca", "--tolerance", 1e-9], "--tolerance is an option of --solver power"),
        (["pca", "--iterations", 9, "--solver", "covariance"], "--iterations is an option of --solver power"),
        (["pca", "--seed", 9], "--seed is an option of --solver power"),
        (["gmm", "--k", 2, "--solver", "power"], "--solver is an option of `dovetail fit pca`"),
        (["linear", "--target", "y", "--seed", 4], "--seed is an option of `dovetail fit gmm`, `pca`, not of"),
        (["forest", "--target", "x1"], "forest"),
        (["pca", "--timeout", 9], "--timeout is about several nodes, but there is one"),
        (["linear", "--target", "y", "--executors", "cpu:1", "--threads", 2], "give only --executors cpu:1"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, words, message):
    x = np.random.default_rng(0).normal(0, 1, (1500, 2)).astype(np.float32)
    x[:, 1] = 1
    save_table(tmp_path / "x.csv", x, x[:, 0] > 0)
    assert message in dovetail("fit", *words, "--data", "x.csv", folder=tmp_path, code=2).stderr


def test_the_report_of_a_mixture_shows_its_weights_and_likelihood(tmp_path):
    x = stretched_clouds()
    np.save(tmp_path / "x.npy", np.concatenate([x, np.repeat(x[:9], 400, axis=0)]))  # uneven weights
    result = dovetail_json("fit", "gmm", "--data", "x.npy", "--k", 3, "--iterations", 5, folder=tmp_path)
    assert max(result["weights"]) > 1.5 * min(result["weights"])
    charts = assert_readable((tmp_path / result["report"]).read_text())
    heights = np.array(charts["Weights of the components"].numbers("rect", "height"))
    assert heights / heights.sum() == pytest.approx(result["weights"], abs=2e-3)
    assert "By iteration: log-likelihood of a row" in charts


def test_the_report_of_principal_components_shows_their_variance(tmp_path):
    x = np.random.default_rng(6).normal(0, [9, 5, 3, 1, 0.5], (4000, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    result = dovetail_json("fit", "pca", "--data", "x.npy", "--components", 3, folder=tmp_path)
    charts = assert_readable((tmp_path / result["report"]).read_text())
    shares = decomposition.PCA(3).fit(x.astype(float)).explained_variance_ratio_
    heights = np.array(charts["Variance along each component"].numbers("rect", "height"))
    assert heights / heights[0] == pytest.approx(shares / shares[0], abs=3e-3)
    assert "Variance of the first components together" in charts
    points = charts["2,000 rows along two components"]
    spread = [np.std(points.numbers("circle", key)) for key in ["cx", "cy"]]
    assert len(points.all("circle")) == 2000 and min(spread) > 30
    np.save(tmp_path / "x.npy", np.random.default_rng(7).normal(0, 1, (500, 60)).astype(np.float32))
    one = dovetail_json("fit", "pca", "--data", "x.npy", "--components", 1, "--solver", "power", folder=tmp_path)
    assert "By iteration: residual" in assert_readable((tmp_path / one["report"]).read_text())


@pytest.mark.parametrize("classes", [None, 2, 4])
def test_the_report_of_a_regression_shows_its_coefficients(tmp_path, classes):
    x, y = with_target(classes=classes)
    save_table(tmp_path / "x.csv", x, y)
    model = "linear" if classes is None else "logistic"
    result = dovetail_json("fit", model, "--data", "x.csv", "--target", "y", folder=tmp_path)
    html = (tmp_path / result["report"]).read_text()
    charts = assert_readable(html)
    table = coefficients(tmp_path / result["folder"] / "coefficients.csv")[1]
    chart = charts["Coefficients"]
    effects = table[:, 1 if classes is None else 2 :] * x.std(0, dtype=float)
    order = np.argsort(-np.abs(effects).max(0), kind="stable")
    drawn = np.array(chart.numbers("circle", "cx")).reshape(len(order), -1).T
    zero = float(chart.all("path")[1].get("d")[1:].split()[0])  # the first path is the axes
    assert [box[0] for box in chart.boxes() if box[1] == "end"][1:] == [f"x{i}" for i in order]
    scale = np.linalg.lstsq(effects[:, order].reshape(-1, 1), (drawn - zero).ravel(), rcond=None)[0][0]
    assert drawn == pytest.approx(zero + scale * effects[:, order], abs=0.3)
    assert scale > 30
    if classes is None:
        assert "prediction and target" in html and "R2" in tiles_of(html)
    else:
        assert "By iteration: loss of a row" in charts
        assert len(chart.legend) == (0 if classes == 2 else classes)
