"""dovetail.MiniBatchKMeans: steps of scikit-learn's MiniBatchKMeans from the same centres and batches."""

import pickle

import dovetail
import numpy as np
import pytest
from sklearn import cluster
from sklearn.utils.estimator_checks import estimator_checks_generator
from test_kmeans import clouds

# scikit-learn's own estimators fail it, too: weights and repeated rows draw other initial centres.
DRAWN = "check_sample_weight_equivalence_on_dense_data"


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.func.__name__)
        for _, check in estimator_checks_generator(dovetail.MiniBatchKMeans())
        if check.func.__name__ != DRAWN
    ],
)
def test_passes_check_estimator(check):
    check(dovetail.MiniBatchKMeans())


def test_weights_are_repeated_rows_where_nothing_is_drawn():
    checks = {check.func.__name__: check for _, check in estimator_checks_generator(dovetail.MiniBatchKMeans())}
    checks[DRAWN](dovetail.MiniBatchKMeans(n_clusters=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [3, 20])
def test_partial_fit_is_scikit_learns_step(k, weighted):
    x, random = clouds(rows=900).astype(np.float64), np.random.default_rng(4)
    start = x[-k:]
    ours = dovetail.MiniBatchKMeans(k, init=start)
    oracle = cluster.MiniBatchKMeans(k, init=start, n_init=1, reassignment_ratio=0)
    for step, begin in enumerate(range(0, 900, 150)):
        batch = x[begin : begin + 150]
        weights = random.uniform(0, 2, 150) if weighted else None
        ours.partial_fit(batch, sample_weight=weights)
        oracle.partial_fit(batch, sample_weight=weights)
        np.testing.assert_allclose(ours.cluster_centers_, oracle.cluster_centers_, rtol=1e-6, atol=1e-7)
        assert (ours.labels_ == oracle.labels_).all()
        assert ours.inertia_ == pytest.approx(oracle.inertia_, rel=1e-6)
        assert ours.n_steps_ == oracle.n_steps_ == step + 1
    assert (pickle.loads(pickle.dumps(ours)).partial_fit(x).labels_ == ours.partial_fit(x).labels_).all()


def test_partial_fit_of_float32_has_the_centres_to_ten_digits():
    x = clouds(rows=600)
    ours = dovetail.MiniBatchKMeans(5, init=x[:5])
    oracle = cluster.MiniBatchKMeans(5, init=x[:5].astype(np.float64), n_init=1, reassignment_ratio=0)
    for begin in range(0, 600, 100):
        ours.partial_fit(x[begin : begin + 100])
        oracle.partial_fit(x[begin : begin + 100].astype(np.float64))
    np.testing.assert_allclose(ours.cluster_centers_, oracle.cluster_centers_, rtol=1e-10)


def test_batches_with_offsets_of_their_own_make_the_same_centres():
    x = clouds(rows=600).astype(np.float64)
    x[:, 0] += 1.7e9
    ours = dovetail.MiniBatchKMeans(5, init=x[:5])
    oracle = cluster.MiniBatchKMeans(5, init=x[:5] - x[0], n_init=1, reassignment_ratio=0)
    for begin in range(0, 600, 100):
        ours.partial_fit(x[begin : begin + 100])
        oracle.partial_fit(x[begin : begin + 100] - x[0])
    np.testing.assert_allclose(ours.cluster_centers_ - x[0], oracle.cluster_centers_, atol=2e-6)


def test_partial_fit_goes_on_after_fit_with_the_rows_of_fit_counted():
    x = clouds(rows=500)
    model = dovetail.MiniBatchKMeans(1, random_state=0).fit(x, sample_weight=np.full(500, 2.0))
    before = model.cluster_centers_
    model.partial_fit(x[:10] + 1)
    expected = (1000 * before + (x[:10].astype(np.float64) + 1).sum(0)) / 1010
    np.testing.assert_allclose(model.cluster_centers_, expected, rtol=1e-6)


def test_fit_counts_steps_and_passes_and_is_as_good_as_scikit_learns():
    x = clouds(rows=5000, k=12)
    model = dovetail.MiniBatchKMeans(12, batch_size=700, max_iter=3, max_no_improvement=None, random_state=0).fit(x)
    assert model.n_steps_ == 3 * 5000 // 700
    assert model.n_iter_ == 3
    short = dovetail.MiniBatchKMeans(12, batch_size=10**6, max_iter=2, max_no_improvement=None).fit(x)
    assert (short.n_steps_, short.n_iter_) == (2, 2), "a batch is at most all rows"
    ours = [dovetail.MiniBatchKMeans(12, random_state=i).fit(x).inertia_ for i in range(8)]
    theirs = [cluster.MiniBatchKMeans(12, random_state=i).fit(x).inertia_ for i in range(8)]
    assert np.mean(ours) < 1.1 * np.mean(theirs)
    zeros = np.arange(5000) < 300
    few = dovetail.MiniBatchKMeans(3, max_iter=4, max_no_improvement=None).fit(x, sample_weight=zeros)
    assert few.n_steps_ == 4, "a batch holds rows with weight only"


def test_the_first_batch_needs_a_row_for_each_cluster():
    x = clouds(rows=50)
    with pytest.raises(ValueError, match=r"n_samples=7 should be >= n_clusters=8"):
        dovetail.MiniBatchKMeans().partial_fit(x[:7])
    model = dovetail.MiniBatchKMeans().partial_fit(x)
    model.partial_fit(x[:1])
    with pytest.raises(ValueError, match="has 9 features, but MiniBatchKMeans is expecting 10 features"):
        model.partial_fit(x[:, :9])
