"""Fed3R as a scikit-learn estimator: features in, a classifier that adds up out.

The same statistics and heads as a federated run, on NumPy arrays of features that were
made elsewhere. Needs no Flower and writes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.nn.functional import cross_entropy

from fed3r_app.core import (
    HEADS,
    Classifier,
    FeatureMap,
    FeatureMoments,
    HeadOptions,
    LeaveOneOut,
    RidgeStatistics,
    select_lambda,
    solve_head,
)
from fed3r_app.core.names import METHODS

# Ten to the power of -3, -2.75, … 2: within a factor of 1.8 the loss is flat.
_TEMPERATURES = tuple(10 ** (step / 4) for step in range(-12, 9))


class Fed3RClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A ridge classifier on features, from statistics that add up.

    Parameters
    ----------
    method : str
        "fed3r" (ridge), "fed3r-rf" (ridge on random features), "fedncm" (class means)
        or "lda" (a linear discriminant).
    ridge_lambda : float or "auto"
        Penalty; "auto" is that of generalised cross-validation.
    normalize_classes : bool
        Divide each class's weights by their norm.
    fit_intercept : bool
        Append a column of ones to the features.
    rf_dim : int
        Number of random features of "fed3r-rf".
    rf_sigma : float or "auto"
        Width of its kernel; "auto" is chosen from the first data seen. Estimators that
        are to be merged need the same number.
    temperature : float or "auto"
        Of the softmax of `predict_proba`; "auto" is the one with the least
        cross-entropy on the data of `fit`, each sample left out for ridge, or on that
        of `calibrate`.
    random_state : int
        Seed of the random features.

    Attributes
    ----------
    classes_ : array of shape (C,)
        Class labels.
    n_features_in_ : int
        Number of features d.
    statistics_ : RidgeStatistics
        All that is kept of the data.
    coef_ : array of shape (C, D)
        Weights, in the space of the random features where there are any.
    intercept_ : array of shape (C,)
        Added to the scores.
    ridge_lambda_ : float or None
        The penalty that was used.
    temperature_ : float
        The temperature that is used.
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        method: str = "fed3r",
        *,
        ridge_lambda: float | Literal["auto"] = "auto",
        normalize_classes: bool = True,
        fit_intercept: bool = False,
        rf_dim: int = 5000,
        rf_sigma: float | Literal["auto"] = "auto",
        temperature: float | Literal["auto"] = "auto",
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.ridge_lambda = ridge_lambda
        self.normalize_classes = normalize_classes
        self.fit_intercept = fit_intercept
        self.rf_dim = rf_dim
        self.rf_sigma = rf_sigma
        self.temperature = temperature
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit features X (n, d) with labels y (n,); what was seen before is dropped."""
        self._check_parameters()
        Z, labels = self._validated(X, y, reset=True)
        self._begin(Z, np.unique(labels))
        self._add(Z, labels)
        classifier, stats = self._solved(), self.statistics_
        left_out = None
        if HEADS[METHODS[self.method].head].is_ridge:
            assert self._lambda is not None
            left_out = LeaveOneOut.of(stats, classifier.W, self._lambda)
        self._calibrate(Z, labels, left_out)
        return self

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None
    ) -> Self:
        """Add features X (n, d) with labels y (n,) to those seen before.

        ``classes`` may name all classes, as scikit-learn's own estimators want it at
        the first call; others are added when they are met.
        """
        self._check_parameters()
        is_first = not hasattr(self, "statistics_")
        Z, labels = self._validated(X, y, reset=is_first)
        known = np.unique(labels)
        if classes is not None:
            known = np.union1d(np.asarray(classes), known)
        if is_first:
            self._begin(Z, known)
        else:
            self._widen(known)
        self._add(Z, labels)
        return self

    def calibrate(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose the temperature on data (n, d), (n,) that was not fitted."""
        check_is_fitted(self)
        Z, labels = self._validated(X, y, reset=False)
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y must have classes that were fitted, got {unknown[:10].tolist()}."
            )
        self._calibrate(Z, labels)
        return self

    def merge(self, other: Self) -> Self:
        """Add what another estimator has seen: as if it had been fitted here."""
        self._check_same_features(other)
        self._widen(other.classes_)
        theirs = _relabelled(other.statistics_, other.classes_, self.classes_)
        self._keep(self.statistics_ + theirs)
        return self

    def forget(self, other: Self) -> Self:
        """Take away what another estimator has seen: as if it had never been added.

        Classes that only it had are dropped.
        """
        self._check_same_features(other)
        unknown = np.setdiff1d(other.classes_, self.classes_)
        if len(unknown):
            raise ValueError(
                "What is forgotten must have been added before, got classes that are "
                f"not here: {unknown[:10].tolist()}."
            )
        theirs = _relabelled(other.statistics_, other.classes_, self.classes_)
        rest = self.statistics_ - theirs
        stays = ~np.isin(self.classes_, other.classes_) | (rest.counts > 0).numpy()
        kept = self.classes_[stays]
        self._keep(_relabelled(rest, self.classes_, kept))
        self.classes_ = kept
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the scores (n, C) of features X (n, d); (n,) for two classes."""
        scores = self._scores(X)
        if scores.shape[1] == 2:
            scores = scores[:, 1] - scores[:, 0]
        return np.asarray(scores.numpy())

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the classes (n,) of features X (n, d)."""
        best = self._scores(X).argmax(dim=1).numpy()
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return probabilities (n, C): the softmax of the scores / ``temperature_``."""
        scores = self._scores(X)
        return np.asarray((scores / self.temperature_).softmax(dim=1).numpy())

    @property
    def temperature_(self) -> float:
        """The temperature that is used."""
        if self.temperature != "auto":
            return self.temperature
        chosen = getattr(self, "_temperature", None)
        if chosen is None:
            raise NotFittedError(
                "Probabilities need a temperature, which partial_fit does not choose. "
                "Call calibrate(X, y) with data that was not fitted, or give "
                "temperature=1.0."
            )
        return float(chosen)

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights (C, D)."""
        W = self._solved().W
        return np.asarray((W[:-1] if self.feature_map_.intercept else W).T.numpy())

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """What is added to the scores (C,)."""
        classifier = self._solved()
        if classifier.bias is not None:
            return np.asarray(classifier.bias.numpy())
        if self.feature_map_.intercept:
            return np.asarray(classifier.W[-1].numpy())
        return np.zeros(len(self.classes_))

    @property
    def ridge_lambda_(self) -> float | None:
        """The penalty that was used; None for a head without one."""
        self._solved()
        return self._lambda

    def _check_parameters(self) -> None:
        method = METHODS.get(self.method)
        if method is None:
            names = ", ".join(METHODS)
            raise ValueError(f"method must be one of {names}, got {self.method!r}.")
        if self.fit_intercept and not method.takes_intercept:
            raise ValueError(
                f"fit_intercept must be False with method = {self.method!r}, got True."
            )
        for name in ("ridge_lambda", "rf_sigma", "temperature"):
            value = getattr(self, name)
            if value != "auto" and not (_is_number(value) and value > 0):
                raise ValueError(f"{name} must be 'auto' or > 0, got {value!r}.")

    def _validated(
        self, X: ArrayLike, y: ArrayLike, reset: bool
    ) -> tuple[Tensor, NDArray[Any]]:
        """Return features (n, d), float64, and labels (n,)."""
        features, labels = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(labels)
        return torch.from_numpy(np.array(features)), labels

    def _begin(self, Z: Tensor, classes: NDArray[Any]) -> None:
        """Begin without statistics, in the space of features like Z (n, d)."""
        self.feature_map_ = FeatureMap(Z.shape[1], intercept=self.fit_intercept)
        if METHODS[self.method].random_features:
            sigma = self.rf_sigma
            self.feature_map_ = replace(
                self.feature_map_,
                rf_dim=self.rf_dim,
                rf_sigma=FeatureMoments.of(Z).sigma() if sigma == "auto" else sigma,
                rf_seed=self.random_state,
            )
        self.classes_ = classes
        self._temperature: float | None = None
        self._keep(RidgeStatistics.zeros(self.feature_map_.dim, len(classes)))

    def _add(self, Z: Tensor, labels: NDArray[Any]) -> None:
        y = np.searchsorted(self.classes_, labels)
        mapped, num_classes = self.feature_map_(Z), len(self.classes_)
        self._keep(self.statistics_ + RidgeStatistics.of(mapped, y, num_classes))

    def _widen(self, classes: NDArray[Any]) -> None:
        """Make room for classes that were not known."""
        union = np.union1d(self.classes_, classes)
        if len(union) > len(self.classes_):
            self._keep(_relabelled(self.statistics_, self.classes_, union))
            self.classes_ = union

    def _keep(self, statistics: RidgeStatistics) -> None:
        """Take other statistics: what was solved from the earlier ones is void."""
        self.statistics_ = statistics
        self._classifier: Classifier | None = None
        self._lambda: float | None = None

    def _solved(self) -> Classifier:
        """Return the classifier of the statistics."""
        check_is_fitted(self)
        if self._classifier is None:
            head, stats = METHODS[self.method].head, self.statistics_
            if HEADS[head].uses_lambda:
                given = self.ridge_lambda
                self._lambda = select_lambda(stats) if given == "auto" else given
            options = HeadOptions(
                self._lambda, self.normalize_classes, self.fit_intercept
            )
            self._classifier = solve_head(head, stats, options)
        return self._classifier

    def _scores(self, X: ArrayLike) -> Tensor:
        """Return the scores (n, C) of features X (n, d); absent classes have -inf."""
        classifier = self._solved()
        features = validate_data(self, X, reset=False, dtype=np.float64)
        return classifier.scores(
            self.feature_map_(torch.from_numpy(np.array(features)))
        )

    def _calibrate(
        self, Z: Tensor, labels: NDArray[Any], left_out: LeaveOneOut | None = None
    ) -> None:
        """Choose the temperature with the least cross-entropy on some samples."""
        y = torch.from_numpy(np.searchsorted(self.classes_, labels))
        logits = self._solved().scores(self.feature_map_(Z))
        if left_out:
            logits = left_out.logits(logits, y)
        self._temperature = min(
            _TEMPERATURES, key=lambda t: float(cross_entropy(logits / t, y))
        )

    def _check_same_features(self, other: Self) -> None:
        check_is_fitted(self)
        check_is_fitted(other)
        if other.feature_map_ != self.feature_map_:
            raise ValueError(
                "Estimators to merge or forget must have the same features, got "
                f"{other.feature_map_} and {self.feature_map_}. Give random features "
                "the same rf_sigma and random_state."
            )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and bool(np.isfinite(float(value)))


def _relabelled(
    stats: RidgeStatistics, classes: NDArray[Any], others: NDArray[Any]
) -> RidgeStatistics:
    """Return statistics with their classes numbered as in others; both are sorted."""
    present = stats.classes.numpy()
    places = np.searchsorted(others, classes[present])
    moved = dict(zip(present.tolist(), places.tolist(), strict=True))
    return stats.relabelled(moved, len(others))
