"""Heads: classifiers in closed form from the statistics, in one registry.

A head is a function of the statistics that returns W (d, C) and a bias (C,) or None.
To add one, write the function, put it into ``HEADS``, and give it a method's name in
``fed3r_app.core.names``: all else asks these two registries.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fed3r_app.core.statistics import RidgeStatistics, mirror_upper
from fed3r_app.words import first_names, plural


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear classifier: the prediction for z is the argmax of z'W + bias.

    Parameters
    ----------
    W : Tensor of shape (d, C)
        Weights.
    present : Tensor of shape (C,), bool
        Classes with training samples. The others have zero columns, whose score 0
        could win against negative ones: they are never predicted.
    bias : Tensor of shape (C,) or None
        Added to the scores.
    """

    W: Tensor
    present: Tensor
    bias: Tensor | None = None

    def to(self, device: torch.device | str) -> Classifier:
        """Return the same classifier on ``device``."""
        bias = None if self.bias is None else self.bias.to(device)
        return Classifier(self.W.to(device), self.present.to(device), bias)

    def logits(self, Z: Tensor) -> Tensor:
        """Return ZW + bias (n, C) of features Z (n, d), for all classes."""
        scores = Z.to(self.W.dtype) @ self.W
        return scores if self.bias is None else scores + self.bias

    def scores(self, Z: Tensor) -> Tensor:
        """Return the scores (n, C) of features Z (n, d); absent classes have -inf."""
        if not bool(self.present.any()):
            raise ValueError(
                "A classifier needs at least one class with samples, got 0."
            )
        return self.logits(Z).masked_fill(~self.present, -torch.inf)

    def predict(self, Z: Tensor) -> Tensor:
        """Return the predicted classes (n,) of features Z (n, d)."""
        return self.scores(Z).argmax(dim=1)


@dataclass(frozen=True)
class HeadOptions:
    """The settings that heads may use."""

    lam: float | None = None  # ridge penalty; None for heads without one
    normalize: bool = True  # normalize-classes
    intercept: bool = False  # fit-intercept: the last feature is a column of ones


class Head(NamedTuple):
    """An entry of the registry."""

    solve: Callable[[RidgeStatistics, HeadOptions], tuple[Tensor, Tensor | None]]
    uses_lambda: bool = False
    needs_A: bool = True  # else b alone would do, by the paper's count of bytes
    is_ridge: bool = False  # linear in the labels: an image can be left out of it


def solve_head(name: str, stats: RidgeStatistics, options: HeadOptions) -> Classifier:
    """Return the classifier that a head makes of the statistics."""
    W, bias = HEADS[name].solve(stats, options)
    return Classifier(W, stats.counts > 0, bias)


def solve_ridge(
    stats: RidgeStatistics, lam: float, normalize: bool = True, intercept: bool = False
) -> Tensor:
    """Return the ridge weights W minimising ||ZW - Y||^2 + lam ||W||^2.

    Parameters
    ----------
    stats : RidgeStatistics
        Aggregated statistics, A of shape (d, d) and b of shape (d, C).
    lam : float
        Ridge penalty, lam > 0.
    normalize : bool
        Divide each column by its norm, W_c <- W_c / ||W_c||: classes with few
        samples then compete on equal terms.
    intercept : bool
        The last feature is a column of ones: it is divided by the norm too, but
        does not count in it.

    Returns
    -------
    Tensor of shape (d, C)
        W = (A + lam I)^-1 b. A class without samples keeps a zero column.
    """
    _check_penalty(lam)
    _check_not_empty(stats)
    scale = float(stats.diagonal.abs().mean())
    W = torch.cholesky_solve(stats.b, cholesky(stats.A, lam, scale))
    if normalize:
        W = _divide_columns(W, (W[:-1] if intercept else W).norm(dim=0), stats)
    return W


def class_means(stats: RidgeStatistics) -> Tensor:
    """Return the class means b_c / n_c, each divided by its norm, shape (d, C).

    This is FedNCM, the nearest-class-mean baseline; a class without samples keeps a
    zero column.
    """
    _check_not_empty(stats)
    # The norm makes the division by n_c superfluous: the direction is that of b_c.
    return _divide_columns(stats.b, stats.b.norm(dim=0), stats)


