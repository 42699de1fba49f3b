"""K-means with scikit-learn's estimator interface, on Dovetail's kernels. Needs scikit-learn.

>>> labels = dovetail.KMeans(n_clusters=8, random_state=0).fit_predict(x)
"""

import warnings
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
import torch
from dovetail._rows import Place, as_tensor, rows_of
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

__all__ = ["KMeans"]

_PIECE = 1 << 14  # rows of `transform` at once
_EXACT = "donot_use_mm_for_euclid_dist"


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """K-means by Lloyd's algorithm, or by mini-batches.

    Rows are float32, centred first if that keeps digits; sums and centres are float64. Labels are the nearest
    centres in float64. Results are bitwise equal for any number of threads (``torch.set_num_threads``). Sources:
    k-means++, Arthur and Vassilvitskii 2007; k-means-parallel, Bahmani et al. 2012; mini-batches, Sculley 2010.

    Args:
        n_clusters: number of centres.
        init: ``"k-means++"``, ``"k-means-parallel"``, ``"random"``, ``"first"``, or an array (n_clusters, n_features).
            A function ``init(X, n_clusters, random_state)`` may return such an array.
        n_init: runs from different initial centres; the run with the smallest inertia is kept. ``"auto"``: 10 runs for
            ``"random"`` and functions, else 1.
        max_iter: maximum number of iterations.
        tol: stop when the centres' squared moves sum to at most ``tol`` times the mean variance of the columns.
            None: 1e-4, or 0 (never) for mini-batches.
        empty: ``"reseed"`` moves a centre without rows to the row farthest from its own centre; ``"keep"`` leaves it.
            None: ``"reseed"``, or ``"keep"`` for mini-batches, which support nothing else.
        batch_size: rows per iteration, in a new random order after each pass; None: all rows in each iteration.
        max_no_improvement: stop mini-batches after this many iterations without a lower smoothed inertia; None: never.
        random_state: seed or generator of initial centres and mini-batches.
        copy_x: X is never changed, whatever this says.
        algorithm: ``"lloyd"`` or ``"elkan"``. Both name the same iterations, and Dovetail has one kernel for them.

    Attributes:
        cluster_centers_: (n_clusters, n_features) float64.
        labels_: (n_samples) int32.
        inertia_: sum of the rows' squared distances to their centres.
        n_iter_: number of iterations.
        n_features_in_: number of columns.
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"k-means++", "k-means-parallel", "random", "first"}), callable, "array-like"],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [None, Interval(Real, 0, None, closed="left")],
        "empty": [None, StrOptions({"reseed", "keep"})],
        "batch_size": [None, Interval(Integral, 1, None, closed="left")],
        "max_no_improvement": [None, Interval(Integral, 0, None, closed="left")],
        "random_state": ["random_state"],
        "copy_x": ["boolean"],
        "algorithm": [StrOptions({"lloyd", "elkan"})],
    }

    def __init__(
        self,
        n_clusters=8,
        *,
        init="k-means++",
        n_init="auto",
        max_iter=300,
        tol=None,
        empty=None,
        batch_size=None,
        max_no_improvement=10,
        random_state=None,
        copy_x=True,
        algorithm="lloyd",
    ):
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.empty = empty
        self.batch_size = batch_size
        self.max_no_improvement = max_no_improvement
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None, sample_weight=None):
        """Cluster the rows of X.

        Args:
            X: (n_samples, n_features), rounded to float32. A column that float32 cannot hold is centred before that.
                A table of very large or very small numbers is scaled by a power of 2. Results are in X's coordinates.
            y: ignored.
            sample_weight: (n_samples) weights of the rows, or a number for all; None: 1. A row of weight w counts like
                w equal rows: in the centres, the inertia, the tolerance and the draws of initial centres. A row of
                weight 0 only gets a label. scikit-learn's tolerance and its moves of empty centres ignore weights.

        Returns:
            The estimator itself.

        Raises:
            ValueError: fewer rows than clusters, values that are not finite, weights that are negative, not finite, all
                0 or of another length, or options that do not fit.

        Warns:
            ConvergenceWarning: fewer than n_clusters clusters have rows, since fewer rows differ.
            RuntimeWarning: ``n_init`` above 1 does nothing with an array of initial centres.
        """
        X = self._checked(X, reset=True)
        rows, place = rows_of(X)
        if len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        random = check_random_state(self.random_state)
        data = torch.ops.dovetail.kmeans_data(rows, _weights(sample_weight, X))
        best = None
        self._n_init = self._runs()
        for _ in range(self._n_init):
            seed = int(random.randint(np.iinfo(np.int32).max))
            start = self._start(X, data, place, seed, random)
            run = self._run(data, start, seed)
            if best is None or run[3] < best[3]:
                best = run
        centres, labels, counts, inertia, self.n_iter_, _ = best
        self.cluster_centers_, self.labels_ = place.original(centres).numpy(), labels.numpy()
        self.inertia_ = inertia * place.scale * place.scale
        self._n_features_out = self.n_clusters
        found = int(counts.count_nonzero())
        if found < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters ({self.n_clusters}). Possibly due"
                " to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=3,  # the caller of `fit`, beyond `_fit_context`
            )
        return self

    def fit_predict(self, X, y=None, sample_weight=None):
        """Fit, and return ``labels_``. Arguments are the same as for `fit`."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def fit_transform(self, X, y=None, sample_weight=None):
        """Fit, and return the distances of `transform`. Arguments are the same as for `fit`."""
        return self.fit(X, sample_weight=sample_weight)._distances(X)

    def predict(self, X):
        """Return the index of the nearest centre of each row: (n_samples) int32."""
        check_is_fitted(self)
        rows, place = rows_of(self._checked(X))
        data = torch.ops.dovetail.kmeans_data(rows)
        torch.ops.dovetail.kmeans_assign(data, self._centres(place))
        return torch.ops.dovetail.kmeans_labels(data).numpy()

    def transform(self, X):
        """Return the Euclidean distance of each row to each centre: (n_samples, n_clusters) float64."""
        check_is_fitted(self)
        return self._distances(X)

    def score(self, X, y=None, sample_weight=None):
        """Return minus the inertia of X: the sum of weighted squared distances to the nearest centres."""
        check_is_fitted(self)
        X = self._checked(X)
        rows, place = rows_of(X)
        data = torch.ops.dovetail.kmeans_data(rows, _weights(sample_weight, X))
        centres = self._centres(place)
        torch.ops.dovetail.kmeans_assign(data, centres)
        return -torch.ops.dovetail.kmeans_distances(data, centres)[1] * place.scale * place.scale

    def _distances(self, X) -> np.ndarray:
        X = self._checked(X)
        place = Place.of(X)
        centres = self._centres(place)
        pieces = [
            torch.cdist(
                torch.from_numpy(place.shifted(X[i : i + _PIECE].astype(np.float64))), centres, compute_mode=_EXACT
            )
            for i in range(0, len(X), _PIECE)
        ]
        return torch.cat(pieces).mul_(place.scale).numpy()

    def _runs(self) -> int:
        given = not isinstance(self.init, str) and not callable(self.init)
        if self.n_init == "auto":
            return 10 if callable(self.init) or (isinstance(self.init, str) and self.init == "random") else 1
        if given and self.n_init > 1:
            warnings.warn(
                "Explicit initial center position passed: performing only one init in KMeans instead of"
                f" n_init={self.n_init}.",
                RuntimeWarning,
                stacklevel=4,
            )
        return 1 if given else self.n_init

    def _run(self, data, start: torch.Tensor, seed: int):
        if self.batch_size is None:
            tol = 1e-4 if self.tol is None else self.tol
            return torch.ops.dovetail.kmeans_fit(data, start, self.max_iter, tol, self.empty or "reseed")
        if self.empty not in (None, "keep"):
            raise ValueError(f'empty="{self.empty}" does not go with batch_size: mini-batches keep such centres')
        patience = 0 if self.max_no_improvement is None else self.max_no_improvement
        return torch.ops.dovetail.kmeans_fit_batches(
            data, start, self.batch_size, self.max_iter, self.tol or 0.0, patience, seed
        )

    def _checked(self, X, reset: bool = False) -> np.ndarray:
        return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], order="C", copy=False)

    def _centres(self, place: Place) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(place.shifted(np.array(self.cluster_centers_, dtype=np.float64))))

    def _start(self, X, data, place: Place, seed: int, random) -> torch.Tensor:
        if isinstance(self.init, str):
            return torch.ops.dovetail.kmeans_init(data, self.n_clusters, self.init, seed)
        given = self.init(X.copy(), self.n_clusters, random_state=random) if callable(self.init) else self.init
        centres = check_array(given, dtype=np.float64, ensure_min_features=0)
        if len(centres) != self.n_clusters:
            raise ValueError(
                f"The shape of the initial centers {centres.shape} does not match the number of clusters"
                f" {self.n_clusters}."
            )
        if centres.shape[1] != X.shape[1]:
            raise ValueError(
                f"The shape of the initial centers {centres.shape} does not match the number of features of the data"
                f" {X.shape[1]}."
            )
        return torch.from_numpy(np.ascontiguousarray(place.shifted(centres)))


def _weights(sample_weight, X) -> torch.Tensor | None:
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise ValueError("sample_weight is 0 for all rows; give some rows a weight above 0")
    return as_tensor(np.ascontiguousarray(weights))
