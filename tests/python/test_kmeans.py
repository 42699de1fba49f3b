"""dovetail.KMeans keeps scikit-learn's contract, and its results."""

import os
import warnings

import dovetail
import numpy as np
import pytest
import torch
from sklearn import cluster
from sklearn.utils.estimator_checks import estimator_checks_generator


def clouds(rows=800, columns=10, k=6, seed=1):
    random = np.random.default_rng(seed)
    middles = random.normal(0, 4, (k, columns))
    return (middles[random.integers(0, k, rows)] + random.normal(0, 1, (rows, columns))).astype(np.float32)


# scikit-learn's own estimators fail it, too: weights and repeated rows draw other initial centres.
DRAWN = "check_sample_weight_equivalence_on_dense_data"


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.func.__name__)
        for _, check in estimator_checks_generator(dovetail.KMeans())
        if check.func.__name__ != DRAWN
    ],
)
def test_passes_check_estimator(check):
    check(dovetail.KMeans())


def test_weights_are_repeated_rows_where_nothing_is_drawn():
    checks = {check.func.__name__: check for _, check in estimator_checks_generator(dovetail.KMeans())}
    checks[DRAWN](dovetail.KMeans(n_clusters=1))


@pytest.mark.parametrize("k", [3, 6, 25])
def test_fits_what_scikit_learn_fits_from_the_same_centres(k):
    x = clouds()
    start = x[:k].astype(np.float64)
    ours = dovetail.KMeans(k, init=start, tol=0).fit(x)
    oracle = cluster.KMeans(k, init=start, n_init=1, tol=0, algorithm="lloyd").fit(x.astype(np.float64))
    assert (ours.labels_ == oracle.labels_).all()
    assert ours.n_iter_ == oracle.n_iter_
    assert ours.inertia_ == pytest.approx(oracle.inertia_, rel=1e-9)
    np.testing.assert_allclose(ours.cluster_centers_, oracle.cluster_centers_, rtol=1e-7, atol=1e-7)
    other = clouds(seed=2)
    assert (ours.predict(other) == oracle.predict(other.astype(np.float64))).all()
    np.testing.assert_allclose(ours.transform(other), oracle.transform(other.astype(np.float64)), rtol=1e-6)
    assert ours.score(other) == pytest.approx(oracle.score(other.astype(np.float64)), rel=1e-9)


def test_moves_empty_clusters_as_scikit_learn_does():
    x = clouds(rows=300)
    start = np.concatenate([x[:4], np.full((3, x.shape[1]), 1e3, np.float32)]).astype(np.float64)
    ours = dovetail.KMeans(7, init=start, tol=0, max_iter=1).fit(x)
    oracle = cluster.KMeans(7, init=start, n_init=1, tol=0, max_iter=1, algorithm="lloyd").fit(x.astype(np.float64))
    assert ours.inertia_ == pytest.approx(oracle.inertia_, rel=1e-9)
    np.testing.assert_allclose(
        np.sort(ours.cluster_centers_, axis=0), np.sort(oracle.cluster_centers_, axis=0), rtol=1e-7, atol=1e-7
    )


def test_takes_the_best_of_several_runs_and_repeats_itself():
    x = clouds(k=12, seed=4)
    one = [dovetail.KMeans(12, init="random", random_state=i).fit(x).inertia_ for i in range(3)]
    assert len(set(one)) > 1
    best = dovetail.KMeans(12, init="random", n_init=8, random_state=0).fit(x)
    assert best.inertia_ <= dovetail.KMeans(12, init="random", n_init=1, random_state=0).fit(x).inertia_
    assert (best.labels_ == best.predict(x)).all(), "the labels are of another run"
    again = dovetail.KMeans(12, init="random", n_init=8, random_state=0).fit(x)
    assert (again.cluster_centers_ == best.cluster_centers_).all()


def test_labels_of_the_best_of_several_runs_of_batches_are_its_own():
    x = clouds(k=12, seed=4)
    best = dovetail.KMeans(12, init="random", n_init=8, batch_size=100, random_state=0).fit(x)
    assert (best.labels_ == best.predict(x)).all()
    assert best.inertia_ == pytest.approx(-best.score(x), rel=1e-12)


