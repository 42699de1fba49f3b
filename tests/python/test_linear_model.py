"""Linear and logistic regression beside scikit-learn and certified values, and under scikit-learn's checks."""

import io

import dovetail
import numpy as np
import pytest
import torch
from sklearn import datasets, linear_model
from sklearn.exceptions import ConvergenceWarning
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


@parametrize_with_checks(
    [dovetail.LinearRegression(), dovetail.LinearRegression(l2=1, fit_intercept=False), dovetail.LogisticRegression()]
)
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


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_weights_and_no_intercept_are_those_of_scikit_learn(weighted, fit_intercept):
    random = np.random.default_rng(4)
    x = random.normal(5, 2, (300, 4))
    y = x @ [1, -2, 3, 0] + 7 + random.normal(0, 1, 300)
    weights = random.choice([0, 0.5, 1, 6], 300) if weighted else None
    if weighted:  # rows of weight 0 do not count, wherever they are
        x[weights == 0] += 1e7
        y[weights == 0] = 1e9
    theirs = linear_model.LinearRegression(fit_intercept=fit_intercept).fit(x, y, weights)
    ours = dovetail.LinearRegression(fit_intercept=fit_intercept).fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-8)


def breast_cancer(dtype=np.float64):
    x, y = datasets.load_breast_cancer(return_X_y=True)
    return x.astype(dtype), y


def iris():
    x, y = datasets.load_iris(return_X_y=True)
    return x, np.array(["setosa", "versicolor", "virginica"])[y]


def standard(x):
    return (x - x.mean(0)) / x.std(0)


def expect_equal_models(ours, theirs, x):
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    assert ours.coef_.shape == theirs.coef_.shape and ours.intercept_.shape == theirs.intercept_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6, atol=1e-6 * abs(theirs.coef_).max())
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ours.predict(x), theirs.predict(x))
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-6)
    likely = theirs.predict_proba(x) > 1e-12  # scikit-learn's logarithms of smaller ones lose digits
    np.testing.assert_allclose(
        ours.predict_log_proba(x)[likely], theirs.predict_log_proba(x)[likely], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["breast_cancer", "iris"])
@pytest.mark.parametrize(
    "options",
    [{}, {"C": 0.01}, {"C": 30}, {"fit_intercept": False}, {"class_weight": "balanced"}, {"class_weight": "given"}],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_classes_are_those_of_scikit_learn(name, options, weighted):
    x, y = breast_cancer() if name == "breast_cancer" else iris()
    x = standard(x)
    if options.get("class_weight") == "given":
        options = {"class_weight": {np.unique(y)[0]: 3.0}}
    weights = np.random.default_rng(1).choice([0, 0.5, 1, 4], len(x)) if weighted else None
    # lbfgs of scikit-learn stops up to 5e-5 from the minimum, whatever its tolerance. Newton's method does not.
    theirs = linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000, **options)
    theirs.fit(x, y, weights)
    ours = dovetail.LogisticRegression(tol=1e-10, max_iter=5000, **options).fit(x, y, weights)
    expect_equal_models(ours, theirs, x)
    assert ours.score(x, y) == theirs.score(x, y)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_columns_of_any_scale_are_those_of_newtons_method(dtype):
    x, y = breast_cancer(dtype)  # from 1e-3 to 4e3
    wide = x.astype(np.float64)
    theirs = linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(wide, y)
    ours = dovetail.LogisticRegression(tol=1e-12, max_iter=5000).fit(x, y)
    # The line search of L-BFGS ends at a gradient of about 1e-8 where the loss no longer changes in float64.
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6, atol=5e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=5e-6)


def test_separable_rows_and_constant_columns():
    x = np.column_stack([np.arange(20.0), np.full(20, 3.0)])
    y = x[:, 0] > 9.5
    theirs = linear_model.LogisticRegression(tol=1e-12, max_iter=10_000).fit(x, y)
    ours = dovetail.LogisticRegression(tol=1e-10, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6, atol=1e-6)
    assert ours.classes_.tolist() == [False, True] and ours.coef_[0, 1] == 0
    free = dovetail.LogisticRegression(C=np.inf, max_iter=1000).fit(x, y)
    assert np.isfinite(free.coef_).all() and free.score(x, y) == 1 and free.coef_[0, 0] > ours.coef_[0, 0]


def test_weights_stand_for_repeated_rows():
    x, y = iris()
    times = np.random.default_rng(3).integers(0, 4, len(x))
    options = {"tol": 1e-11, "max_iter": 1000}
    weighted = dovetail.LogisticRegression(**options).fit(x, y, times)
    repeated = dovetail.LogisticRegression(**options).fit(x.repeat(times, 0), y.repeat(times))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6, atol=1e-8)


def test_logistic_regression_warns_before_it_has_converged():
    x, y = iris()
    with pytest.warns(ConvergenceWarning, match="did not converge in 2 iterations"):
        assert dovetail.LogisticRegression(max_iter=2).fit(x, y).n_iter_.tolist() == [2]


def test_what_is_no_classification_is_refused():
    x, y = iris()
    for given, message in [
        ({"C": 0}, "'C' parameter of LogisticRegression must be"),
        ({"solver": "saga"}, "'solver' parameter of LogisticRegression must be a str among {'lbfgs'}"),
        ({"class_weight": "even"}, "'class_weight' parameter of LogisticRegression must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            dovetail.LogisticRegression(**given).fit(x, y)
    with pytest.raises(ValueError, match="at least 2 classes"):
        dovetail.LogisticRegression().fit(x, np.zeros(len(x)))
    with pytest.raises(ValueError, match="Unknown label type"):
        dovetail.LogisticRegression().fit(x, np.linspace(0, 1, len(x)))
    with pytest.raises(ValueError, match="must contain at least one non-zero number"):
        dovetail.LogisticRegression().fit(x, y, np.zeros(len(x)))
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        dovetail.LogisticRegression().fit(x, y, np.full(len(x), -1.0))


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="'l2' parameter of LinearRegression must be"):
        dovetail.LinearRegression(l2=-1).fit(np.ones((3, 2)), np.ones(3))
    with pytest.raises(RuntimeError, match="the target must be 3 float64 numbers"):
        torch.ops.dovetail.linear_fit(torch.ones(3, 2), torch.ones(4, dtype=torch.float64), None, 0.0, True)
    with pytest.raises(RuntimeError, match="the weights must be 3 float64 numbers"):
        torch.ops.dovetail.linear_fit(torch.ones(3, 2), torch.ones(3, dtype=torch.float64), torch.ones(3), 0.0, True)
