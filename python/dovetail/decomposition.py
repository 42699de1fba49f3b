"""Principal components with scikit-learn's estimator interface, on Dovetail's kernels. Needs scikit-learn.

>>> scores = dovetail.PCA(n_components=4).fit_transform(x)
"""

import warnings
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
import torch
from dovetail._rows import as_tensor
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import assert_all_finite, check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["PCA"]


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components: orthonormal directions of the largest variance of centred rows.

    Rows are float32 or float64; covariances and results are float64. The element of largest magnitude of each
    direction is positive. Fitted attributes are bitwise equal for any number of threads (``torch.set_num_threads``).
    The methods of scikit-learn's probabilistic model are missing: ``score``, ``score_samples``, ``get_covariance`` and
    ``get_precision``.

    Args:
        n_components: number of directions, or a fraction of the variance that they explain together, below 1.
            None: as many as rows or columns, whichever is fewer.
        whiten: divide each score by the standard deviation of its direction.
        svd_solver: ``"covariance"`` takes one pass over the rows and the eigenvectors of their covariance matrix.
            ``"power"`` iterates on blocks of directions (Rutishauser 1970), a pass over the rows each, and needs
            n_components as a number. ``"auto"``: ``"covariance"`` up to 2,048 columns, then ``"power"``.
        max_iter: maximum number of iterations of ``"power"``.
        tol: ``"power"`` stops when C v - s v is at most ``tol`` times the largest s, for each direction v. C is the
            covariance matrix, and s the variance along v.
        random_state: seed or generator of the first directions of ``"power"``.
        copy: X is never changed, whatever this says.

    Attributes:
        components_: (k, n_features) float64, one direction a row.
        explained_variance_: (k) variance of the rows along each direction, with n_samples - 1.
        explained_variance_ratio_: (k) parts of the total variance.
        singular_values_: (k) norms of the scores of each direction.
        mean_: (n_features) float64.
        n_components_: k, the number of directions.
        noise_variance_: mean variance along the directions left out; 0 without any.
        n_iter_: number of passes that found directions.
        n_features_in_, n_samples_: size of the table.
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_components": [
            Interval(Integral, 0, None, closed="neither"),
            Interval(Real, 0, 1, closed="neither"),
            None,
        ],
        "whiten": ["boolean"],
        "svd_solver": [StrOptions({"auto", "covariance", "power"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "copy": ["boolean"],
    }

    def __init__(
        self,
        n_components=None,
        *,
        whiten=False,
        svd_solver="auto",
        max_iter=300,
        tol=1e-8,
        random_state=None,
        copy=True,
    ):
        self.n_components = n_components
        self.whiten = whiten
        self.svd_solver = svd_solver
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.copy = copy

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y=None):
        """Find the directions of the rows of X.

        Args:
            X: (n_samples, n_features), at least two rows.
            y: ignored.

        Returns:
            The estimator itself.

        Raises:
            ValueError: more components than rows or columns, values that are not finite, or options that do not fit.
        """
        X = validate_data(
            self,
            X,
            dtype=[np.float64, np.float32],
            order="C",
            copy=False,
            ensure_min_samples=2,
            ensure_all_finite=False,  # the fit refuses such values
        )
        most, number = min(X.shape), self.n_components
        whole = isinstance(number, Integral)
        if whole and number > most:
            raise ValueError(
                f"n_components={number} must be between 1 and min(n_samples, n_features)={most} of these rows"
            )
        iterates = torch.ops.dovetail.pca_iterates(self.svd_solver, X.shape[1])
        if not whole and iterates:
            raise ValueError(
                f"n_components={number} needs the covariance matrix of {X.shape[1]} columns: give a number of"
                ' directions, or svd_solver="covariance"'
            )
        random = check_random_state(self.random_state)
        seed = int(random.randint(np.iinfo(np.int32).max)) if iterates else 0
        try:
            directions, variances, total, mean, self.n_iter_, converged = torch.ops.dovetail.pca_fit(
                as_tensor(X), number if whole else most, self.svd_solver, self.max_iter, self.tol, seed
            )
        except RuntimeError as error:
            assert_all_finite(X, estimator_name="PCA", input_name="X")
            raise ValueError(str(error)) from error
        if not converged:
            warnings.warn(
                f"PCA did not converge in {self.max_iter} iterations. Increase max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,  # the caller of `fit`, beyond `_fit_context`
            )
        scale = len(X) / (len(X) - 1)
        variances, total = variances.numpy() * scale, total * scale
        ratio = variances / total if total > 0 else np.zeros_like(variances)
        if number is not None and not whole:
            number = int(np.searchsorted(np.cumsum(ratio), number, side="right")) + 1
        self.n_components_ = kept = int(min(number or most, len(variances)))
        self.components_ = np.ascontiguousarray(directions.numpy().T[:kept])
        self.explained_variance_, self.explained_variance_ratio_ = variances[:kept], ratio[:kept]
        self.singular_values_ = np.sqrt(self.explained_variance_ * (len(X) - 1))
        self.mean_ = mean.numpy()
        left = most - kept
        self.noise_variance_ = max(0.0, (total - self.explained_variance_.sum()) / left) if left > 0 else 0.0
        self.n_samples_ = len(X)
        return self

    def transform(self, X):
        """Return the scores of rows, their coordinates along the directions: (n_samples, k) float64."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return (X - self.mean_) @ self.components_.T / self._scale()

    def inverse_transform(self, X):
        """Return rows (n_samples, n_features) float64 that have the given scores (n_samples, k)."""
        check_is_fitted(self)
        X = check_array(X, dtype=np.float64)
        return X * self._scale() @ self.components_ + self.mean_

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _scale(self) -> np.ndarray | float:
        if not self.whiten:
            return 1.0
        return np.maximum(np.sqrt(self.explained_variance_), np.finfo(np.float64).eps)
