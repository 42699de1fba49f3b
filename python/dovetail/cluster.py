"""K-means with scikit-learn's estimator interface, on Dovetail's kernels. Needs scikit-learn.

>>> labels = dovetail.KMeans(n_clusters=8, random_state=0).fit_predict(x)
"""

import math
import warnings
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
import torch
from dovetail._rows import Place, as_tensor, rows_of, warn_of_merged_values
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

__all__ = ["KMeans", "MiniBatchKMeans"]

_PIECE = 1 << 14  # rows of `transform` at once
_EXACT = "donot_use_mm_for_euclid_dist"


class _Clusters(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Common part of the estimators below. A subclass defines `_run`, one run from initial centres."""

    _parameter_constraints: ClassVar[dict] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"k-means++", "k-means-parallel", "random", "first"}), callable, "array-like"],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "max_no_improvement": [None, Interval(Integral, 0, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "executors": [None, str],
        "device": [None, str, torch.device],
    }
    _runs_if_random = 10  # n_init="auto" of random and callable `init`

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
            ValueError: fewer rows than clusters, values that are not finite, or options that do not fit. Also for
                weights that are negative, not finite, all 0 or of another length.

        Warns:
            ConvergenceWarning: fewer than n_clusters clusters have rows, since fewer rows differ.
            RuntimeWarning: ``n_init`` above 1 does nothing with an array of initial centres.
            UserWarning: float32 makes different values of a column equal.
        """
        X = self._checked(X, reset=True)
        rows, place = rows_of(X)
        warn_of_merged_values(X, rows, stacklevel=4)
        self._check_rows(X)
        random = check_random_state(self.random_state)
        weights = _weights(sample_weight, X)
        data = torch.ops.dovetail.kmeans_data(rows, weights, self._workers())
        taken = len(X) if weights is None else int(weights.count_nonzero())
        best = None
        self._n_init = self._runs()
        for _ in range(self._n_init):
            seed = int(random.randint(np.iinfo(np.int32).max))
            start = self._start(X, data, place, seed, random)
            run = self._run(data, taken, start, seed)
            if self.verbose:
                self._tell(run, place)
            if best is None or run[3] < best[3]:
                best = run
        centres, labels, counts, inertia, iterations = best[:5]
        self.cluster_centers_, self.labels_ = place.original(centres).numpy(), labels.numpy()
        self.inertia_ = inertia * place.scale * place.scale
        self._n_features_out = self.n_clusters
        self._end(iterations, taken, weights)
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
        data = torch.ops.dovetail.kmeans_data(rows, None, self._workers())
        torch.ops.dovetail.kmeans_assign(data, self._centres(place))
        return torch.ops.dovetail.kmeans_labels(data).numpy()

    def transform(self, X):
        """Return the Euclidean distance of each row to each centre: (n_samples, n_clusters) float64.

        It is computed on the CPU, by the threads of this process.
        """
        check_is_fitted(self)
        return self._distances(X)

    def score(self, X, y=None, sample_weight=None):
        """Return minus the inertia of X: the sum of weighted squared distances to the nearest centres."""
        check_is_fitted(self)
        X = self._checked(X)
        rows, place = rows_of(X)
        data = torch.ops.dovetail.kmeans_data(rows, _weights(sample_weight, X), self._workers())
        return -self._labels_and_inertia(data, place)[1]

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

    def _labels_and_inertia(self, data, place: Place) -> tuple[np.ndarray, float]:
        centres = self._centres(place)
        torch.ops.dovetail.kmeans_assign(data, centres)
        inertia = torch.ops.dovetail.kmeans_distances(data, centres)[1] * place.scale * place.scale
        return torch.ops.dovetail.kmeans_labels(data).numpy(), inertia

    def _check_rows(self, X) -> None:
        if len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")

    def _workers(self) -> str:
        """Return the executors as the operators take them; "": the threads of this process."""
        if self.device is None:
            return self.executors or ""
        if self.executors is not None:
            raise ValueError(
                f'executors="{self.executors}" and device="{self.device}" both say what computes; leave one out'
            )
        kind, _, number = str(self.device).partition(":")
        if kind not in ("cpu", "cuda"):
            raise ValueError(f'device="{self.device}": k-means computes on "cpu" or "cuda"')
        if kind == "cpu":
            return ""
        if not torch.cuda.is_available():
            raise RuntimeError(f'device="{self.device}": torch finds no GPU; use device="cpu"')
        return f"cuda:{number or 0}"

    def _runs(self) -> int:
        given = not isinstance(self.init, str) and not callable(self.init)
        if self.n_init == "auto":
            drawn = callable(self.init) or (isinstance(self.init, str) and self.init == "random")
            return self._runs_if_random if drawn else 1
        if given and self.n_init > 1:
            warnings.warn(
                f"Explicit initial center position passed: performing only one init in {type(self).__name__} instead of"
                f" n_init={self.n_init}.",
                RuntimeWarning,
                stacklevel=4,
            )
        return 1 if given else self.n_init

    def _run_batches(self, data, start: torch.Tensor, seed: int, batch: int, iterations: int, tol: float):
        patience = 0 if self.max_no_improvement is None else self.max_no_improvement
        return torch.ops.dovetail.kmeans_fit_batches(
            data, start, batch, iterations, tol, patience, seed, int(self.verbose)
        )

    def _tell(self, run, place: Place) -> None:
        """Print the course of a run, in scikit-learn's words."""
        converged, lines = run[5:]
        print("Initialization complete")
        for i, (inertia, _, _) in enumerate(lines.tolist()):
            print(f"Iteration {i}, inertia {inertia * place.scale * place.scale}.")
        if converged:
            print(self._why(*lines[-1].tolist()), f"at iteration {len(lines) - 1}.")

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


class KMeans(_Clusters):
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
        verbose: above 0: print the inertia of each iteration, after each run.
        executors: groups of threads that share the rows by their measured speeds, and GPUs. Example: ``"cpu:2,cpu:1"``.
            Results have the same bits. None: the threads of this process (``torch.set_num_threads``).
        device: ``"cpu"``, or ``"cuda"`` for a GPU; in place of `executors`.

    Attributes:
        cluster_centers_: (n_clusters, n_features) float64.
        labels_: (n_samples) int32.
        inertia_: sum of the rows' weighted squared distances to their centres.
        n_iter_: number of iterations.
        n_features_in_: number of columns.
    """

    _parameter_constraints: ClassVar[dict] = {
        **_Clusters._parameter_constraints,
        "tol": [None, Interval(Real, 0, None, closed="left")],
        "empty": [None, StrOptions({"reseed", "keep"})],
        "batch_size": [None, Interval(Integral, 1, None, closed="left")],
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
        verbose=0,
        random_state=None,
        copy_x=True,
        algorithm="lloyd",
        executors=None,
        device=None,
    ):
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.empty = empty
        self.batch_size = batch_size
        self.max_no_improvement = max_no_improvement
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm
        self.executors = executors
        self.device = device

    def _check_rows(self, X) -> None:
        super()._check_rows(X)
        if self.algorithm == "elkan" and self.n_clusters == 1:
            warnings.warn(
                "algorithm='elkan' doesn't make sense for a single cluster. Using 'lloyd' instead.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _run(self, data, rows: int, start: torch.Tensor, seed: int):
        if self.batch_size is None:
            return torch.ops.dovetail.kmeans_fit(
                data, start, self.max_iter, self._tolerance(), self.empty or "reseed", int(self.verbose)
            )
        if self.empty not in (None, "keep"):
            raise ValueError(f'empty="{self.empty}" does not go with batch_size: mini-batches keep such centres')
        return self._run_batches(data, start, seed, self.batch_size, self.max_iter, self._tolerance())

    def _tolerance(self) -> float:
        if self.tol is None:
            return 1e-4 if self.batch_size is None else 0.0
        return self.tol

    def _why(self, inertia: float, shift: float, changed: float) -> str:
        if changed == 0:
            return "Converged: strict convergence"
        if changed < 0:
            return _why_of_batches(self._tolerance(), self.max_no_improvement)
        return f"Converged: center shift {shift * shift} within tolerance {self._tolerance()} of the mean variance"

    def _end(self, iterations: int, rows: int, weights: torch.Tensor | None) -> None:
        self.n_iter_ = iterations


class MiniBatchKMeans(_Clusters):
    """K-means by mini-batches (Sculley 2010), for data that arrives in parts or is too large to read often.

    A centre is the mean of all rows for which it was the nearest centre so far. A centre that was never the nearest
    stays where it started. scikit-learn does so with ``reassignment_ratio=0``. Numbers and bits are as in `KMeans`.

    Args:
        n_clusters, init, executors, device: as in `KMeans`.
        max_iter: maximum number of passes over all rows.
        batch_size: rows per step, in a new random order after each pass. At most all rows.
        verbose: above 0: print the inertia of each step, after each run.
        random_state: seed or generator of initial centres and batches.
        tol: stop when the centres' squared moves sum to at most ``tol`` times the mean variance of the columns.
        max_no_improvement: stop after this many steps without a lower smoothed inertia; None: never.
        n_init: runs from different initial centres; the run with the smallest inertia is kept. ``"auto"``: 3 runs for
            ``"random"`` and functions, else 1.

    Attributes:
        cluster_centers_, labels_, inertia_, n_features_in_: as in `KMeans`. After `partial_fit`, labels and inertia
            cover the last batch.
        n_iter_: number of passes that `fit` began.
        n_steps_: number of steps.
    """

    _parameter_constraints: ClassVar[dict] = {
        **_Clusters._parameter_constraints,
        "tol": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }
    _runs_if_random = 3

    def __init__(
        self,
        n_clusters=8,
        *,
        init="k-means++",
        max_iter=100,
        batch_size=1024,
        verbose=0,
        random_state=None,
        tol=0.0,
        max_no_improvement=10,
        n_init="auto",
        executors=None,
        device=None,
    ):
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.verbose = verbose
        self.random_state = random_state
        self.tol = tol
        self.max_no_improvement = max_no_improvement
        self.n_init = n_init
        self.executors = executors
        self.device = device

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y=None, sample_weight=None):
        """Move the centres by one batch, the rows of X.

        The first call draws the initial centres from its rows. After `fit`, the rows of `fit` count as seen once.

        Args:
            X: (n_samples, n_features), as for `fit`. The first batch must have a row for each cluster.
            y: ignored.
            sample_weight: (n_samples) weights of the rows, as for `fit`.

        Returns:
            The estimator itself.

        Raises:
            ValueError: as for `fit`.
        """
        first = not hasattr(self, "cluster_centers_")
        X = self._checked(X, reset=first)
        rows, place = rows_of(X)
        data = torch.ops.dovetail.kmeans_data(rows, _weights(sample_weight, X), self._workers())
        if first:
            self._check_rows(X)
            random = check_random_state(self.random_state)
            centres = self._start(X, data, place, int(random.randint(np.iinfo(np.int32).max)), random)
            self._seen, self.n_steps_ = np.zeros(self.n_clusters), 0
        else:
            centres = self._centres(place)
        sums, counts, _ = torch.ops.dovetail.kmeans_assign(data, centres)
        seen = torch.from_numpy(self._seen).unsqueeze(1)
        upto = seen + counts.unsqueeze(1)
        centres = torch.where(upto > seen, (centres * seen + sums) / upto, centres)
        self.cluster_centers_, self._seen = place.original(centres).numpy(), upto.squeeze(1).numpy()
        self.labels_, self.inertia_ = self._labels_and_inertia(data, place)
        self.n_steps_ += 1
        self._n_features_out = self.n_clusters
        return self

    def _run(self, data, rows: int, start: torch.Tensor, seed: int):
        batch = min(self.batch_size, rows)
        steps = max(1, self.max_iter * rows // batch)
        return self._run_batches(data, start, seed, batch, steps, self.tol)

    def _why(self, inertia: float, shift: float, changed: float) -> str:
        return _why_of_batches(self.tol, self.max_no_improvement)

    def _end(self, steps: int, rows: int, weights: torch.Tensor | None) -> None:
        self.n_steps_ = steps
        self.n_iter_ = math.ceil(steps * min(self.batch_size, rows) / rows)
        self._seen = np.bincount(self.labels_, weights, self.n_clusters).astype(np.float64)


def _why_of_batches(tol: float, max_no_improvement: int | None) -> str:
    if max_no_improvement is None:
        return "Converged (small centers change)"
    if tol == 0:
        return "Converged (lack of improvement in inertia)"
    return "Converged (small centers change, or lack of improvement in inertia)"


def _weights(sample_weight, X) -> torch.Tensor | None:
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise ValueError("sample_weight is 0 for all rows; give some rows a weight above 0")
    return as_tensor(np.ascontiguousarray(weights))
