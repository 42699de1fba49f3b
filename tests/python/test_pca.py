"""dovetail.PCA beside scikit-learn's PCA, and under scikit-learn's checks of estimators."""

import os
import subprocess
import sys

import dovetail
import numpy as np
import pytest
import torch
from sklearn import decomposition
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks


def table(rows=900, columns=12, seed=0, dtype=np.float64):
    random = np.random.default_rng(seed)
    scale = np.geomspace(9, 0.5, columns)
    turn = np.linalg.qr(random.normal(0, 1, (columns, columns)))[0]
    return ((random.normal(0, 1, (rows, columns)) * scale) @ turn + random.normal(0, 50, columns)).astype(dtype)


@parametrize_with_checks([dovetail.PCA()])
def test_is_an_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("solver", ["auto", "power"])
@pytest.mark.parametrize("number", [1, 5, 12])
def test_has_scikit_learns_components(number, solver, whiten):
    x = table(dtype=np.float32)
    theirs = decomposition.PCA(number, svd_solver="full", whiten=whiten).fit(x.astype(np.float64))
    ours = dovetail.PCA(number, svd_solver=solver, tol=1e-12, whiten=whiten).fit(x)
    for name in (
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "mean_",
        "noise_variance_",
    ):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-7, atol=1e-9, err_msg=name)
    assert ours.n_components_ == theirs.n_components_ and ours.n_samples_ == theirs.n_samples_
    scores = ours.transform(x)
    np.testing.assert_allclose(scores, theirs.transform(x.astype(np.float64)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.inverse_transform(scores), theirs.inverse_transform(scores), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fraction", [0.3, 0.85, 0.999])
def test_a_fraction_of_the_variance_takes_as_many_directions(fraction):
    x = table()
    theirs = decomposition.PCA(fraction, svd_solver="full").fit(x)
    assert dovetail.PCA(fraction).fit(x).n_components_ == theirs.n_components_


def test_fewer_rows_than_columns_and_columns_of_no_variance():
    x = table(rows=7)
    theirs, ours = decomposition.PCA().fit(x), dovetail.PCA().fit(x)
    assert ours.components_.shape == theirs.components_.shape == (7, 12)
    np.testing.assert_allclose(ours.explained_variance_[:6], theirs.explained_variance_[:6], rtol=1e-6)
    same = dovetail.PCA().fit(np.ones((5, 3)))
    assert (same.explained_variance_ratio_ == 0).all() and np.isfinite(same.transform(np.ones((2, 3)))).all()


def test_values_far_from_zero_keep_their_digits():
    x = table()
    plain, far = dovetail.PCA(3).fit(x), dovetail.PCA(3).fit(x + 1e9)
    np.testing.assert_allclose(far.explained_variance_, plain.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(far.mean_ - 1e9, plain.mean_, atol=1e-4)


def test_has_the_same_bits_for_any_number_of_threads():
    code = (
        "import sys, numpy as np, torch, dovetail; torch.set_num_threads(int(sys.argv[1]));"
        "x = np.random.default_rng(0).normal(0, 1, (30000, 40)).astype(np.float32);"
        "m = dovetail.PCA(7).fit(x);"
        "print(m.components_.tobytes().hex(), m.explained_variance_.tobytes().hex())"
    )
    texts = {
        subprocess.run([sys.executable, "-c", code, n], env=os.environ, capture_output=True, check=True).stdout
        for n in ("1", "2", "3")
    }
    assert len(texts) == 1 and len(texts.pop()) > 1000


def test_warns_of_directions_that_did_not_converge():
    with pytest.warns(ConvergenceWarning, match="did not converge in 1 iterations"):
        dovetail.PCA(2, svd_solver="power", max_iter=1, tol=1e-12).fit(table(columns=30))


def test_whitens_small_values_and_leaves_the_global_generator_alone():
    np.random.seed(3)
    expected = np.random.RandomState(3).random_sample()
    scores = dovetail.PCA(3, whiten=True).fit_transform(table() * 1e-9)
    np.testing.assert_allclose(scores.std(0, ddof=1), 1, rtol=1e-6)
    assert np.random.random_sample() == expected


def test_what_cannot_be_done_is_refused():
    x = table()
    for given, message in [
        ({"n_components": 13}, r"n_components=13 must be between 1 and min\(n_samples, n_features\)=12"),
        ({"n_components": 0.5, "svd_solver": "power"}, "n_components=0.5 needs the covariance matrix of 12 columns"),
        ({"svd_solver": "full"}, "'svd_solver' parameter of PCA must be a str among"),
        ({"n_components": 1.5}, "'n_components' parameter of PCA must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            dovetail.PCA(**given).fit(x)
    wide = np.random.default_rng(0).normal(0, 1, (5, 2049))
    with pytest.raises(ValueError, match="n_components=None needs the covariance matrix of 2049 columns"):
        dovetail.PCA().fit(wide)
    assert dovetail.PCA(2).fit(wide).components_.shape == (2, 2049)
    with pytest.raises(ValueError, match="the values are too large"):
        dovetail.PCA().fit(x * 1e200)
    with pytest.raises(RuntimeError, match="principal components: 13 of 12 columns"):
        torch.ops.dovetail.pca_fit(torch.ones(20, 12), 13, "auto", 5, 0.0, 0)
