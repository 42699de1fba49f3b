"""Weights of rows in dovetail.KMeans: scikit-learn's results from the same centres, and repeated rows."""

import dovetail
import numpy as np
import pytest
from sklearn import cluster
from test_kmeans import clouds


def pair(k, start, **options):
    return (
        dovetail.KMeans(k, init=start, tol=0, **options),
        cluster.KMeans(k, init=start, n_init=1, tol=0, algorithm="lloyd", **options),
    )


@pytest.mark.parametrize("k", [3, 6, 25])
@pytest.mark.parametrize("kind", ["uniform", "whole", "wide"])
def test_fits_what_scikit_learn_fits(k, kind):
    x, random = clouds(rows=2500).astype(np.float64), np.random.default_rng(3)
    weights = {
        "uniform": lambda: random.uniform(0, 3, len(x)),
        "whole": lambda: random.integers(0, 4, len(x)),
        "wide": lambda: 10 ** random.uniform(-6, 6, len(x)),
    }[kind]()
    ours, oracle = pair(k, x[:k])
    ours.fit(x, sample_weight=weights)
    oracle.fit(x, sample_weight=weights)
    assert (ours.labels_ == oracle.labels_).all()
    assert ours.n_iter_ == oracle.n_iter_
    np.testing.assert_allclose(ours.cluster_centers_, oracle.cluster_centers_, rtol=1e-10)
    assert ours.inertia_ == pytest.approx(oracle.inertia_, rel=1e-10)
    other, other_weights = clouds(seed=2).astype(np.float64), random.uniform(0, 1, 800)
    assert ours.score(other, sample_weight=other_weights) == pytest.approx(
        oracle.score(other, sample_weight=other_weights), rel=1e-9
    )
    assert (ours.fit_predict(x, sample_weight=weights) == oracle.labels_).all()
    np.testing.assert_allclose(ours.fit_transform(x, sample_weight=weights), oracle.transform(x), rtol=1e-6)


def test_whole_weights_are_repeated_rows():
    x = clouds(rows=1500)
    weights = np.random.default_rng(0).integers(0, 5, len(x))
    ours = dovetail.KMeans(6, init=x[:6]).fit(x, sample_weight=weights)
    oracle = cluster.KMeans(6, init=x[:6], n_init=1, tol=0).fit(np.repeat(x, weights, axis=0).astype(np.float64))
    assert (np.repeat(ours.labels_, weights) == oracle.labels_).all()
    np.testing.assert_allclose(ours.cluster_centers_, oracle.cluster_centers_, rtol=1e-10)
    repeated = dovetail.KMeans(6, init=x[:6]).fit(np.repeat(x, weights, axis=0))
    assert ours.n_iter_ == repeated.n_iter_, "the tolerance is not weighted"


@pytest.mark.parametrize("init", ["k-means++", "k-means-parallel", "random", "first"])
def test_rows_of_weight_0_only_get_labels(init):
    x = clouds(rows=900)
    far = np.full((60, x.shape[1]), 1e4, np.float32)
    weights = np.concatenate([np.zeros(60), np.ones(900)])
    for seed in range(5):
        both = dovetail.KMeans(6, init=init, random_state=seed).fit(np.concatenate([far, x]), sample_weight=weights)
        assert np.abs(both.cluster_centers_).max() < 100
        assert len(both.labels_) == 960
        assert both.inertia_ == pytest.approx(-both.score(x), rel=1e-10)


@pytest.mark.parametrize("init", ["k-means++", "k-means-parallel", "random"])
def test_starts_are_as_good_as_scikit_learns(init):
    x, random = clouds(rows=3000, k=30, seed=5), np.random.default_rng(1)
    weights = 10 ** random.uniform(-3, 1, len(x))
    theirs_init = "random" if init == "random" else "k-means++"
    ours = [dovetail.KMeans(30, init=init, n_init=1, random_state=i).fit(x, None, weights).inertia_ for i in range(8)]
    theirs = [
        cluster.KMeans(30, init=theirs_init, n_init=1, random_state=i).fit(x, None, weights).inertia_ for i in range(8)
    ]
    assert np.mean(ours) < 1.1 * np.mean(theirs)


def test_moves_empty_clusters_by_weights_as_scikit_learn_does():
    x = clouds(rows=300).astype(np.float64)
    weights = np.random.default_rng(2).uniform(0.1, 2, len(x))
    ours, oracle = pair(7, np.concatenate([x[:4], np.full((3, x.shape[1]), 1e3)]), max_iter=1)
    ours.fit(x, sample_weight=weights)
    oracle.fit(x, sample_weight=weights)
    np.testing.assert_allclose(
        np.sort(ours.cluster_centers_, axis=0), np.sort(oracle.cluster_centers_, axis=0), rtol=1e-7, atol=1e-7
    )


def test_one_number_is_the_weight_of_all_rows_and_the_inertia_scales():
    x = clouds()
    plain = dovetail.KMeans(6, random_state=0).fit(x)
    ones = dovetail.KMeans(6, random_state=0).fit(x, sample_weight=1)
    assert (ones.cluster_centers_ == plain.cluster_centers_).all()
    assert ones.inertia_ == plain.inertia_
    halves = dovetail.KMeans(6, random_state=0).fit(x, sample_weight=0.5)
    assert (halves.labels_ == plain.labels_).all()
    assert halves.inertia_ == pytest.approx(plain.inertia_ / 2)


def test_bad_weights_are_refused():
    x = clouds(rows=50)
    weights = np.ones(50)
    for bad, words in [
        (np.where(np.arange(50) == 7, -1, weights), "[Nn]egative values"),
        (np.where(np.arange(50) == 7, np.nan, weights), "sample_weight contains NaN"),
        (np.where(np.arange(50) == 7, np.inf, weights), "sample_weight contains infinity"),
        (weights[:-1], r"sample_weight.shape == \(49,\), expected \(50,\)"),
        (np.ones((50, 1)), "must be 1D array or scalar"),
        (0 * weights, "(at least one non-zero|is 0 for all rows)"),
    ]:
        model = dovetail.KMeans(3)
        for call in (model.fit, model.fit_predict, model.fit_transform, dovetail.KMeans(3).fit(x).score):
            with pytest.raises(ValueError, match=words):
                call(x, sample_weight=bad)
    with pytest.raises(RuntimeError, match="3 centres of 2 rows with a weight above 0"):
        dovetail.KMeans(3).fit(x, sample_weight=np.arange(50) < 2)
