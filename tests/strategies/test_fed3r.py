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
from tests.harness.fixtures import Reply
from tests.harness.grid import SpyGrid
from tests.harness.journal import KeptJournal

D, C, N, K = 12, 5, 90, 9
LAM = 0.1


def samples(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(N, D))), torch.from_numpy(
        rng.integers(C, size=N)
    )


def parts(Z: Tensor, y: Tensor, clients: Any = K, seed: int = 0) -> Any:
    """Cut the samples into clients of all sizes, among them an empty one."""
    cuts = np.random.default_rng(seed).integers(N + 1, size=clients - 2)
    edges = [0, 0, *sorted(int(cut) for cut in cuts), N]
    return [(Z[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]


@pytest.fixture
def nodes(send_statistics: Reply) -> Any:
    """Make nodes, from id 101 on, that hold a part of the samples each."""

    def make(pieces: Any, **options: Any) -> Any:
        return {
            101 + i: lambda message, Z=Z, y=y: send_statistics(
                message, Z, y, C, **options
            )
            for i, (Z, y) in enumerate(pieces)
        }

    return make


def strategy(
    count: Any,
    kind: Any = Fed3R,
    per_round: int = 2,
    seed: int = 0,
    retries: int = 0,
    ridge_lambda: Any = None,
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


def run(fed3r: Any, grid: Any, **options: Any) -> Any:
    result = fed3r.start(grid, ArrayRecord(), timeout=0.5, **options)
    return unpack_classifier(result.arrays.to_numpy_ndarrays()).W


def assert_close(W: Tensor, expected: Any, tolerance: float = 1e-9) -> None:
    assert float((W - expected).norm() / expected.norm()) <= tolerance


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 12), st.integers(0, 1000), st.sampled_from(["factor", "packed"]))
def test_any_split_cohort_and_order_gives_the_pooled_solution(
    make_grid: type[SpyGrid], nodes: Any, per_round: Any, seed: int, form: str
) -> None:
    Z, y = samples()
    grid = make_grid(nodes(parts(Z, y, seed=seed), form=form), seed=seed)
    fed3r = strategy(K, per_round=per_round, seed=seed, ridge_lambda=LAM)
    W = run(fed3r, grid)
    assert_close(W, solve_ridge(RidgeStatistics.of(Z, y, C), LAM))
    assert len(grid.log) == K


def test_float32_factors_stay_close(make_grid: type[SpyGrid], nodes: Any) -> None:
    Z, y = samples()
    grid = make_grid(nodes(parts(Z, y), dtype="float32"))
    W = run(strategy(K, ridge_lambda=LAM), grid)
    assert_close(W, solve_ridge(RidgeStatistics.of(Z, y, C), LAM), 1e-5)


def test_lambda_is_chosen_from_the_sum_where_none_is_given(
    make_grid: type[SpyGrid], nodes: Any
) -> None:
    Z, y = samples()
    fed3r = strategy(K)
    W = run(fed3r, make_grid(nodes(parts(Z, y))))
    pooled = RidgeStatistics.of(Z, y, C)
    assert fed3r.solver.ridge_lambda == pytest.approx(select_lambda(pooled), rel=1e-6)
    assert_close(W, solve_ridge(pooled, fed3r.solver.ridge_lambda))


def test_fedncm_is_fed3r_with_class_means(make_grid: type[SpyGrid], nodes: Any) -> None:
    Z, y = samples()
    fedncm = strategy(K, kind=FedNCM)
    assert isinstance(fedncm, Fed3R)
    W = run(fedncm, make_grid(nodes(parts(Z, y))))
    assert_close(W, class_means(RidgeStatistics.of(Z, y, C)))
    assert fedncm.solver.ridge_lambda is None


def test_a_run_that_goes_on_ends_where_the_whole_run_ends(
    make_grid: type[SpyGrid], nodes: Any
) -> None:
    Z, y = samples()
    pieces = parts(Z, y)
    grid = make_grid(nodes(pieces))
    names = {str(i): 101 + i for i in range(K)}
    start = RidgeStatistics.of(
        torch.cat([Z for Z, _ in pieces[:4]]), torch.cat([y for _, y in pieces[:4]]), C
    )
    sampler = CohortSampler(
        tuple(names), per_round=2, seed=0, counted=["0", "1", "2", "3"], rounds=2
    )
    fed3r = Fed3R(
        ClientRegistry(names),
        sampler,
        Accumulator(start),
        solver=HeadSolver(given=HeadOptions(LAM)),
        first_round=3,
    )
    result = fed3r.start(grid, ArrayRecord())
    assert list(result.train_metrics_clientapp) == [3, 4, 5]
    assert {node for node, _ in grid.log} == set(range(105, 110))
    assert_close(
        unpack_classifier(result.arrays.to_numpy_ndarrays()).W,
        solve_ridge(RidgeStatistics.of(Z, y, C), LAM),
    )


def garbage(kind: str, Z: Tensor, y: Tensor) -> Any:
    """Return a record that must not be counted."""
    record = pack_statistics(Z, y, C, form="packed", dtype="float64")
    if kind == "NaN":
        A = record["A"].numpy().copy()
        A[3] = np.nan
        return ArrayRecord({**record, "A": Array(A)})
    if kind == "other d":
        return pack_statistics(Z[:, :-1], y, C)
    if kind == "other C":
        return pack_statistics(Z, y, C + 1)
    if kind == "empty":
        return ArrayRecord()
    if kind == "counts":
        counts = record["counts"].numpy() + 1
        return ArrayRecord({**record, "counts": Array(counts)})
    if kind == "inconsistent":
        b = 3 * record["b"].numpy()
        return ArrayRecord({**record, "b": Array(b)})
    return ArrayRecord(
        {"header": Array("int64", (8,), "numpy.ndarray", b"no array at all")}
    )


@pytest.mark.parametrize(
    "kind",
    ["NaN", "other d", "other C", "empty", "counts", "bytes", "inconsistent"],
)
def test_garbage_is_refused_asked_again_and_never_in_the_sum(
    make_grid: type[SpyGrid], nodes: Any, reply_with: Reply, kind: str
) -> None:
    Z, y = samples()
    pieces = parts(Z, y)
    made = nodes(pieces)
    bad = made[105] = lambda message: reply_with(
        message,
        arrays=garbage(kind, Z[:8], y[:8]),
        config=ConfigRecord({"digest": "a" * 64}),
    )
    fed3r = strategy(K, retries=2, ridge_lambda=LAM)
    grid = make_grid(made)
    W = run(fed3r, grid)
    assert grid.nodes[105] is bad
    assert [node for node, _ in grid.log].count(105) == 3
    assert fed3r.sampler.missing == ("4",)
    assert "refused" in fed3r.sampler.failures["4"]
    assert "digest" not in fed3r.sampler.failures["4"]
    others = [pieces[i] for i in range(K) if i != 4]
    without = RidgeStatistics.of(
        torch.cat([Z for Z, _ in others]), torch.cat([y for _, y in others]), C
    )
    assert_close(W, solve_ridge(without, LAM))


def test_statistics_beyond_the_limits_are_refused_with_client_and_reason(
    make_grid: type[SpyGrid], nodes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Z, y = samples()
    pieces = [(Z[:60], y[:60]), (Z[60:], y[60:])]
    fed3r = strategy(2, ridge_lambda=LAM, limits=Limits(max_samples=50))
    run(fed3r, make_grid(nodes(pieces)))
    assert fed3r.sampler.counted == {"1"}
    assert "n must be <= max-client-samples = 50" in fed3r.sampler.failures["0"]
    assert fed3r.accumulator.release().n == 30
    assert "Client 0 failed: its statistics were refused" in caplog.text


def test_a_reply_without_statistics_is_refused(
    make_grid: type[SpyGrid], nodes: Any, reply_with: Reply
) -> None:
    Z, y = samples()
    made = nodes(parts(Z, y))
    made[101] = lambda message: reply_with(message, config=ConfigRecord())
    fed3r = strategy(K, ridge_lambda=LAM)
    run(fed3r, make_grid(made))
    assert fed3r.sampler.missing == ("0",)


def test_who_fails_once_is_counted_in_the_end(
    make_grid: type[SpyGrid], nodes: Any, fail: Reply
) -> None:
    Z, y = samples()
    made = nodes(parts(Z, y))
    good, tries = made[105], iter(range(10))
    made[105] = lambda message: good(message) if next(tries) else fail(message)
    fed3r = strategy(K, retries=1, ridge_lambda=LAM)
    W = run(fed3r, make_grid(made))
    assert not fed3r.sampler.missing
    assert_close(W, solve_ridge(RidgeStatistics.of(Z, y, C), LAM))


def test_who_fails_for_ever_is_named_with_the_reason(
    make_grid: type[SpyGrid], nodes: Any, fail: Reply
) -> None:
    Z, y = samples()
    made = nodes(parts(Z, y))
    made[105] = lambda message: fail(message, "The disk is gone.")
    made[106] = lambda message: None
    fed3r = strategy(K, retries=1, ridge_lambda=LAM)
    run(fed3r, make_grid(made))
    assert fed3r.sampler.failures == {"4": "The disk is gone.", "5": "no reply"}


def test_nobody_counted_is_no_classifier(make_grid: type[SpyGrid], fail: Reply) -> None:
    fed3r = strategy(2)
    grid = make_grid({101: fail, 102: fail})
    result = fed3r.start(grid, ArrayRecord(), timeout=0.5)
    assert not result.evaluate_metrics_serverapp
    assert fed3r.sampler.missing == ("0", "1")


def request(node: Any) -> Any:
    return Message(RecordDict(), dst_node_id=node, message_type="train.statistics")


def test_replies_of_strangers_and_second_replies_are_ignored(nodes: Any) -> None:
    Z, y = samples()
    pieces = parts(Z, y)
    made = nodes(pieces)
    fed3r = strategy(K, per_round=0, ridge_lambda=LAM)
    list(fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid=None))
    replies = [node(request(number)) for number, node in made.items()]
    stranger = made[101 + K - 1](request(999))
    repeated = made[101 + K - 1](request(101 + K - 1))
    _, metrics = fed3r.aggregate_train(1, [stranger, *replies, repeated, *replies])
    assert metrics["clients-counted"] == K
    assert metrics["num-examples"] == N
    pooled = RidgeStatistics.of(Z, y, C)
    assert_close(fed3r.accumulator.release().A, pooled.A)
    assert_close(fed3r.accumulator.release().b, pooled.b)


def test_a_repeated_reply_is_ignored_and_a_different_one_refused(
    send_statistics: Reply,
) -> None:
    Z, y = samples()
    journal = KeptJournal()
    fed3r = strategy(1, ridge_lambda=LAM, journal=journal)
    list(fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid=None))
    first = send_statistics(request(101), Z[:9], y[:9], C, digest="a" * 64)
    # Other sums under the same digest are what a client with more threads sends.
    again = send_statistics(request(101), Z[:9] * 1.001, y[:9], C, digest="a" * 64)
    other = send_statistics(request(101), Z, y, C, digest="b" * 64)
    fed3r.aggregate_train(1, [first, again, other, first])
    assert journal.entries == [
        ("0", "accepted", True),
        ("0", "repeated", False),
        ("0", "refused", False),
        ("0", "repeated", False),
    ]
    assert fed3r.accumulator.contributions == {"0": "a" * 64}
    assert_close(fed3r.accumulator.release().A, RidgeStatistics.of(Z[:9], y[:9], C).A)


