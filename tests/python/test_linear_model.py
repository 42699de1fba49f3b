"""dovetail.LinearRegression beside scikit-learn and certified values, and under scikit-learn's checks of estimators."""

import io

import dovetail
import numpy as np
import pytest
import torch
from sklearn import linear_model
from sklearn.utils.estimator_checks import parametrize_with_checks

# NIST StRD, Longley: y, then x1 to x6; certified intercept and coefficients.
LONGLEY = np.loadtxt(
    io.StringIO("""
60323 83.0 234289 2356 1590 107608 1947
61122 88.5 259426 2325 1456 108632 1948
60171 88.2 258054 3682 1616 109773 1949
61187 89.5 284599 3351 1650 110929 1950
63221 96.2 328975 2099 3099 112075 1951
63639 98.1 346999 1932 3594 113270 1952
64989 99.0 365385 1870 3547 115094 1953
63761 100.0 363112 3578 3350 116219 1954
66019 101.2 397469 2904 3048 117388 1955
67857 104.6 419180 2822 2857 118734 1956
68169 108.4 442769 2936 2798 120445 1957
66513 110.8 444546 4681 2637 121950 1958
68655 112.6 482704 3813 2552 123366 1959
69564 114.2 502601 3931 2514 125368 1960
69331 115.7 518173 4806 2572 127852 1961
70551 116.9 554894 4007 2827 130081 1962
""")
)
CERTIFIED = [
    -3482258.63459582,
    15.0618722713733,
    -0.358191792925910e-01,
    -2.02022980381683,
    -1.03322686717359,
    -0.511041056535807e-01,
    1829.15146461355,
]


@parametrize_with_checks([dovetail.LinearRegression()])
def test_is_an_estimator(estimator, check):
    check(estimator)


def test_longley_has_ten_certified_digits():
    x, y = np.ascontiguousarray(LONGLEY[:, 1:]), LONGLEY[:, 0]
    ours = dovetail.LinearRegression().fit(x, y)
    np.testing.assert_allclose([ours.intercept_, *ours.coef_], CERTIFIED, rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("l2", [0, 3.5])
def test_has_scikit_learns_coefficients(l2, dtype):
    random = np.random.default_rng(1)
    x = random.normal(3, 2, (700, 9)).astype(dtype)
    y = x @ random.normal(0, 1, 9) + 5 + random.normal(0, 0.3, 700)
    theirs = linear_model.Ridge(alpha=l2, solver="cholesky").fit(x.astype(np.float64), y)
    ours = dovetail.LinearRegression(l2=l2).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-9)
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x.astype(np.float64)), rtol=1e-6)


def test_a_column_that_others_determine_has_no_coefficient():
    x = np.random.default_rng(2).normal(0, 1, (50, 3))
    x = np.column_stack([x, x[:, 0] - x[:, 2]])
    fit = dovetail.LinearRegression().fit(x, x[:, 1] * 2)
    assert fit.dependent_.tolist() == [3] and fit.coef_[3] == 0
    np.testing.assert_allclose(fit.coef_[:3], [0, 2, 0], atol=1e-9)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="'l2' parameter of LinearRegression must be"):
        dovetail.LinearRegression(l2=-1).fit(np.ones((3, 2)), np.ones(3))
    with pytest.raises(RuntimeError, match="the target must be 3 float64 numbers"):
        torch.ops.dovetail.linear_fit(torch.ones(3, 2), torch.ones(4, dtype=torch.float64), 0.0)
