"""What the server sees of a client under secure aggregation."""

from collections.abc import Iterator
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fed3r_app.client_app import app as client_app
from fed3r_app.core import FeatureMap
from fed3r_app.wire import pack_feature_map
from tests.harness.runs import AppRuns
from tests.harness.samples import uniform_bytes


def seen_by_server(grid: Any) -> Iterator[Any]:
    """Yield every value that the clients' replies hold."""
    for reply in (e.reply for e in grid.exchanges if e.reply is not None):
        for record in reply.config_records.values():
            for value in record.values():
                yield from value if isinstance(value, list) else [value]
        for record in reply.array_records.values():
            yield from (array.data for array in record.values())


def test_a_masked_vector_is_uniform(run: AppRuns) -> None:
    """Also where the vector itself is mostly zeros, in every byte's place."""
    outcome = run(3, image_size=24)
    for exchange in outcome.grid.of("query.masked"):
        assert uniform_bytes(exchange.reply["arrays"]["masked"].numpy())


def test_replies_hold_nothing_but_the_protocol(run: AppRuns) -> None:
    """No number of images, no metrics, no digest."""
    outcome = run(4)
    keys = {
        "query.hello": {"config": {"client-id", "num-partitions"}},
        "query.keys": {"secagg": {"sealing", "masking"}},
        "query.share": {"secagg": {"members", "sealed"}},
        "query.masked": {"arrays": {"masked"}},
        "query.unmask": {"secagg": {"survivors", "seed-shares"}},
    }
    assert {e.kind for e in outcome.grid.exchanges} == set(keys)
    for exchange in outcome.grid.exchanges:
        held = {name: set(record) for name, record in exchange.reply.items()}
        assert held == keys[exchange.kind]
    assert {entry.num_samples for entry in outcome.ledger} == {None}
    assert {entry.digest for entry in outcome.ledger} == {"group of 4"}


def test_the_servers_view_of_a_dropped_client_holds_no_secret_of_it(
    run: AppRuns,
) -> None:
    """Client 2 shares its keys, masks its vector, and is not heard of again."""
    secrets: dict[Any, Any] = {}

    def spy(message: Message, context: Context) -> None:
        asked = context.node_config["partition-id"], message.metadata.message_type
        if asked == (2, "query.masked"):
            secrets.update(context.state["secagg"])

    outcome = run(
        5,
        lambda client, kind: client == 2 and kind == "query.masked",
        before=spy,
        min_clients=4,
        max_retries=0,
    )
    values = seen_by_server(outcome.grid)
    blob = b"\n".join(v if isinstance(v, bytes) else repr(v).encode() for v in values)
    for name in ("sealing-key", "masking-key", "seed", "own-shares"):
        assert secrets[name] not in blob
    # The others gave shares of its masking key away, which unmasks them, not it …
    index = secrets["index"]
    answers = [e.reply["secagg"] for e in outcome.grid.of("query.unmask")]
    assert all(list(answer["dropped"]) == [index] for answer in answers)
    # … and no share of the seed of the mask that only it knows.
    assert all(index not in answer["survivors"] for answer in answers)


MAP = pack_feature_map(FeatureMap(64))
KINDS = ("train.statistics", "evaluate.statistics", "query.temperature", "train")
CLEAR = "nothing of a single client travels in the clear"
OPEN = "Nothing but protected sums leaves this node"


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("train.statistics", MAP, CLEAR),
        *((kind, MAP, OPEN) for kind in KINDS[1:]),
        ("query.hello", {"moments": True}, OPEN),
    ],
)
def test_a_client_sends_nothing_in_the_clear(
    run: AppRuns,
    kind: str,
    config: Any,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = next(iter(run(3).grid.contexts.values()))
    record = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord(dict(config))})
    reply = client_app(Message(record, context.node_id, kind), context)
    assert reply.has_error()
    assert reason in caplog.text