def test_who_was_counted_before_is_not_counted_again(send_statistics: Reply) -> None:
    Z, y = samples()
    start = RidgeStatistics.of(Z, y, C)
    sampler = CohortSampler(["0"], per_round=0, seed=0, counted=["0"])
    accumulator = Accumulator(start, {"0": "a" * 64})
    journal = KeptJournal()
    registry = ClientRegistry({"0": 101})
    fed3r = Fed3R(registry, sampler, accumulator, journal=journal)
    late = send_statistics(request(101), Z, y, C, digest="a" * 64)
    fed3r.aggregate_train(1, [late])
    assert journal.entries == [("0", "repeated", False)]
    assert torch.equal(fed3r.accumulator.release().A, start.A)


@pytest.mark.parametrize("digest", [None, "", "a" * 63, "G" * 64, 7, "a" * 64 + "\n"])
def test_statistics_without_a_digest_are_refused(
    nodes: Any, reply_with: Reply, digest: Any
) -> None:
    Z, y = samples()
    journal = KeptJournal()
    fed3r = strategy(1, journal=journal)
    list(fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid=None))
    records: dict[str, Any] = {"arrays": pack_statistics(Z, y, C)}
    if digest is not None:
        records["config"] = ConfigRecord({"digest": digest})
    fed3r.aggregate_train(1, [reply_with(request(101), **records)])
    assert journal.entries == [("0", "refused", False)]
    assert "digest must be" in fed3r.sampler.failures["0"]