@pytest.mark.parametrize("batch", [64, 200, 800])
def test_mini_batches_do_what_scikit_learn_does_with_the_same_batches(batch):
    x, k, iterations = clouds(), 6, 11
    start = x[:k].astype(np.float64)
    ours = dovetail.KMeans(
        k, init=start, batch_size=batch, max_iter=iterations, max_no_improvement=None, random_state=3
    ).fit(x)
    assert ours.n_iter_ == iterations
    oracle = cluster.MiniBatchKMeans(k, init=start, n_init=1, reassignment_ratio=0)
    seed, seen = int(np.random.RandomState(3).randint(np.iinfo(np.int32).max)), []
    for i in range(iterations):
        rows = torch.ops.dovetail.kmeans_batch_rows(len(x), batch, i, seed).numpy()
        oracle.partial_fit(x[rows].astype(np.float64))
        seen.append(rows)
    np.testing.assert_allclose(ours.cluster_centers_, oracle.cluster_centers_, rtol=1e-9, atol=1e-9)
    assert (ours.labels_ == oracle.predict(x.astype(np.float64))).all()
    assert ours.inertia_ == pytest.approx(-oracle.score(x.astype(np.float64)), rel=1e-9)
    once = np.concatenate(seen)[: len(x)]
    assert len(np.unique(once)) == len(once), "a row comes again before all have come"


def test_mini_batches_stop_when_nothing_gets_better():
    x = clouds(rows=4000)
    long = dovetail.KMeans(6, batch_size=256, max_no_improvement=None, max_iter=150, random_state=0).fit(x)
    short = dovetail.KMeans(6, batch_size=256, random_state=0).fit(x)
    loose = dovetail.KMeans(6, batch_size=256, tol=1e-3, max_no_improvement=None, random_state=0).fit(x)
    full = dovetail.KMeans(6, random_state=0).fit(x)
    assert long.n_iter_ == 150
    assert 10 < short.n_iter_ < 150
    assert loose.n_iter_ < 150
    assert short.inertia_ < 1.01 * full.inertia_


def test_is_the_same_bits_for_any_number_of_threads():
    x = np.random.default_rng(0).standard_normal((40_000, 7), dtype=np.float32)
    before = torch.get_num_threads()
    for options in (
        {"init": "k-means-parallel"},
        {"init": "first", "batch_size": 700},
        {"init": "first", "batch_size": 20_000},
    ):
        fits = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            fits.append(dovetail.KMeans(20, random_state=1, max_iter=5, **options).fit(x))
        torch.set_num_threads(before)
        for fit in fits:
            assert (fit.cluster_centers_ == fits[0].cluster_centers_).all()
            assert fit.inertia_ == fits[0].inertia_


@pytest.mark.parametrize("init", ["k-means++", "k-means-parallel"])
def test_good_starts_are_as_good_as_scikit_learns(init):
    x = clouds(rows=3000, k=30, seed=5)
    ours = np.mean([dovetail.KMeans(30, init=init, random_state=i).fit(x).inertia_ for i in range(8)])
    theirs = np.mean([cluster.KMeans(30, n_init=1, random_state=i).fit(x).inertia_ for i in range(8)])
    worse = np.mean([dovetail.KMeans(30, init="first").fit(x).inertia_])
    assert ours < 1.1 * theirs
    assert ours < worse


def test_a_start_leaves_the_distances_of_scikit_learns():
    # Heavy tails: a sample that is not drawn by distance would choose other candidates.
    x = np.random.default_rng(3).standard_t(2.5, (20_000, 5)).astype(np.float32)

    def distances(centres):
        return torch.cdist(torch.from_numpy(x).double(), torch.as_tensor(centres).double()).square().amin(1).sum()

    rows = torch.ops.dovetail.kmeans_data(torch.from_numpy(x))
    ours = [distances(torch.ops.dovetail.kmeans_init(rows, 40, "k-means++", seed)) for seed in range(12)]
    theirs = [distances(cluster.kmeans_plusplus(x, 40, random_state=seed)[0]) for seed in range(12)]
    assert np.mean(ours) < 1.05 * np.mean(theirs)


