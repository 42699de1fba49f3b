"""scikit-learn's own tests of its k-means estimator, run on dovetail.KMeans."""

import re

import dovetail
import numpy as np
import pytest
import sklearn.cluster

THEIRS = sklearn.cluster.KMeans
sklearn.cluster.KMeans = dovetail.KMeans
try:
    from sklearn.cluster.tests import test_k_means as upstream
finally:
    sklearn.cluster.KMeans = THEIRS

globals().update({name: value for name, value in vars(upstream).items() if not name.startswith("_")})

# Tests without dovetail.KMeans, and what they test.
OF_OTHERS = {
    "mini_?batch": "MiniBatchKMeans",
    "kmeans_plusplus|k_means_function|euclidean_distance|test_inertia|same_clustering|relocate_empty": "functions",
}
# Tests that must fail, and why.
LEFT_OUT = {
    "sparse": "sparse matrices are refused: the rows are dense float32",
    "does_not_change_cluster_centers.csr": "sparse matrices are refused: the rows are dense float32",
    "elkan_1_cluster": "elkan names the same iterations as lloyd, also with one cluster",
    "float_precision": "centres are float64 for every dtype of X: a label is the nearest centre in float64",
    "sample_weight_(init|zero)": "they call _init_centroids; test_kmeans_weights.py tests starts by weights",
    "kmeans_verbose": "there is no verbose",
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