def test_what_can_not_be_written_down_is_not_counted(nodes: Any) -> None:
    Z, y = samples()
    made = nodes(parts(Z, y))

    class FullDisk:
        def record(self, entry: Any, record: Any) -> None:
            raise OSError(28, "No space left on device")

    fed3r = strategy(K, per_round=0, ridge_lambda=LAM, journal=FullDisk())
    list(fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid=None))
    with pytest.raises(OSError, match="No space left"):
        fed3r.aggregate_train(1, [made[105](request(105))])
    assert (fed3r.accumulator.release().n, fed3r.accumulator.contributions) == (0, {})


def test_a_folded_reply_is_not_kept(nodes: Any) -> None:
    Z, y = samples()
    made = nodes(parts(Z, y))
    fed3r = strategy(K, per_round=0, ridge_lambda=LAM)
    list(fed3r.configure_train(1, ArrayRecord(), ConfigRecord(), grid=None))
    seen: list[Any] = []

    def replies() -> Iterator[Any]:
        for number, node in made.items():
            # One may still be bound to the name of the caller's loop.
            assert sum(ref() is not None for ref in seen) <= 1
            reply = node(request(number))
            seen.append(weakref.ref(reply))
            yield reply
            del reply

    fed3r.aggregate_train(1, replies())
    assert len(seen) == K


