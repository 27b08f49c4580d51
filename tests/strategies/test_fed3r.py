"""Fed3R through a Grid: the pooled solution, whoever comes when, and nothing else."""

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fed3r_app.core import (
    HeadOptions,
    Limits,
    RidgeStatistics,
    class_means,
    select_lambda,
    solve_ridge,
)
from fed3r_app.wire import pack_statistics, unpack_classifier
from strategies import (
    Accumulator,
    ClientRegistry,
    CohortSampler,
    Fed3R,
    FedNCM,
    HeadSolver,
)
from tests.harness.grid import SpyGrid
from tests.harness.journal import KeptJournal
from tests.harness.pixels import assert_close
from tests.harness.replies import fail, reply_with, send_statistics

D, C, N, K = 12, 5, 90, 9
LAM = 0.1
RNG = np.random.default_rng(0)
Z = torch.from_numpy(RNG.normal(size=(N, D)))
Y = torch.from_numpy(RNG.integers(C, size=N))
POOLED = RidgeStatistics.of(Z, Y, C)
SOLUTION = solve_ridge(POOLED, LAM)


def parts(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Cut the samples into clients of all sizes, among them an empty one."""
    cuts = np.random.default_rng(seed).integers(N + 1, size=K - 2)
    edges = [0, 0, *sorted(int(cut) for cut in cuts), N]
    return [(Z[a:b], Y[a:b]) for a, b in itertools.pairwise(edges)]


def of(pieces: list[tuple[Tensor, Tensor]]) -> RidgeStatistics:
    """Return the statistics of some parts together."""
    Z, y = (torch.cat(tensors) for tensors in zip(*pieces, strict=True))
    return RidgeStatistics.of(Z, y, C)


def nodes(pieces: Any = None, **options: Any) -> dict[int, Any]:
    """Make nodes, from id 101 on, that hold a part of the samples each."""
    return {
        101 + i: lambda message, Z=Z, y=y: send_statistics(message, Z, y, C, **options)
        for i, (Z, y) in enumerate(pieces or parts())
    }


def strategy(
    count: int = K,
    kind: Any = Fed3R,
    per_round: int = 2,
    seed: int = 0,
    retries: int = 0,
    ridge_lambda: float | None = LAM,
    limits: Any = None,
    **options: Any,
) -> Any:
    names = {str(i): 101 + i for i in range(count)}
    sampler = CohortSampler(
        tuple(names), per_round=per_round, seed=seed, max_retries=retries
    )
    accumulator = Accumulator(RidgeStatistics.zeros(D, C), limits=limits)
    if kind is Fed3R:
        options["solver"] = HeadSolver(given=HeadOptions(ridge_lambda))
    return kind(ClientRegistry(names), sampler, accumulator, **options)


def asking(count: int = K, **options: Any) -> Any:
    """Return a strategy that has just asked all its clients."""
    fed3r = strategy(count, per_round=0, **options)
    list(fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid=None))
    return fed3r


def run(fed3r: Any, grid: SpyGrid) -> Tensor:
    result = fed3r.start(grid, ArrayRecord(), timeout=0.5)
    return unpack_classifier(result.arrays.to_numpy_ndarrays()).W


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 12), st.integers(0, 1000), st.sampled_from(["factor", "packed"]))
def test_any_split_cohort_and_order_gives_the_pooled_solution(
    per_round: Any, seed: int, form: str
) -> None:
    grid = SpyGrid(nodes(parts(seed), form=form), seed=seed)
    fed3r = strategy(per_round=per_round, seed=seed)
    assert_close(run(fed3r, grid), SOLUTION)
    assert len(grid.log) == K


def test_float32_factors_stay_close() -> None:
    grid = SpyGrid(nodes(dtype="float32"))
    assert_close(run(strategy(), grid), SOLUTION, 1e-5)


def test_lambda_is_chosen_from_the_sum_where_none_is_given() -> None:
    fed3r = strategy(ridge_lambda=None)
    W = run(fed3r, SpyGrid(nodes()))
    assert fed3r.solver.ridge_lambda == pytest.approx(select_lambda(POOLED), rel=1e-6)
    assert_close(W, solve_ridge(POOLED, fed3r.solver.ridge_lambda))


def test_fedncm_is_fed3r_with_class_means() -> None:
    fedncm = strategy(kind=FedNCM)
    assert isinstance(fedncm, Fed3R)
    assert_close(run(fedncm, SpyGrid(nodes())), class_means(POOLED))
    assert fedncm.solver.ridge_lambda is None


def test_a_resumed_run_ends_where_the_whole_run_ends() -> None:
    grid, fed3r = SpyGrid(nodes()), strategy(first_round=3)
    fed3r.accumulator = Accumulator(of(parts()[:4]))
    fed3r.sampler = CohortSampler(
        fed3r.sampler.clients, per_round=2, seed=0, counted="0123", rounds=2
    )
    result = fed3r.start(grid, ArrayRecord())
    assert list(result.train_metrics_clientapp) == [3, 4, 5]
    assert {node for node, _ in grid.log} == set(range(105, 110))
    assert_close(unpack_classifier(result.arrays.to_numpy_ndarrays()).W, SOLUTION)


def changed(name: str, array: Any) -> ArrayRecord:
    """Return an honest record with another array in the place of one of its own."""
    return ArrayRecord({**HONEST, name: Array(array)})


HONEST = pack_statistics(Z[:8], Y[:8], C, form="packed", dtype="float64")
NO_NUMBERS = HONEST["A"].numpy().copy()
NO_NUMBERS[3] = np.nan
NO_ARRAY = Array("int64", (8,), "numpy.ndarray", b"no array at all")
GARBAGE = {
    "NaN": changed("A", NO_NUMBERS),
    "other d": pack_statistics(Z[:8, :-1], Y[:8], C),
    "other C": pack_statistics(Z[:8], Y[:8], C + 1),
    "empty": ArrayRecord(),
    "counts": changed("counts", HONEST["counts"].numpy() + 1),
    "bytes": ArrayRecord({"header": NO_ARRAY}),
    "inconsistent": changed("b", 3 * HONEST["b"].numpy()),
}


@pytest.mark.parametrize("record", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_asked_again_and_never_in_the_sum(
    record: ArrayRecord,
) -> None:
    pieces, digest = parts(), ConfigRecord({"digest": "a" * 64})
    made = nodes(pieces)
    made[105] = lambda message: reply_with(message, arrays=record, config=digest)
    fed3r, grid = strategy(retries=2), SpyGrid(made)
    W = run(fed3r, grid)
    assert [node for node, _ in grid.log].count(105) == 3
    assert fed3r.sampler.missing == ("4",)
    assert "refused" in fed3r.sampler.failures["4"]
    assert "digest" not in fed3r.sampler.failures["4"]
    assert_close(W, solve_ridge(of(pieces[:4] + pieces[5:]), LAM))


def test_statistics_beyond_the_limits_are_refused_with_client_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pieces = [(Z[:60], Y[:60]), (Z[60:], Y[60:])]
    fed3r = strategy(2, limits=Limits(max_samples=50))
    run(fed3r, SpyGrid(nodes(pieces)))
    assert fed3r.sampler.counted == {"1"}
    assert "n must be <= max-client-samples = 50" in fed3r.sampler.failures["0"]
    assert fed3r.accumulator.release().n == 30
    assert "Client 0 failed: its statistics were refused" in caplog.text


def test_a_reply_without_statistics_is_refused() -> None:
    made = nodes()
    made[101] = lambda message: reply_with(message, config=ConfigRecord())
    fed3r = strategy()
    run(fed3r, SpyGrid(made))
    assert fed3r.sampler.missing == ("0",)


def test_who_fails_once_is_counted_in_the_end() -> None:
    made = nodes()
    good, tries = made[105], iter(range(10))
    made[105] = lambda message: good(message) if next(tries) else fail(message)
    fed3r = strategy(retries=1)
    assert_close(run(fed3r, SpyGrid(made)), SOLUTION)
    assert not fed3r.sampler.missing


def test_who_fails_for_ever_is_named_with_the_reason() -> None:
    made = nodes()
    made[105] = lambda message: fail(message, "The disk is gone.")
    made[106] = lambda message: None
    fed3r = strategy(retries=1)
    run(fed3r, SpyGrid(made))
    assert fed3r.sampler.failures == {"4": "The disk is gone.", "5": "no reply"}


def test_nobody_counted_is_no_classifier() -> None:
    fed3r = strategy(2)
    grid = SpyGrid({101: fail, 102: fail})
    result = fed3r.start(grid, ArrayRecord(), timeout=0.5)
    assert not result.evaluate_metrics_serverapp
    assert fed3r.sampler.missing == ("0", "1")


def request(node: Any) -> Any:
    return Message(RecordDict(), dst_node_id=node, message_type="train.statistics")


def test_replies_of_strangers_and_second_replies_are_ignored() -> None:
    made, fed3r = nodes(), asking()
    replies = [node(request(number)) for number, node in made.items()]
    stranger = made[101 + K - 1](request(999))
    repeated = made[101 + K - 1](request(101 + K - 1))
    _, metrics = fed3r.aggregate_train(1, [stranger, *replies, repeated, *replies])
    assert metrics["clients-counted"] == K
    assert metrics["num-examples"] == N
    assert_close(fed3r.accumulator.release().A, POOLED.A)
    assert_close(fed3r.accumulator.release().b, POOLED.b)


def test_a_repeated_reply_is_ignored_and_a_different_one_refused() -> None:
    journal = KeptJournal()
    fed3r, ask = asking(1, journal=journal), request(101)
    first = send_statistics(ask, Z[:9], Y[:9], C, digest="a" * 64)
    # Other sums under the same digest are what a client with more threads sends.
    again = send_statistics(ask, Z[:9] * 1.001, Y[:9], C, digest="a" * 64)
    other = send_statistics(ask, Z, Y, C, digest="b" * 64)
    fed3r.aggregate_train(1, [first, again, other, first])
    assert journal.entries == [
        ("0", "accepted", True),
        ("0", "repeated", False),
        ("0", "refused", False),
        ("0", "repeated", False),
    ]
    assert fed3r.accumulator.contributions == {"0": "a" * 64}
    assert_close(fed3r.accumulator.release().A, RidgeStatistics.of(Z[:9], Y[:9], C).A)


def test_who_was_counted_before_is_not_counted_again() -> None:
    journal = KeptJournal()
    fed3r = strategy(1, journal=journal)
    fed3r.accumulator = Accumulator(POOLED, {"0": "a" * 64})
    late = send_statistics(request(101), Z, Y, C, digest="a" * 64)
    fed3r.aggregate_train(1, [late])
    assert journal.entries == [("0", "repeated", False)]
    assert torch.equal(fed3r.accumulator.release().A, POOLED.A)


@pytest.mark.parametrize("digest", [None, "", "a" * 63, "G" * 64, 7, "a" * 64 + "\n"])
def test_statistics_without_a_digest_are_refused(digest: Any) -> None:
    journal = KeptJournal()
    fed3r = asking(1, journal=journal)
    records: dict[str, Any] = {"arrays": pack_statistics(Z, Y, C)}
    if digest is not None:
        records["config"] = ConfigRecord({"digest": digest})
    fed3r.aggregate_train(1, [reply_with(request(101), **records)])
    assert journal.entries == [("0", "refused", False)]
    assert "digest must be" in fed3r.sampler.failures["0"]


def test_what_can_not_be_written_down_is_not_counted() -> None:
    class FullDisk:
        def record(self, entry: Any, record: Any, contribution: Any = None) -> None:
            raise OSError(28, "No space left on device")

    fed3r = asking(journal=FullDisk())
    with pytest.raises(OSError, match="No space left"):
        fed3r.aggregate_train(1, [nodes()[105](request(105))])
    assert (fed3r.accumulator.release().n, fed3r.accumulator.contributions) == (0, {})


def test_a_folded_reply_is_not_kept() -> None:
    seen: list[Any] = []

    def replies() -> Iterator[Any]:
        for number, node in nodes().items():
            # One may still be bound to the name of the caller's loop.
            assert sum(ref() is not None for ref in seen) <= 1
            reply = node(request(number))
            seen.append(weakref.ref(reply))
            yield reply
            del reply

    asking().aggregate_train(1, replies())
    assert len(seen) == K


def test_bytes_are_those_that_travelled() -> None:
    fed3r = strategy(per_round=0)
    result = fed3r.start(SpyGrid(nodes()), ArrayRecord(), timeout=1)
    metrics = result.train_metrics_clientapp[1]
    sent = [pack_statistics(Z, y, C, dtype="float64").count_bytes() for Z, y in parts()]
    digests = K * ConfigRecord({"digest": "0" * 64}).count_bytes()
    assert metrics["upload-bytes"] == sum(sent) + digests


@pytest.mark.parametrize(
    ("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [5])]
)
def test_evaluations_come_as_often_as_asked_for_and_at_the_end(
    every: Any, evaluated: Any
) -> None:
    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"number": number})

    fed3r, grid = strategy(eval_every=every), SpyGrid(nodes())
    result = fed3r.start(grid, ArrayRecord(), timeout=1, evaluate_fn=evaluate)
    # The first round may have met the empty client and another: all have samples.
    assert list(result.evaluate_metrics_serverapp) == evaluated
