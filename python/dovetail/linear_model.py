"""Linear and logistic regression with scikit-learn's estimator interface, on Dovetail's kernels. Needs scikit-learn.

>>> prices = dovetail.LinearRegression().fit(x, y).predict(x)
>>> chances = dovetail.LogisticRegression(C=10).fit(x, classes).predict_proba(x)
"""

import warnings
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
import torch
from dovetail._rows import as_tensor
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

__all__ = ["LinearRegression", "LogisticRegression"]

_ROWS: dict = {"dtype": [np.float64, np.float32], "order": "C", "copy": False}


class LinearRegression(RegressorMixin, BaseEstimator):
    """Least squares, by the normal equations of centred columns.

    Rows are float32 or float64; all else is float64. Fitted attributes are bitwise equal for any number of threads
    (``torch.set_num_threads``).

    Args:
        l2: adds ``l2`` times the sum of the squared coefficients to the sum of squares (ridge regression).
        fit_intercept: False: the intercept is 0, and columns are not centred.

    Attributes:
        coef_: (n_features) float64. A column depends on previous ones if they explain all but 1e-12 of its variance. It
            has the coefficient 0.
        intercept_: prediction for a row of zeros.
        dependent_: (n) numbers of the columns that depend on previous ones, int64.
        n_features_in_: number of columns.
    """

    _parameter_constraints: ClassVar[dict] = {
        "l2": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
    }

    def __init__(self, *, l2=0.0, fit_intercept=True):
        self.l2 = l2
        self.fit_intercept = fit_intercept

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None):
        """Find the coefficients.

        Args:
            X: (n_samples, n_features).
            y: (n_samples) numbers to predict.
            sample_weight: (n_samples) factors of the rows' squared errors, at least 0. None: 1 for each row.

        Returns:
            The estimator itself.

        Raises:
            ValueError: values that are not finite, or arrays or weights that do not fit.
        """
        X, y = validate_data(self, X, y, y_numeric=True, **_ROWS)
        coefficients, self.intercept_, self.dependent_ = torch.ops.dovetail.linear_fit(
            as_tensor(X),
            torch.from_numpy(np.array(y, dtype=np.float64)),
            _weights(sample_weight, X),
            self.l2,
            self.fit_intercept,
        )
        self.coef_, self.dependent_ = coefficients.numpy(), np.array(self.dependent_, dtype=np.int64)
        return self

    def predict(self, X):
        """Return the predictions for rows: (n_samples) float64."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=[np.float64, np.float32], reset=False) @ self.coef_ + self.intercept_


class LogisticRegression(ClassifierMixin, BaseEstimator):
    """Classes by softmax regression, two or more, with an L2 penalty on the coefficients.

    Minimizes the sum of -log p(class of the row) over the rows, plus ``|coef_|^2 / (2 C)``. This is scikit-learn's
    objective. L-BFGS (Liu, Nocedal 1989) searches in columns divided by their deviation.

    Rows are float32 or float64; all else is float64. Fitted attributes are bitwise equal for any number of threads
    (``torch.set_num_threads``).

    Args:
        C: inverse of the penalty's factor; ``np.inf``: no penalty.
        fit_intercept: False: the intercepts are 0.
        tol: stop when no element of the gradient of the mean loss is larger. The gradient is for columns divided by
            their deviation.
        max_iter: maximum number of iterations.
        class_weight: factors of the rows of each class, as a dict. ``"balanced"``: inversely to the number of its rows,
            n_samples / (n_classes times that number). None: 1 for each class.
        solver: ``"lbfgs"``, which is the only one.

    Attributes:
        coef_: (m, n_features) float64. m is the number of classes. With two classes m is 1, and the row belongs to the
            second class.
        intercept_: (m) float64.
        classes_: (n_classes) labels in ascending order.
        n_iter_: (1) number of iterations, int32.
        n_features_in_: number of columns.
    """

    _parameter_constraints: ClassVar[dict] = {
        "C": [Interval(Real, 0, None, closed="right")],
        "fit_intercept": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "solver": [StrOptions({"lbfgs"})],
    }

    def __init__(self, *, C=1.0, fit_intercept=True, tol=1e-4, max_iter=100, class_weight=None, solver="lbfgs"):
        self.C = C
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.class_weight = class_weight
        self.solver = solver

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None):
        """Find the coefficients.

        Args:
            X: (n_samples, n_features).
            y: (n_samples) classes: numbers, texts or booleans.
            sample_weight: (n_samples) factors of the rows' losses, at least 0. None: 1 for each row.

        Returns:
            The estimator itself.

        Raises:
            ValueError: one class alone, values that are not finite, or arrays or weights that do not fit.

        Warns:
            ConvergenceWarning: max_iter iterations do not reach ``tol``.
        """
        X, y = validate_data(self, X, y, **_ROWS)
        check_classification_targets(y)
        self.classes_, target = np.unique(column_or_1d(y), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                "LogisticRegression needs samples of at least 2 classes in the data, but the data contains only one"
                f" class: {self.classes_[0]!r}"
            )
        weights = _weights(sample_weight, X)
        if self.class_weight is not None:
            factors = compute_class_weight(
                self.class_weight,
                classes=self.classes_,
                y=y,
                sample_weight=None if weights is None else weights.numpy(),
            )
            factors = torch.from_numpy(factors[target])
            weights = factors if weights is None else weights * factors
        coefficients, intercepts, iterations, converged = torch.ops.dovetail.logistic_fit(
            as_tensor(X),
            torch.from_numpy(target.astype(np.int64)),
            weights,
            len(self.classes_),
            1 / self.C,
            self.max_iter,
            self.tol,
            self.fit_intercept,
        )
        if not converged:
            warnings.warn(
                f"LogisticRegression did not converge in {self.max_iter} iterations. Increase max_iter or tol.",
                ConvergenceWarning,
                stacklevel=3,  # the caller of `fit`, beyond `_fit_context`
            )
        self.coef_, self.intercept_ = coefficients.numpy(), intercepts.numpy()
        self.n_iter_ = np.array([iterations], dtype=np.int32)
        return self

    def decision_function(self, X):
        """Return the scores of rows: (n_samples, n_classes) float64, or (n_samples) of the second of two classes."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X):
        """Return the most probable class of each row: (n_samples) labels."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(1)]

    def predict_proba(self, X):
        """Return the probability of each class: (n_samples, n_classes) float64."""
        scores = self.decision_function(X)
        return np.stack([expit(-scores), expit(scores)], 1) if scores.ndim == 1 else softmax(scores, axis=1)

    def predict_log_proba(self, X):
        """Return the logarithms of the probabilities: (n_samples, n_classes) float64."""
        scores = self.decision_function(X)
        return np.stack([log_expit(-scores), log_expit(scores)], 1) if scores.ndim == 1 else log_softmax(scores, axis=1)


def _weights(sample_weight, X: np.ndarray) -> torch.Tensor | None:
    if sample_weight is None:
        return None
    return torch.from_numpy(
        _check_sample_weight(sample_weight, X, dtype=np.float64, copy=True, ensure_non_negative=True)
    )