def test_bytes_are_those_that_travelled(make_grid: type[SpyGrid], nodes: Any) -> None:
    Z, y = samples()
    fed3r = strategy(K, per_round=0)
    result = fed3r.start(make_grid(nodes(parts(Z, y))), ArrayRecord(), timeout=1)
    metrics = result.train_metrics_clientapp[1]
    sent = [
        pack_statistics(Z, y, C, dtype="float64").count_bytes() for Z, y in parts(Z, y)
    ]
    digests = K * ConfigRecord({"digest": "0" * 64}).count_bytes()
    assert metrics["upload-bytes"] == sum(sent) + digests


@pytest.mark.parametrize(
    ("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [5])]
)
def test_evaluations_come_as_often_as_asked_for_and_at_the_end(
    make_grid: type[SpyGrid], nodes: Any, every: Any, evaluated: Any
) -> None:
    Z, y = samples()
    fed3r = strategy(K, eval_every=every, ridge_lambda=LAM)
    result = fed3r.start(
        make_grid(nodes(parts(Z, y))),
        ArrayRecord(),
        timeout=1,
        evaluate_fn=lambda number, arrays: MetricRecord({"number": number}),
    )
    # The first round may have met the empty client and another: all have samples.
    assert list(result.evaluate_metrics_serverapp) == evaluated