def test_refuses_by_name():
    x = clouds(rows=50)
    with pytest.raises(ValueError, match="'init' parameter of KMeans must be"):
        dovetail.KMeans(3, init="best").fit(x)
    with pytest.raises(ValueError, match="'n_clusters' parameter of KMeans must be an int"):
        dovetail.KMeans(2.5).fit(x)
    with pytest.raises(ValueError, match=r"initial centers .2, 10. does not match the number of clusters 3"):
        dovetail.KMeans(3, init=np.zeros((2, 10))).fit(x)
    with pytest.raises(ValueError, match="does not go with batch_size"):
        dovetail.KMeans(3, empty="reseed", batch_size=10).fit(x)
    with pytest.raises(RuntimeError, match="batches of 51 rows of 50"):
        dovetail.KMeans(3, batch_size=51).fit(x)
    with pytest.raises(ValueError, match="'empty' parameter of KMeans must be"):
        dovetail.KMeans(3, empty="drop").fit(x)
    with pytest.raises(AttributeError, match="no attribute 'KMedoids'"):
        dovetail.KMedoids  # noqa: B018


@pytest.mark.parametrize("batch_size", [None, 100])
def test_float64_with_a_large_offset_has_the_clusters_without_it(batch_size):
    x = clouds().astype(np.float64)
    offset = np.zeros(x.shape[1])
    offset[:3] = [1.7e9, -1e12, 1e6]
    start = x[:6]
    # float64 itself rounds the second column by 1e-4.
    shifted = x + offset
    ours = dovetail.KMeans(6, init=start + offset, tol=0, batch_size=batch_size, random_state=0).fit(shifted)
    plain = dovetail.KMeans(6, init=start, tol=0, batch_size=batch_size, random_state=0).fit(x)
    assert (ours.labels_ == plain.labels_).all()
    assert ours.inertia_ == pytest.approx(plain.inertia_, rel=1e-3)
    np.testing.assert_allclose(ours.cluster_centers_ - offset, plain.cluster_centers_, atol=2e-3)
    assert (ours.predict(shifted) == plain.predict(x)).all()
    np.testing.assert_allclose(ours.transform(shifted), plain.transform(x), atol=2e-3)
    assert ours.score(shifted) == pytest.approx(plain.score(x), rel=1e-3)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_float64_of_any_size_has_the_same_clusters(scale):
    x = clouds().astype(np.float64)
    start = x[:6]
    ours, plain = dovetail.KMeans(6, init=start * scale).fit(x * scale), dovetail.KMeans(6, init=start).fit(x)
    assert (ours.labels_ == plain.labels_).all()
    np.testing.assert_allclose(ours.cluster_centers_, plain.cluster_centers_ * scale, rtol=1e-4, atol=1e-5 * scale)
    np.testing.assert_allclose(ours.transform(x * scale), plain.transform(x) * scale, rtol=1e-4)


def two_clouds_of_seconds():
    random = np.random.default_rng(0)
    seconds = 1.7e9 + 30.0 * np.repeat([0, 1], 500) + random.normal(0, 1, 1000)
    return seconds[:, None]


def test_timestamps_30_s_apart_are_two_clusters_as_in_scikit_learn():
    x = two_clouds_of_seconds()
    ours, oracle = dovetail.KMeans(2, random_state=0).fit(x), cluster.KMeans(2, random_state=0).fit(x)
    assert sorted(np.bincount(ours.labels_)) == [500, 500]
    assert ours.inertia_ == pytest.approx(oracle.inertia_, rel=1e-6)
    np.testing.assert_allclose(np.sort(ours.cluster_centers_, 0), np.sort(oracle.cluster_centers_, 0), rtol=1e-12)


def test_values_that_float32_makes_equal_are_a_warning():
    x = np.concatenate([two_clouds_of_seconds(), [[0.0]]])
    with pytest.warns(UserWarning, match=r"float32 makes different values equal in columns \[0\]"):
        dovetail.KMeans(2, random_state=0).fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dovetail.KMeans(2, random_state=0).fit(two_clouds_of_seconds())
        dovetail.KMeans(2, random_state=0).fit(clouds().astype(np.float64) + 0.1)


