"""Whatever a server asks, a node replies, and takes little memory to do so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from fed3r_app.client_app import app as client_app
from tests.harness.fixtures import app_runs
from tests.harness.fuzz import little_memory, mutate
from tests.harness.nodes import ALL, CLINICS, LABELS, Federation
from tests.harness.pixels import PIXELS

LOCAL = PIXELS | {"dataset": "local", "round-timeout": 20.0}
NAMED = {"labels": ",".join(LABELS)}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"finetune": "lp", "rounds": 1, "client_evaluation": True},
    "random features": {"method": "fed3r-rf", "rf_dim": 20},
    "secagg": NAMED | {"privacy": "secagg", "secagg_group": 4},
}
KINDS = [
    ("plain", "query.hello"),
    ("plain", "train.statistics"),
    ("plain", "evaluate.statistics"),
    ("plain", "query.temperature"),
    ("plain", "train"),
    ("random features", "query.hello"),
    ("random features", "train.statistics"),
    *(("secagg", f"query.{stage}") for stage in ("keys", "share", "masked", "unmask")),
]


class Asked(NamedTuple):
    """A request as it came, with the state of the node that it came to."""

    content: RecordDict
    state: RecordDict
    context: Context


def copied(records: RecordDict) -> RecordDict:
    return RecordDict(dict(records.items()))


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Any, Asked]]:
    """Yield the first request of each run and kind."""
    found: dict[Any, Asked] = {}
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("federation")
        federation = Federation(home, app_runs(home, patch, LOCAL))
        for client, class_names in CLINICS.items():
            federation.add_images(federation.folder(client), class_names)
        for run, settings in RUNS.items():

            def before(message: Message, context: Context, run: str = run) -> None:
                content, state = copied(message.content), copied(context.state)
                key = run, message.metadata.message_type
                found.setdefault(key, Asked(content, state, context))

            grid = federation.make_grid(ALL, run_name=run, **settings)
            grid.before = before
            federation.run(grid=grid)
        yield found


@pytest.mark.parametrize("number", [100, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("run", "kind"), KINDS)
def test_no_request_breaks_a_node_or_takes_its_memory(
    requests: dict[Any, Asked],
    run: str,
    kind: str,
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = requests[run, kind]
    caplog.set_level("CRITICAL", logger="flwr")

    def ask(content: RecordDict, run_id: int) -> Message:
        known = asked.context
        state, given = copied(asked.state), (known.node_config, known.run_config)
        # Another run each time: some requests are answered once in a run.
        context = Context(run_id, known.node_id, given[0], state, given[1])
        return client_app(Message(content, known.node_id, kind), context)

    assert not ask(asked.content, 0).has_error()
    rng = np.random.default_rng(number)
    errors = 0
    with little_memory():
        for run_id in range(1, number + 1):
            reply = ask(mutate(asked.content, rng), run_id)
            errors += reply.has_error()
            if reply.has_error() and run == "secagg":
                assert "failed, see this node's log" in str(reply.error.reason)
    assert number / 10 < errors < number
