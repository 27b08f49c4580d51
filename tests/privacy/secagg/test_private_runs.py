"""Distributed differential privacy: the clients' noise is in every sum that is seen."""

import math
from typing import Any

import pytest
import torch

from fed3r_app.config import DEFAULTS, Config
from fed3r_app.core import FeatureMap
from fed3r_app.errors import RunError
from fed3r_app.privacy.gaussian import PrivacyBudget
from fed3r_app.privacy.release import DistributedNoise
from tests.harness.pixels import rounded_statistics
from tests.harness.runs import AppRuns

PRIVATE: dict[str, Any] = {
    "dp_epsilon": 1.0,
    "dp_mode": "distributed",
    "ridge_lambda": "auto",
}
MAP = FeatureMap(64, norm=1.0)
SIGMA = PrivacyBudget(1.0, 1e-5).distributed_sigma()


def assert_deviation(outcome: Any, clients: Any, number: int, expected: float) -> None:
    """Check the standard deviation, as said and as added to the class sums b."""
    privacy = outcome.summary["differential_privacy"]
    assert privacy["sigma"] == pytest.approx(expected)
    noise = outcome.statistics.b - rounded_statistics(clients, number, MAP).b
    assert float(noise.std()) == pytest.approx(expected, rel=0.2)


def test_one_group_has_the_noise_of_its_survivors(run: AppRuns) -> None:
    outcome = run(10, **PRIVATE)
    expected = SIGMA * math.sqrt(10 / 6)  # of ten, six are enough
    assert_deviation(outcome, range(10), 10, expected)
    privacy = outcome.summary["differential_privacy"]
    assert (privacy["mode"], privacy["epsilon"]) == ("distributed", 1.0)
    assert privacy["neighbours"] == "add or remove one sample"
    lam = expected * math.sqrt(2 * 64)
    assert outcome.summary["ridge_lambda"] == pytest.approx(lam)


def test_the_noise_of_a_threshold_of_survivors_is_that_of_the_budget(
    run: AppRuns,
) -> None:
    gone = {1, 4, 6, 8}
    outcome = run(
        10,
        lambda client, kind: client in gone and kind == "query.masked",
        min_clients=6,
        max_retries=0,
        **PRIVATE,
    )
    assert_deviation(outcome, sorted(set(range(10)) - gone), 10, SIGMA)


def test_fewer_survivors_than_the_noise_is_for_are_never_unmasked(run: AppRuns) -> None:
    gone = {0, 1, 4}  # two of five are left, and the noise is for three
    with pytest.raises(RunError, match=r"0 of 5 clients were counted"):
        run(
            5,
            lambda client, kind: client in gone and kind == "query.masked",
            max_retries=0,
            **PRIVATE,
        )
    assert not run.grid.of("query.unmask")
    noise = DistributedNoise(PrivacyBudget(1.0, 1e-5), 64)
    with pytest.raises(RunError, match="calibrated for 6 clients, got 5"):
        noise.add_group(5, 6)


def test_nobody_is_in_a_second_sum_where_the_first_may_still_be_unmasked(
    run: AppRuns,
) -> None:
    """Three of five don't hear the last request; an answer may yet come late."""
    unheard = {(client, "query.unmask") for client in (0, 1, 2)}

    def silent(client: Any, kind: str) -> Any:
        return "unheard" if (client, kind) in unheard else False

    with pytest.raises(RunError, match=r"0 of 5 clients were counted"):
        run(5, silent, **PRIVATE)
    assert len(run.grid.of("query.keys")) == 5


def test_each_group_has_noise_enough_of_its_own(run: AppRuns) -> None:
    outcome = run(20, **PRIVATE)
    assert_deviation(outcome, range(20), 20, SIGMA * math.sqrt(2 * 10 / 6))


def test_a_noisy_number_of_images_ends_no_run_whose_budget_is_spent(
    run: AppRuns,
) -> None:
    outcome = run(5, secagg_max_samples=500, **PRIVATE)  # 1442 in all, 289 at a client
    assert outcome.summary["clients_counted"] == 5


def test_digits_are_classified_well(run: AppRuns) -> None:
    private = PRIVATE | {"dp_epsilon": 8.0}
    outcomes = [run(10, **private, run_name=name) for name in "abc"]
    assert sum(outcome.summary["accuracy"] for outcome in outcomes) / 3 > 0.88


@pytest.mark.parametrize("method", ["fed3r", "fedncm", "fed3r-rf"])
def test_with_hardly_any_noise_it_is_the_plain_sum(run: AppRuns, method: Any) -> None:
    feature_map = MAP
    settings: dict[str, Any] = {}
    if method == "fed3r-rf":
        settings = {"rf_dim": 40, "rf_sigma": 3.0}
        feature_map = FeatureMap(64, 40, 3.0, 0, norm=1.0)
    outcome = run(5, dp_epsilon=1e9, dp_mode="distributed", method=method, **settings)
    exact = rounded_statistics(range(5), 5, feature_map)
    torch.testing.assert_close(outcome.statistics.A, exact.A, rtol=0, atol=0.01)
    torch.testing.assert_close(outcome.statistics.b, exact.b, rtol=0, atol=0.01)
    assert torch.equal(outcome.statistics.counts, exact.counts)


def test_nothing_that_depends_on_single_images_is_written_down(run: AppRuns) -> None:
    outcome = run(5, **PRIVATE)
    assert all(not e.digest and e.num_samples is None for e in outcome.ledger)
    lines = (outcome.directory / "metrics.jsonl").read_text()
    assert "num_samples" not in lines


def test_noise_is_shared_only_where_sums_are_secret() -> None:
    shared: dict[str, Any] = {"privacy": "secagg", "dp-epsilon": 1.0}
    config = DEFAULTS | shared | {"dp-mode": "distributed"}
    Config.from_run_config(config)
    with pytest.raises(
        ValueError, match="must be 'secagg' with dp-epsilon, got 'none'"
    ):
        Config.from_run_config(config | {"privacy": "none"})
    with pytest.raises(ValueError, match="privacy must be 'none' with dp-epsilon"):
        Config.from_run_config(config | {"dp-mode": "central"})