def solve_lda(stats: RidgeStatistics, lam: float) -> tuple[Tensor, Tensor]:
    """Return weights and bias of a linear discriminant with a shrunken covariance.

    Classes are taken for normal, with means m_c and one covariance Sigma = (S_w +
    lam I) / n of all, where S_w = A - sum_c n_c m_c m_c' is the scatter within the
    classes. The score of class c is the logarithm of its probability, up to a term
    that all classes share: z'Sigma^-1 m_c - m_c'Sigma^-1 m_c / 2 + log(n_c / n).

    Parameters
    ----------
    stats : RidgeStatistics
        Aggregated statistics, without noise: S_w must not have negative eigenvalues.
    lam : float
        Ridge penalty, lam > 0.

    Returns
    -------
    W : Tensor of shape (d, C)
        Sigma^-1 m_c in column c. A class without samples keeps a zero column.
    bias : Tensor of shape (C,)
        The rest of the score; that of a class without samples is finite, too.
    """
    _check_penalty(lam)
    _check_not_empty(stats)
    within, trace = stats.scatter(lambda d, num_classes: slice(None))
    # The difference S_w cancels: its rounding errors are as large as those of A.
    L = cholesky(mirror_upper(within), lam, scale=trace / stats.d)
    counts = stats.counts.clamp(min=1).to(torch.float64)
    means = stats.b / counts
    W = stats.n * torch.cholesky_solve(means, L)
    return W, (counts / stats.n).log() - (means * W).sum(dim=0) / 2


def _check_penalty(lam: float) -> None:
    if not (lam > 0 and math.isfinite(lam)):  # also refuses NaN
        raise ValueError(f"ridge-lambda must be > 0 and finite, got {lam!r}.")


def _check_not_empty(stats: RidgeStatistics) -> None:
    if stats.n == 0:
        raise ValueError("There are no samples in the statistics: nothing to solve.")


def cholesky(A: Tensor, lam: float, scale: float) -> Tensor:
    """Return L with LL' = A + lam I, or with a little more on the diagonal.

    ``scale`` is the size of the terms whose rounding errors A has.
    """
    # A + lam I is symmetric positive definite because lam > 0, so Cholesky applies,
    # unless lam is below the rounding errors of A.
    # From about the rounding of float64 to that of float32 uploads, in steps of ten.
    for jitter in (0.0, *(scale * 10.0**power for power in range(-14, -6))):
        shifted = A.clone()
        shifted.diagonal().add_(lam + jitter)
        failed = torch.empty((), dtype=torch.int32, device=A.device)
        # In place, which LAPACK's order of columns allows: a second copy of A would
        # take 800 MB at d = 10,000. The matrix is its own transpose.
        L = shifted.mT
        torch.linalg.cholesky_ex(L, out=(L, failed))
        if not int(failed):
            break
    else:
        raise ValueError(
            "The statistics are not positive definite with ridge-lambda = "
            f"{lam:.3g}, even with {jitter:.3g} more. Are the statistics damaged?"
        )
    if jitter:
        warnings.warn(
            f"ridge-lambda = {lam:.3g} is lost in rounding; {jitter:.3g} was added to "
            "the diagonal. Use a larger ridge-lambda.",
            stacklevel=3,
        )
    return L


def _divide_columns(W: Tensor, norms: Tensor, stats: RidgeStatistics) -> Tensor:
    """Return W with each column divided by its norm, zero columns left alone."""
    zero = (norms == 0) & (stats.counts > 0)
    if bool(zero.any()):
        warnings.warn(
            f"Not normalised, since the weights have norm 0: "
            f"{plural(int(zero.sum()), 'class')} with samples, "
            f"{first_names(zero.nonzero().flatten().tolist(), 10)}.",
            stacklevel=3,
        )
    return W / torch.where(norms > 0, norms, torch.ones_like(norms))


def predict(Z: Tensor, W: Tensor, present: Tensor) -> Tensor:
    """Return the predicted classes (n,): the argmax of ZW over the classes present."""
    return Classifier(W, present).predict(Z)


def count_correct(Z: Tensor, y: Tensor, W: Tensor, present: Tensor) -> int:
    """Return how many of the labels y (n,) the classifier predicts."""
    return int((predict(Z, W, present) == y).sum())


def _penalty(options: HeadOptions) -> float:
    if options.lam is None:
        raise ValueError("This head needs a ridge-lambda, got none.")
    return options.lam


def _ridge(stats: RidgeStatistics, options: HeadOptions) -> tuple[Tensor, None]:
    lam, normalize, intercept = _penalty(options), options.normalize, options.intercept
    return solve_ridge(stats, lam, normalize, intercept), None


def _lda(stats: RidgeStatistics, options: HeadOptions) -> tuple[Tensor, Tensor]:
    return solve_lda(stats, _penalty(options))


def _class_means(stats: RidgeStatistics, options: HeadOptions) -> tuple[Tensor, None]:
    return class_means(stats), None


HEADS = {
    "ridge": Head(_ridge, uses_lambda=True, is_ridge=True),
    "class-means": Head(_class_means, needs_A=False),
    "lda": Head(_lda, uses_lambda=True),
}
