"""``privacy``: what differential privacy costs in accuracy, at so many samples.

The release, the penalty and the solution are those of a run. More samples than there
are features at hand are made by scaling: m times the statistics are those of m times as
many samples of the same kind, and the noise stays as it is.
"""

from __future__ import annotations

from fed3r_app.core import (
    FeatureMap,
    HeadOptions,
    Metrics,
    RidgeStatistics,
    select_lambda,
    solve_head,
)
from fed3r_app.core.names import METHODS
from fed3r_app.privacy.gaussian import (
    NORM,
    PrivacyBudget,
    gaussian_mechanism,
    private_lambda,
    secure_normals,
)
from simulation.bench.inputs import Features, describe_inputs, load_features
from simulation.bench.measure import announce
from simulation.bench.result import Result

_DELTA = 1e-5
_EPSILONS = (1.0, 2.0, 4.0, 8.0)
_SAMPLES = (10_000, 100_000, 1_000_000)


def run(result: Result) -> None:
    """Measure accuracy against epsilon and the number of samples."""
    features = load_features(result.data, 500 if result.quick else None)
    rows = []
    for method in ("fed3r", "fedncm"):
        for wanted in _SAMPLES[:2] if result.quick else _SAMPLES:
            times = -(-wanted // len(features.Z))
            n = times * len(features.Z)
            announce(f"{method}, {n:,} samples")
            accuracies = _accuracies(features, method, times)
            rows.append((method, n, *accuracies))
            cost = accuracies[-1] - accuracies[0]
            result.ratio(f"accuracy that epsilon 1 costs, {method}, {n:,}", cost)
    d, num_classes = features.Z.shape[1], features.num_classes
    title = f"features of MobileNetV2, d = {d:,}, C = {num_classes}, one draw"
    budgets = (f"epsilon {epsilon:g}" for epsilon in _EPSILONS)
    result.table(title, ("method", "samples", *budgets, "no noise"), rows)
    result.notes.append(describe_inputs(result.data))


def _accuracies(features: Features, method: str, times: int) -> list[float]:
    """Return the accuracy by epsilon, then without noise, of times the samples."""
    feature_map = FeatureMap(features.Z.shape[1], norm=NORM)
    once = RidgeStatistics.of(feature_map(features.Z), features.y, features.num_classes)
    exact = RidgeStatistics(times * once.A, times * once.b, times * once.counts)
    Z_test = feature_map(features.Z_test)

    def accuracy(stats: RidgeStatistics, lam: float) -> float:
        classifier = solve_head(METHODS[method].head, stats, HeadOptions(lam))
        return Metrics.of(classifier.scores(Z_test), features.y_test).accuracy

    accuracies = []
    for epsilon in _EPSILONS:
        budget = PrivacyBudget(epsilon, _DELTA)
        sigma = budget.central_sigma(exact.d, exact.num_classes)
        noisy = gaussian_mechanism(exact, sigma, secure_normals)
        accuracies.append(accuracy(noisy, private_lambda(sigma, exact.d)))
    return [*accuracies, accuracy(exact, select_lambda(exact))]
