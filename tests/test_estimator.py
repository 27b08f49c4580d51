"""Fed3R as a scikit-learn estimator, beside scikit-learn's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.estimator_checks import check_estimator

from fed3r_app.estimator import Fed3RClassifier

Data = tuple[NDArray[np.float64], NDArray[Any]]
OPTIONS: list[dict[str, Any]] = [
    *({}, {"method": "lda"}, {"method": "fedncm"}, {"fit_intercept": True}),
    {"method": "fed3r-rf", "rf_dim": 200, "rf_sigma": 60.0},
]


@pytest.fixture(scope="module")
def data() -> Data:
    X, y = load_digits(return_X_y=True)
    names = np.array([f"digit {c}" for c in range(10)])
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], names[y[order]]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_scikit_learn_finds_nothing_to_object(options: dict[str, Any]) -> None:
    check_estimator(Fed3RClassifier(**options), on_skip=None)


def test_it_is_scikit_learns_ridge(data: Data) -> None:
    X, y = data
    ours = Fed3RClassifier(ridge_lambda=3.0, normalize_classes=False).fit(X, y)
    reference = Ridge(alpha=3.0, fit_intercept=False)
    reference.fit(X, LabelBinarizer().fit_transform(y))
    np.testing.assert_allclose(ours.coef_, reference.coef_, atol=1e-10)
    theirs = RidgeClassifier(alpha=3.0, fit_intercept=False).fit(X, y)
    assert (ours.predict(X) == theirs.predict(X)).all()
    two = np.isin(y, ["digit 3", "digit 8"])
    theirs.fit(X[two], y[two])
    assert (ours.fit(X[two], y[two]).predict(X[two]) == theirs.predict(X[two])).all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_parts_add_up_to_the_whole_and_can_be_taken_away(
    data: Data, options: dict[str, Any]
) -> None:
    X, y = data
    whole = Fed3RClassifier(**options).fit(X, y)
    by_class = np.argsort(y, kind="stable")  # parts with partly different classes
    parts = [
        Fed3RClassifier(**options).fit(X[part], y[part])
        for part in np.array_split(by_class, 3)
    ]
    merged = parts[2].merge(parts[0]).merge(parts[1])
    in_chunks = Fed3RClassifier(**options)
    for part in np.array_split(by_class, 5):
        in_chunks.partial_fit(X[part], y[part])
    for other in (merged, in_chunks):
        assert (other.classes_ == whole.classes_).all()
        _assert_same(other, whole)
    rest = by_class[: len(by_class) // 3]
    without = merged.forget(parts[1]).forget(
        Fed3RClassifier(**options).fit(
            *(each[np.array_split(by_class, 3)[2]] for each in (X, y))
        )
    )
    alone = Fed3RClassifier(**options).fit(X[rest], y[rest])
    assert (without.classes_ == alone.classes_).all()
    _assert_same(without, alone)


def _assert_same(one: Fed3RClassifier, other: Fed3RClassifier) -> None:
    # Sums in another order; lambda is known to half a percent and moves with rounding.
    if one.ridge_lambda_ is not None:
        assert one.ridge_lambda_ == pytest.approx(other.ridge_lambda_, rel=1e-6)
    scale = np.abs(other.coef_).max()
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-6 * scale)


def test_probabilities_are_calibrated_on_what_was_not_fitted(data: Data) -> None:
    X, y = data
    model = Fed3RClassifier().fit(X[:900], y[:900])
    probabilities = model.predict_proba(X[900:])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    best = probabilities.max(axis=1)
    right = model.predict(X[900:]) == y[900:]
    assert abs(best.mean() - right.mean()) < 0.05
    chunked = Fed3RClassifier().partial_fit(X[:900], y[:900])
    with pytest.raises(NotFittedError, match=r"Call calibrate\(X, y\)"):
        chunked.predict_proba(X[:1])
    chunked.calibrate(X[900:], y[900:])
    assert chunked.predict_proba(X[:1]).shape == (1, 10)
    assert Fed3RClassifier(temperature=2.0).fit(X, y).temperature_ == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "svm"}, "method must be one of fed3r, .*, got 'svm'"),
        ({"ridge_lambda": 0}, "ridge_lambda must be 'auto' or > 0, got 0"),
        ({"temperature": "warm"}, "temperature must be 'auto' or > 0, got 'warm'"),
        ({"method": "lda", "fit_intercept": True}, "fit_intercept must be False"),
    ],
)
def test_bad_parameters_are_refused(
    data: Data, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Fed3RClassifier(**options).fit(*data)


def test_other_features_and_unknown_classes_are_not_merged(data: Data) -> None:
    X, y = data
    model = Fed3RClassifier().fit(X, y)
    with pytest.raises(ValueError, match="must have the same features"):
        model.merge(Fed3RClassifier().fit(X[:, :9], y))
    with pytest.raises(ValueError, match=r"classes that are not here: .'nine'"):
        model.forget(Fed3RClassifier().fit(X, np.where(y == "digit 9", "nine", y)))
    with pytest.raises(ValueError, match="must be part of the total"):
        Fed3RClassifier().fit(X[:500], y[:500]).forget(model)
