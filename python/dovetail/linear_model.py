"""Linear regression with scikit-learn's estimator interface, on Dovetail's kernels. Needs scikit-learn.

>>> prices = dovetail.LinearRegression().fit(x, y).predict(x)
"""

from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from dovetail._rows import as_tensor
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["LinearRegression"]


class LinearRegression(RegressorMixin, BaseEstimator):
    """Least squares with an intercept, by the normal equations of centred columns.

    Rows are float32 or float64; all else is float64. Fitted attributes are bitwise equal for any number of threads
    (``torch.set_num_threads``).

    Args:
        l2: adds ``l2`` times the sum of the squared coefficients to the sum of squares (ridge regression).

    Attributes:
        coef_: (n_features) float64. A column depends on previous ones if they explain all but 1e-12 of its variance. It
            has the coefficient 0.
        intercept_: prediction for a row of zeros.
        dependent_: (n) numbers of the columns that depend on previous ones, int64.
        n_features_in_: number of columns.
    """

    _parameter_constraints: ClassVar[dict] = {"l2": [Interval(Real, 0, None, closed="left")]}

    def __init__(self, *, l2=0.0):
        self.l2 = l2

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y):
        """Find the coefficients.

        Args:
            X: (n_samples, n_features).
            y: (n_samples) numbers to predict.

        Returns:
            The estimator itself.

        Raises:
            ValueError: values that are not finite, or arrays that do not fit.
        """
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], order="C", copy=False, y_numeric=True)
        target = torch.from_numpy(np.array(y, dtype=np.float64))
        coefficients, self.intercept_, self.dependent_ = torch.ops.dovetail.linear_fit(as_tensor(X), target, self.l2)
        self.coef_, self.dependent_ = coefficients.numpy(), np.array(self.dependent_, dtype=np.int64)
        return self

    def predict(self, X):
        """Return the predictions for rows: (n_samples) float64."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=[np.float64, np.float32], reset=False) @ self.coef_ + self.intercept_
