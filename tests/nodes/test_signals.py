"""A signal ends a run between any two steps: what is saved then is whole."""

import itertools
from typing import Any

import pytest

from fed3r_app.core import RunningSum
from fed3r_app.runs.statistics_store import StatisticsStore
from tests.harness.nodes import ALL, LABELS, Federation


def stop_after(patch: Any, owner: Any, name: str, number: Any) -> None:
    """Stop the process, as a signal does, after the k-th call of a method."""
    method, calls = getattr(owner, name), itertools.count(1)

    def stopped(*arguments: Any) -> None:
        method(*arguments)
        if next(calls) == number:
            raise SystemExit

    patch.setattr(owner, name, stopped)


# Between two replies, and between adding one to the sum and noting who is in it.
MOMENTS = {"between": (StatisticsStore, "record"), "amid": (RunningSum, "add")}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("per_round", [1, 3, 4])
def test_a_run_that_was_stopped_amid_a_round_ends_as_one_that_was_not(
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    per_round: Any,
    number: Any,
    moment: Any,
) -> None:
    settings: dict[str, Any] = {"clients_per_round": per_round}
    whole = federation.run(ALL, run_name="whole", **settings).summary
    with monkeypatch.context() as context:
        stop_after(context, *MOMENTS[moment], number)
        with pytest.raises(SystemExit):
            federation.run(ALL, **settings)
    outcome = federation.run(ALL, resume=True, **settings)
    assert outcome.model.class_names == LABELS
    federation.assert_pooled(outcome)
    resumed = outcome.summary
    for key in ("rounds", "paper_upload_bytes", "flops_per_client", "num_samples"):
        assert resumed[key] == pytest.approx(whole[key]), key
    if moment == "between" and number > 1:  # all say hello again
        for key in ("upload_bytes", "download_bytes"):
            assert whole[key] < resumed[key] < 2 * whole[key]
