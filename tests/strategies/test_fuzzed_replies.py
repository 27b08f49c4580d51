"""Whatever is in a reply, of any kind that the server reads, the run goes on.

Each kind through the server's own code, with an honest client beside the hostile one:
what the latter adds is checked, as is the memory that is asked for. For statistics see
``test_hostile_clients``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)

from clients.secagg_client import SecureClient
from fed3r_app.core import (
    Classifier,
    FeatureMap,
    FeatureMoments,
    Metrics,
    RidgeStatistics,
)
from fed3r_app.privacy.secagg import (
    FixedPointEncoding,
    Group,
    IntegerStatistics,
)
from fed3r_app.server.training_fit import measure_fit
from fed3r_app.wire import RUNNING, Fit, Hello, Parity, pack_fit, pack_hello
from strategies import (
    Accumulator,
    ClientDiscovery,
    ClientEvaluation,
    ClientRegistry,
    GroupSampler,
    SecureAggregation,
    Traffic,
    TrainingRounds,
    evaluate_on_clients,
    make_optimizer,
)
from strategies.secagg import _STAGES
from tests.harness.fuzz import little_memory, mutate
from tests.harness.grid import SpyGrid
from tests.harness.samples import assert_same

ANNOUNCED, D, C = 50, 6, 4
HONEST, HOSTILE = 101, 102
pytestmark = pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")

# A kind: the content of an honest reply, and what sends a hostile one to the server.
Kind = tuple[RecordDict, Callable[[RecordDict], None]]


@pytest.fixture(autouse=True)
def _few_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="flwr")


def grid_of(honest: RecordDict, hostile: RecordDict) -> SpyGrid:
    def node(content: RecordDict) -> Any:
        # Copied: the server takes records out of a reply.
        made = RecordDict(dict(content.items()))
        return lambda message: Message(made, reply_to=message)

    return SpyGrid({HONEST: node(honest), HOSTILE: node(hostile)}, None)


def registry() -> ClientRegistry:
    nodes = {"honest": HONEST, "hostile": HOSTILE}
    sizes = dict.fromkeys(nodes, ANNOUNCED)
    return ClientRegistry(nodes, num_samples=sizes, num_test_images=dict(sizes))


def hello(with_moments: bool) -> Kind:
    moments = FeatureMoments.of(torch.rand(9, D)) if with_moments else None
    said = Hello(
        *("honest", 0, moments, ("ape", "bee"), 3, Parity((0.5, 1.0), "torch 2")),
        num_samples=ANNOUNCED,
    )
    honest = pack_hello(said)
    other = pack_hello(Hello("other", 0, moments, ("ape",), num_samples=ANNOUNCED))

    def receive(content: RecordDict) -> None:
        discovery = ClientDiscovery(
            grid_of(other, content), 5.0, strict=False, dim=D, must_announce=True
        )
        discovery.gather(2, with_moments)
        found = discovery.registry
        assert found.nodes["other"] == HONEST
        for client in found.nodes:
            assert 0 < len(client) <= 200
            assert not any(ord(c) < 32 for c in client)
            assert 0 <= found.num_samples[client] <= 10**12
            assert len(found.class_names[client]) <= 10**12
        if found.moments:
            assert np.isfinite(found.moments.total.numpy()).all()

    return honest, receive


def evaluation() -> Kind:
    counts: Any = {"num-examples": ANNOUNCED, "correct": 40, "loss": 1.0}
    honest = RecordDict({"metrics": MetricRecord(counts)})
    request = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord()})

    def receive(content: RecordDict) -> None:
        found = registry()
        made = ClientEvaluation(found.clients)
        grid = grid_of(honest, content)
        evaluate_on_clients(grid, found, made, request, 5.0, Traffic())
        assert "honest" in made.evaluated
        assert 40 <= made.metrics.correct <= made.metrics.total <= 2 * ANNOUNCED

    return honest, receive


def temperature() -> Kind:
    losses = torch.tensor([3.0, 4.0], dtype=torch.float64)
    fits = Metrics(40, ANNOUNCED), Metrics(39, ANNOUNCED)
    honest = pack_fit(Fit(losses, *fits))
    classifier = Classifier(torch.zeros(D, C), torch.ones(C, dtype=torch.bool))

    def receive(content: RecordDict) -> None:
        context: Any = SimpleNamespace(
            registry=registry(),
            grid=grid_of(honest, content),
            request=lambda config: config,
            config=SimpleNamespace(round_timeout=5.0),
            recorder=SimpleNamespace(add_costs=lambda **_: None),
        )
        fit = measure_fit(context, classifier, FeatureMap(D), (0.1, 1.0))
        assert "honest" in fit.by_client
        assert all(0 <= each.total <= ANNOUNCED for each in fit.by_client.values())
        assert torch.isfinite(fit.losses).all()

    return honest, receive


def training(optimizer: str) -> Kind:
    arrays = ArrayRecord({"w": Array(np.ones((3, 2), np.float32))})
    metrics: Any = {"num-examples": ANNOUNCED, "train-loss": 0.5}
    metrics |= {"received-loss": 0.6, "received-correct": 30}
    honest = RecordDict({"arrays": arrays, RUNNING: arrays})
    honest["metrics"] = MetricRecord(metrics)
    if optimizer == "scaffold":
        honest["control"] = arrays

    def receive(content: RecordDict) -> None:
        made = make_optimizer(
            optimizer, server_lr=1.0, server_momentum=0.9, num_clients=2
        )
        rounds = TrainingRounds(made, registry(), ("honest", "hostile"), 0, 0)
        grid = grid_of(honest, content)
        trained = rounds.run(grid, 1, arrays, arrays, ConfigRecord({"lr": 0.1}), 5.0)
        assert trained.num_samples <= 2 * ANNOUNCED
        for record in (trained.arrays, trained.running):
            assert record is not None
            assert np.isfinite(record["w"].numpy()).all()

    return honest, receive


@cache
def secagg_group() -> tuple[SecureAggregation, list[Any], RidgeStatistics]:
    """Return a strategy, per stage the group before it and the replies, and the sum."""
    names = {str(i): HONEST + i for i in range(5)}
    encoding = FixedPointEncoding(FeatureMap(D), 1.0, 1000)
    accumulator = Accumulator(RidgeStatistics.zeros(D, C), encoding=encoding)
    sampler = GroupSampler(tuple(names), group_size=5, per_round=0, seed=0)
    made = SecureAggregation(
        registry=ClientRegistry(names),
        sampler=sampler,
        accumulator=accumulator,
        threshold_share=0.6,
    )
    rng = np.random.default_rng(0)
    parts = [
        IntegerStatistics.of(
            [(torch.from_numpy(rng.random((9, D))), torch.arange(9) % C)], C, encoding
        )
        for _ in names
    ]
    total = [
        sum(getattr(part, name) for part in parts) for name in ("A", "b", "counts")
    ]
    marker: Any = SimpleNamespace(
        check=lambda: None, set=lambda: None, set_masked=lambda attempt: None
    )
    clients = [SecureClient(RecordDict(), marker, 0.6) for _ in names]
    group, stages = made._new_group(list(names)), []
    for stage in _STAGES:
        before, replies = copy.deepcopy(group), {}
        for i, client in enumerate(clients, start=1):
            request = stage.request(group, i, ConfigRecord())
            step: Any = getattr(client, stage.message_type.removeprefix("query."))
            vector = parts[i - 1].vector()
            extra = [lambda _, v=vector: v] if step == client.masked else []
            replies[i] = step(request, *extra)
        for i, reply in replies.items():
            stage.take(group, i, stage.read(reply))
        stages.append((stage, before, replies))
    return made, stages, IntegerStatistics(*total).statistics(encoding)


def secagg(number: int) -> Kind:
    strategy, stages, total = secagg_group()
    stage, before, replies = stages[number]

    def receive(content: RecordDict) -> None:
        made = copy.copy(strategy)
        made.sampler = copy.deepcopy(strategy.sampler)
        made.accumulator = Accumulator(
            RidgeStatistics.zeros(D, C), encoding=strategy.accumulator.encoding
        )
        made._num_groups = 0
        group: Group = copy.deepcopy(before)
        made.sampler.draw()
        request = Message(RecordDict(), dst_node_id=HONEST, message_type="query.x")
        # The hostile one first, that it may stand in the way of the others.
        for i, reply in [(1, content), *list(replies.items())[1:]]:
            made._take(stage, group, i, Message(reply, reply_to=request))
        assert set(stage.done(group)) >= {2, 3, 4, 5}
        if stage is _STAGES[-1]:
            made._fold_groups([group])
            if made.accumulator.n:  # else the group is dropped
                assert_same(made.accumulator.release(), total, atol=1e-9)

    return replies[1], receive


KINDS: dict[str, Callable[[], Kind]] = {
    "hello": lambda: hello(with_moments=False),
    "moments": lambda: hello(with_moments=True),
    "evaluation": evaluation,
    "temperature": temperature,
    "training": lambda: training("fedavg"),
    "training with control variates": lambda: training("scaffold"),
    **{
        stage.message_type: lambda number=number: secagg(number)  # type: ignore[misc]
        for number, stage in enumerate(_STAGES)
    },
}


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_reply_ends_a_run_takes_memory_or_counts_wrongly(
    kind: str, number: int
) -> None:
    honest, receive = KINDS[kind]()
    receive(honest)
    rng = np.random.default_rng(number)
    with little_memory():
        for _ in range(number):
            receive(mutate(honest, rng))
