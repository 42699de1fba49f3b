"""scikit-learn's own tests of its k-means estimators, run on dovetail.KMeans and dovetail.MiniBatchKMeans."""

import re

import dovetail
import numpy as np
import pytest
import sklearn.cluster

OURS = {"KMeans": dovetail.KMeans, "MiniBatchKMeans": dovetail.MiniBatchKMeans}
THEIRS = {name: getattr(sklearn.cluster, name) for name in OURS}
vars(sklearn.cluster).update(OURS)
try:
    from sklearn.cluster.tests import test_k_means as upstream
finally:
    vars(sklearn.cluster).update(THEIRS)

globals().update({name: value for name, value in vars(upstream).items() if not name.startswith("_")})

# Tests without our estimators, and what they test.
OF_OTHERS = {
    "kmeans_plusplus|k_means_function|euclidean_distance|test_inertia|same_clustering|relocate_empty": "functions",
    "minibatch_update_consistency|minibatch_reassign": "a step of theirs",
}
# Tests that must fail, and why.
LEFT_OUT = {
    "sparse": "sparse matrices are refused: the rows are dense float32",
    "does_not_change_cluster_centers.csr": "sparse matrices are refused: the rows are dense float32",
    "float_precision": "centres are float64 for every dtype of X: a label is the nearest centre in float64",
    "sample_weight_(init|zero)": "they call _init_centroids; test_kmeans_weights.py tests starts by weights",
    "sensible_reassign": "centres are never reassigned at random",
    "init_size|many_reassignments": "all rows are candidates for initial centres: there is no init_size",
}


@pytest.fixture
def global_random_seed():
    return 42


@pytest.fixture(params=[np.float32, np.float64])
def global_dtype(request):
    return request.param


@pytest.fixture(autouse=True)
def left_out(request):
    name = request.node.name
    for pattern, reason in OF_OTHERS.items():
        if re.search(pattern, name, re.IGNORECASE):
            pytest.skip(reason)
    for pattern, reason in LEFT_OUT.items():
        if re.search(pattern, name):
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
