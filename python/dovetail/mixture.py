"""Mixtures of normal distributions with scikit-learn's estimator interface, on Dovetail's kernels. Needs scikit-learn.

>>> labels = dovetail.GaussianMixture(n_components=3, random_state=0).fit_predict(x)
"""

import warnings
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
import torch
from dovetail._rows import as_tensor, rows_of
from dovetail.cluster import KMeans
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, DensityMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["GaussianMixture"]


class GaussianMixture(DensityMixin, BaseEstimator):
    """Mixture of normal distributions, by expectation and maximization (Dempster, Laird, Rubin 1977).

    Rows are float32 or float64; all else is float64. Fitted attributes are bitwise equal for any number of threads
    (``torch.set_num_threads``).

    Args:
        n_components: number of normal distributions, k.
        covariance_type: ``"full"``: any covariances. ``"diag"``: columns are independent within a component.
            ``"tied"``: one covariance for all components. ``"spherical"``: one variance for all columns of a component.
        tol: stop when the mean log-likelihood of a row changes by less.
        reg_covar: added to each variance.
        max_iter: maximum number of iterations.
        n_init: runs from different starts; the run with the largest ``lower_bound_`` is kept.
        init_params: start. ``"kmeans"``: the clusters of ``dovetail.KMeans``. ``"k-means++"``: points as k-means++
            draws them. ``"random_from_data"``: random rows. Single points have the variance ``reg_covar``.
        weights_init: (k) weights of the start, sum 1. None: by ``init_params``, also below.
        means_init: (k, n_features) means of the start.
        precisions_init: inverse covariances of the start, in the shape of ``covariances_``.
        random_state: seed or generator of the start and of ``sample``.
        warm_start: True: a later ``fit`` begins with the fitted mixture.

    Attributes:
        weights_: (k), sum 1.
        means_: (k, n_features).
        covariances_: shape by ``covariance_type``. full: (k, n_features, n_features). diag: (k, n_features). tied:
            (n_features, n_features). spherical: (k).
        precisions_, precisions_cholesky_: inverse covariances, and their roots U: the inverse is U U^T. Same shape.
        converged_: True if ``tol`` was reached.
        n_iter_: number of iterations.
        lower_bound_: mean log-likelihood of a row before the last step.
        n_features_in_: number of columns.
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "covariance_type": [StrOptions({"full", "diag", "tied", "spherical"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "reg_covar": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "init_params": [StrOptions({"kmeans", "k-means++", "random_from_data"})],
        "weights_init": ["array-like", None],
        "means_init": ["array-like", None],
        "precisions_init": ["array-like", None],
        "random_state": ["random_state"],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        n_components=1,
        *,
        covariance_type="full",
        tol=1e-3,
        reg_covar=1e-6,
        max_iter=100,
        n_init=1,
        init_params="kmeans",
        weights_init=None,
        means_init=None,
        precisions_init=None,
        random_state=None,
        warm_start=False,
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start

    def fit(self, X, y=None):
        """Fit the mixture to the rows of X.

        Args:
            X: (n_samples, n_features), at least two rows and as many as components.
            y: ignored.

        Returns:
            The estimator itself.

        Raises:
            ValueError: fewer rows than components, values that are not finite, or a start that does not fit. Also a
                covariance that is not positive definite.

        Warns:
            ConvergenceWarning: max_iter iterations do not reach ``tol``.
        """
        self.fit_predict(X)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def fit_predict(self, X, y=None):
        """Fit the mixture and return the most probable component of each row: (n_samples) int64."""
        X = self._checked(X, reset=True, ensure_min_samples=2)
        if len(X) < self.n_components:
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {self.n_components}, n_samples = {len(X)}"
            )
        rows, random = as_tensor(X), check_random_state(self.random_state)
        goes_on = self.warm_start and hasattr(self, "converged_")
        best = None
        for _ in range(1 if goes_on else self.n_init):
            start = (
                [torch.from_numpy(np.array(a)) for a in (self.weights_, self.means_, self.covariances_)]
                if goes_on
                else self._start(X, rows, random)
            )
            run = self._refusing(
                torch.ops.dovetail.mixture_fit,
                rows,
                *start,
                self.covariance_type,
                self.max_iter,
                self.tol,
                self.reg_covar,
                self.lower_bound_ if goes_on else -np.inf,
            )
            if best is None or run[4] > best[4]:
                best = run
        weights, means, covariances, labels, self.lower_bound_, self.n_iter_, self.converged_ = best
        self.weights_, self.means_, self.covariances_ = weights.numpy(), means.numpy(), covariances.numpy()
        roots = self._refusing(torch.ops.dovetail.mixture_roots, means, covariances, self.covariance_type)
        self.precisions_cholesky_ = roots.numpy()
        self.precisions_ = _squares(self.precisions_cholesky_, self.covariance_type)
        if not self.converged_:
            warnings.warn(
                f"GaussianMixture did not converge in {self.max_iter} iterations. Increase max_iter or tol, or try"
                " another start.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return labels.numpy().astype(np.int64)

    def score_samples(self, X):
        """Return the log-likelihood of each row: (n_samples) float64."""
        return logsumexp(self._scores(X), axis=1)

    def score(self, X, y=None):
        """Return the mean log-likelihood of a row."""
        return self.score_samples(X).mean()

    def predict(self, X):
        """Return the most probable component of each row: (n_samples) int64."""
        return self._scores(X).argmax(1)

    def predict_proba(self, X):
        """Return the probability of each component for each row: (n_samples, k) float64."""
        scores = self._scores(X)
        return np.exp(scores - logsumexp(scores, axis=1, keepdims=True))

    def bic(self, X):
        """Return the Bayesian information criterion (Schwarz 1978) of rows X; lower is better."""
        return -2 * self.score(X) * len(X) + self._n_parameters() * np.log(len(X))

    def aic(self, X):
        """Return the Akaike information criterion (Akaike 1974) of rows X; lower is better."""
        return -2 * self.score(X) * len(X) + 2 * self._n_parameters()

    def sample(self, n_samples=1):
        """Draw random rows.

        Args:
            n_samples: number of rows, at least 1.

        Returns:
            Rows (n_samples, n_features) float64 and the component of each (n_samples), in ascending order.

        Raises:
            ValueError: n_samples below 1.
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"n_samples={n_samples} must be at least 1")
        random = check_random_state(self.random_state)
        counts = random.multinomial(n_samples, self.weights_)
        rows = [self._draw(k, count, random) for k, count in enumerate(counts)]
        return np.vstack(rows), np.repeat(np.arange(self.n_components), counts)

    def _draw(self, k: int, count: int, random) -> np.ndarray:
        if self.covariance_type in ("full", "tied"):
            covariance = self.covariances_ if self.covariance_type == "tied" else self.covariances_[k]
            return random.multivariate_normal(self.means_[k], covariance, count)
        return self.means_[k] + random.standard_normal((count, self.means_.shape[1])) * np.sqrt(self.covariances_[k])

    def _start(self, X, rows: torch.Tensor, random) -> list[torch.Tensor]:
        given = self._given(X.shape[1])
        if any(tensor is None for tensor in given):
            points, labels = self._points(X, random)
            if labels is None:
                start = self._around(points)
            else:
                start = torch.ops.dovetail.mixture_start(rows, labels, points, self.covariance_type, self.reg_covar)
            given = [own if own is not None else other for own, other in zip(given, start, strict=True)]
        return given

    def _points(self, X, random) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a point of each component and the label of each row, if there is one."""
        if self.init_params == "random_from_data":
            return torch.from_numpy(X[random.choice(len(X), self.n_components, replace=False)].astype(np.float64)), None
        if self.init_params == "kmeans":
            clusters = KMeans(self.n_components, n_init=1, random_state=random).fit(X)
            return torch.from_numpy(clusters.cluster_centers_), torch.from_numpy(clusters.labels_)
        narrow, place = rows_of(X)
        data, seed = torch.ops.dovetail.kmeans_data(narrow), int(random.randint(np.iinfo(np.int32).max))
        return place.original(torch.ops.dovetail.kmeans_init(data, self.n_components, "k-means++", seed)), None

    def _around(self, points: torch.Tensor) -> list[torch.Tensor]:
        k, columns = points.shape
        unit = torch.eye(columns, dtype=torch.float64)
        covariances = {
            "full": unit.repeat(k, 1, 1),
            "tied": unit,
            "diag": torch.ones(k, columns, dtype=torch.float64),
            "spherical": torch.ones(k, dtype=torch.float64),
        }[self.covariance_type]
        return [torch.full((k,), 1 / k, dtype=torch.float64), points, covariances * self.reg_covar]

    def _given(self, columns: int) -> list[torch.Tensor | None]:
        """Return weights, means and covariances that the parameters give; None: not given."""
        k, kind = self.n_components, self.covariance_type
        shapes = {"full": (k, columns, columns), "tied": (columns, columns), "diag": (k, columns), "spherical": (k,)}

        def checked(name: str, shape: tuple[int, ...]) -> np.ndarray | None:
            if getattr(self, name) is None:
                return None
            array = check_array(getattr(self, name), dtype=np.float64, ensure_2d=False, allow_nd=True, copy=True)
            if array.shape != shape:
                raise ValueError(f"{name} should have the shape {shape}, but got {array.shape}")
            return array

        weights, means = checked("weights_init", (k,)), checked("means_init", (k, columns))
        precisions = checked("precisions_init", shapes[kind])
        if weights is not None and ((weights < 0).any() or abs(weights.sum() - 1) > 1e-6):
            raise ValueError(f"weights_init should be at least 0 and sum to 1, but is {weights}")
        covariances = None
        if precisions is not None:
            matrices = kind in ("full", "tied")
            if (np.linalg.eigvalsh(precisions) if matrices else precisions).min() <= 0:
                raise ValueError(f"precisions_init should be positive definite for covariance_type={kind!r}")
            covariances = np.linalg.inv(precisions) if matrices else 1 / precisions
        return [None if array is None else torch.from_numpy(array) for array in (weights, means, covariances)]

    def _scores(self, X) -> np.ndarray:
        """Return log(weight) + log density of each component at each row."""
        check_is_fitted(self)
        model = [np.ascontiguousarray(a, dtype=np.float64) for a in (self.weights_, self.means_)]
        roots = torch.from_numpy(np.ascontiguousarray(self.precisions_cholesky_, dtype=np.float64))
        return torch.ops.dovetail.mixture_scores(
            as_tensor(self._checked(X)), *map(torch.from_numpy, model), roots, self.covariance_type
        ).numpy()

    def _checked(self, X, reset: bool = False, **more) -> np.ndarray:
        return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], order="C", copy=False, **more)

    def _n_parameters(self) -> int:
        k, columns = self.means_.shape
        matrix = columns * (columns + 1) // 2
        free = {"full": k * matrix, "tied": matrix, "diag": k * columns, "spherical": k}[self.covariance_type]
        return k - 1 + k * columns + free

    @staticmethod
    def _refusing(operation, *arguments):
        try:
            return operation(*arguments)
        except RuntimeError as error:
            raise ValueError(str(error)) from error


def _squares(roots: np.ndarray, kind: str) -> np.ndarray:
    return roots @ np.swapaxes(roots, -1, -2) if kind in ("full", "tied") else roots**2
