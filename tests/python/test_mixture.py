"""dovetail.GaussianMixture beside scikit-learn's GaussianMixture, and under scikit-learn's checks of estimators."""

import os
import subprocess
import sys
import warnings

import dovetail
import numpy as np
import pytest
import torch
from sklearn import mixture
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

KINDS = ["full", "diag", "tied", "spherical"]


def clouds(rows=900, columns=4, k=3, seed=1):
    """Normal clouds of different shapes that overlap."""
    random = np.random.default_rng(seed)
    shape = random.normal(0, 1, (k, columns, columns))
    which = random.integers(0, k, rows)
    return random.normal(0, 3, (k, columns))[which] + np.einsum(
        "nij,nj->ni", shape[which], random.normal(0, 1, (rows, columns))
    )


@parametrize_with_checks([dovetail.GaussianMixture(), dovetail.GaussianMixture(2, covariance_type="tied")])
def test_is_an_estimator(estimator, check):
    check(estimator)


def expect_equal(ours, theirs, x):
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert a.shape == b.shape, name
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8, err_msg=name)
    assert ours.converged_ == theirs.converged_ and ours.n_iter_ == theirs.n_iter_
    assert ours.lower_bound_ == pytest.approx(theirs.lower_bound_, rel=1e-9)
    np.testing.assert_array_equal(ours.predict(x), theirs.predict(x))
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.score_samples(x), theirs.score_samples(x), rtol=1e-6)
    for name in ("score", "aic", "bic"):
        assert getattr(ours, name)(x) == pytest.approx(getattr(theirs, name)(x), rel=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_is_that_of_scikit_learn_from_the_same_start(kind, dtype):
    x, k = clouds().astype(dtype), 3
    precisions = {
        "full": np.stack([np.eye(4)] * k),
        "diag": np.ones((k, 4)),
        "tied": np.eye(4),
        "spherical": np.ones(k),
    }
    options = {
        "covariance_type": kind,
        "tol": 1e-7,
        "max_iter": 400,
        "weights_init": [0.2, 0.5, 0.3],
        "means_init": x[:k],
        "precisions_init": precisions[kind],
    }
    theirs = mixture.GaussianMixture(k, **options).fit(x.astype(np.float64))
    ours = dovetail.GaussianMixture(k, **options)
    labels = ours.fit_predict(x)
    assert theirs.n_iter_ > 3
    expect_equal(ours, theirs, x.astype(np.float64))
    np.testing.assert_array_equal(labels, theirs.predict(x.astype(np.float64)))


@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
def test_the_same_seed_takes_the_same_rows_of_the_data(kind):
    x = clouds()
    options = {
        "covariance_type": kind,
        "init_params": "random_from_data",
        "random_state": 5,
        "n_init": 3,
        "reg_covar": 0.3,
        "tol": 1e-6,
        "max_iter": 900,
    }
    expect_equal(dovetail.GaussianMixture(3, **options).fit(x), mixture.GaussianMixture(3, **options).fit(x), x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", ["kmeans", "k-means++", "random_from_data"])
def test_any_start_finds_clouds_that_are_apart(init, kind):
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 200)
    x = np.array([[0, 0], [60, 0], [0, 60]])[truth] + random.normal(0, 1, (600, 2))
    fit = dovetail.GaussianMixture(3, covariance_type=kind, init_params=init, n_init=10, random_state=0).fit(x)
    groups = {tuple(x[fit.predict(x) == k].mean(0).round()) for k in range(3)}
    assert groups == {(0, 0), (60, 0), (0, 60)}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_scikit_learn(kind):
    x = clouds()
    ours = dovetail.GaussianMixture(3, covariance_type=kind, random_state=4).fit(x)
    theirs = mixture.GaussianMixture(3, covariance_type=kind, random_state=4)
    for name in ("weights_", "means_", "covariances_", "precisions_cholesky_"):
        setattr(theirs, name, getattr(ours, name))
    rows, labels = ours.sample(50)
    expected, expected_labels = theirs.sample(50)
    np.testing.assert_allclose(rows, expected, rtol=1e-12)
    np.testing.assert_array_equal(labels, expected_labels)


def test_a_warm_start_goes_on():
    x = clouds()
    whole = dovetail.GaussianMixture(3, random_state=0, tol=0, max_iter=12)
    halves = dovetail.GaussianMixture(3, random_state=0, tol=0, max_iter=6, warm_start=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole.fit(x)
        halves.fit(x).fit(x)
    np.testing.assert_array_equal(whole.means_, halves.means_)


def test_values_far_from_zero_keep_their_digits():
    x = clouds()
    plain, far = (dovetail.GaussianMixture(3, random_state=0).fit(x + shift) for shift in (0, 1e7))
    np.testing.assert_allclose(far.means_ - 1e7, plain.means_, atol=1e-6)
    np.testing.assert_allclose(far.predict_proba(x + 1e7), plain.predict_proba(x), atol=1e-6)


def test_has_the_same_bits_for_any_number_of_threads():
    code = (
        "import sys, numpy as np, torch, dovetail; torch.set_num_threads(int(sys.argv[1]));"
        "x = np.random.default_rng(0).normal(0, 1, (20000, 5)) * [1, 2, 3, 4, 5];"
        "m = dovetail.GaussianMixture(3, covariance_type='tied', max_iter=5, tol=1, random_state=0).fit(x);"
        "print(m.means_.tobytes().hex(), m.covariances_.tobytes().hex(), m.score_samples(x[:999]).tobytes().hex())"
    )
    texts = {
        subprocess.run([sys.executable, "-c", code, n], env=os.environ, capture_output=True, check=True).stdout
        for n in ("1", "2", "3")
    }
    assert len(texts) == 1 and len(texts.pop()) > 1000


def test_warns_before_it_has_converged():
    with pytest.warns(ConvergenceWarning, match="did not converge in 1 iterations"):
        dovetail.GaussianMixture(3, max_iter=1).fit(clouds())


def test_what_cannot_be_done_is_refused():
    x = clouds()
    for given, message in [
        ({"covariance_type": "round"}, "'covariance_type' parameter of GaussianMixture must be a str among"),
        ({"init_params": "random"}, "'init_params' parameter of GaussianMixture must be a str among"),
        ({"means_init": x[:2]}, r"means_init should have the shape \(3, 4\), but got \(2, 4\)"),
        ({"weights_init": [1, 1, 1]}, "weights_init should be at least 0 and sum to 1"),
        ({"precisions_init": -np.stack([np.eye(4)] * 3)}, "precisions_init should be positive definite"),
    ]:
        with pytest.raises(ValueError, match=message):
            dovetail.GaussianMixture(3, **given).fit(x)
    flat = np.column_stack([x, x[:, 0]])
    with pytest.raises(ValueError, match=r"the covariance of component \d is not positive"):
        dovetail.GaussianMixture(3, reg_covar=0).fit(flat)
    with pytest.raises(ValueError, match="the covariance of all components is not positive"):
        dovetail.GaussianMixture(3, reg_covar=0, covariance_type="tied").fit(flat)
    with pytest.raises(ValueError, match="Expected n_samples >= n_components"):
        dovetail.GaussianMixture(3).fit(x[:2])
    with pytest.raises(ValueError, match="n_samples=0 must be at least 1"):
        dovetail.GaussianMixture(1).fit(x).sample(0)
    with pytest.raises(RuntimeError, match="are no mixture over 4 columns"):
        torch.ops.dovetail.mixture_scores(
            torch.ones(3, 4), *(torch.ones(s, dtype=torch.float64) for s in [(2,), (2, 4), (2, 4)]), "full"
        )