def test_executors_have_the_bits_of_threads():
    x, weights = clouds(rows=5000), np.random.default_rng(1).uniform(0, 1, 5000)
    cores = min(2, len(os.sched_getaffinity(0)))
    for options in ({}, {"batch_size": 700}):
        alone = dovetail.KMeans(9, random_state=0, **options).fit(x, sample_weight=weights)
        shared = dovetail.KMeans(9, random_state=0, executors=",".join(["cpu:1"] * cores), **options)
        shared.fit(x, sample_weight=weights)
        assert (shared.cluster_centers_ == alone.cluster_centers_).all()
        assert shared.inertia_ == alone.inertia_
        assert (shared.predict(x) == alone.labels_).all()
        assert shared.score(x, sample_weight=weights) == alone.score(x, sample_weight=weights)
    assert (
        dovetail.KMeans(9, random_state=0, device="cpu").fit(x).labels_
        == dovetail.KMeans(9, random_state=0).fit(x).labels_
    ).all()


def test_devices_and_executors_are_refused_by_name():
    x = clouds(rows=50)
    with pytest.raises(RuntimeError, match='executors: "cores:2" is no list of executors'):
        dovetail.KMeans(3, executors="cores:2").fit(x)
    with pytest.raises(RuntimeError, match="this process may use"):
        dovetail.KMeans(3, executors="cpu:4096").fit(x)
    with pytest.raises(ValueError, match='device="mps": k-means computes on "cpu" or "cuda"'):
        dovetail.KMeans(3, device="mps").fit(x)
    with pytest.raises(ValueError, match='executors="cpu:1" and device="cpu" both say'):
        dovetail.KMeans(3, executors="cpu:1", device="cpu").fit(x)
    if not torch.cuda.is_available():
        for device in ("cuda", "cuda:1", torch.device("cuda")):
            with pytest.raises(RuntimeError, match=f'device="{device}": torch finds no GPU'):
                dovetail.KMeans(3, device=device).fit(x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_has_the_bits_of_the_cpu():
    x = clouds(rows=5000)
    for weights in (None, np.linspace(0, 2, 5000)):
        ours = dovetail.KMeans(6, init=x[:6], device="cuda").fit(x, sample_weight=weights)
        oracle = dovetail.KMeans(6, init=x[:6]).fit(x, sample_weight=weights)
        assert (ours.labels_ == oracle.labels_).all()
        assert (ours.cluster_centers_ == oracle.cluster_centers_).all()


def test_verbose_prints_each_iteration_after_the_run(capsys):
    x = clouds(rows=2000)
    model = dovetail.KMeans(6, init="random", n_init=2, tol=0, verbose=1, random_state=0).fit(x)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("Initialization complete") == 2
    inertias = [float(line.split()[-1].rstrip(".")) for line in lines if line.startswith("Iteration")]
    assert len(inertias) >= model.n_iter_
    assert min(inertias) >= model.inertia_ * (1 - 1e-9)
    assert sum("strict convergence" in line for line in lines) == 2
    dovetail.KMeans(6, batch_size=100, verbose=True, random_state=0).fit(1e30 * x.astype(np.float64))
    out = capsys.readouterr().out
    assert "lack of improvement in inertia" in out
    assert 1e60 < float(out.splitlines()[1].split()[-1].rstrip(".")) < 1e67, "inertia is not in X's units"
    dovetail.KMeans(6, random_state=0).fit(x)
    assert capsys.readouterr().out == ""


def test_keeps_names_of_columns_and_gives_frames():
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(clouds(columns=3), columns=["a", "b", "c"])
    model = dovetail.KMeans(4, random_state=0).set_output(transform="pandas").fit(x)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert list(model.transform(x).columns) == ["kmeans0", "kmeans1", "kmeans2", "kmeans3"]
    assert (model.fit_transform(x) == model.transform(x)).all(axis=None)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(x[["b", "a", "c"]])


def test_sparse_matrices_are_refused_by_name():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"Sparse data was passed.*dense"):
        dovetail.KMeans(3).fit(scipy_sparse.csr_matrix(clouds(rows=50)))
