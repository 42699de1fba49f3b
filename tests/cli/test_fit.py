"""`dovetail fit` with scikit-learn as the oracle: the same start or the same objective, the same model."""

import json
import os

import numpy as np
import pytest
from cli import dovetail, dovetail_json

linear_model = pytest.importorskip("sklearn.linear_model")
from sklearn import cluster, mixture  # noqa: E402


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
    full = [np.cov(group.T, bias=True) + 1e-6 * np.eye(x.shape[1]) for group in groups]
    spreads = np.array(full) if covariance == "full" else np.array([np.diag(c) for c in full])
    return np.bincount(labels) / len(x), np.array([g.mean(0) for g in groups]), spreads


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_a_mixture_is_that_of_scikit_learn_from_the_same_start(tmp_path, covariance):
    x, k = stretched_clouds(), 3
    np.save(tmp_path / "x.npy", x)
    words = ["fit", "gmm", "--data", "x.npy", "--k", k, "--covariance", covariance, "--init", "first", "--out", "run"]
    result = dovetail_json(*words, "--tolerance", 1e-7, "--iterations", 400, folder=tmp_path)
    wide = x.astype(np.float64)
    labels = cluster.KMeans(k, init=wide[:k], n_init=1, algorithm="lloyd").fit(wide).labels_
    weights, means, spreads = of_labels(wide, labels, k, covariance)
    precisions = np.linalg.inv(spreads) if covariance == "full" else 1 / spreads
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
