"""Where only protected sums may leave a node, no error tells the server more.

Each failure plants a marker: in the name of a file, a class, a row of a table, a path.
It must be in the node's log, and nowhere at the server.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fed3r_app.client_app import app as client_app
from fed3r_app.core import Classifier, FeatureMap
from fed3r_app.errors import RunError
from fed3r_app.wire import (
    pack_classifier,
    pack_feature_map,
    pack_temperatures,
    with_labels,
)
from fed3r_app.wire import secagg as secure
from tests.harness import grid as harness
from tests.harness.nodes import ALL, LABELS, Federation
from tests.harness.pixels import write_image

MARKER = "Doe_John"
NAMED = {"labels": ",".join(LABELS)}
SECAGG = NAMED | {"privacy": "secagg", "secagg_group": 4}
MODES: dict[str, dict[str, Any]] = {
    "plain": NAMED,
    "secagg": SECAGG,
    "dp": NAMED | {"dp_epsilon": 4.0, "upload": "dense"},
    "both": SECAGG | {"dp_epsilon": 4.0, "dp_mode": "distributed"},
}
GIVEN: dict[str, Any] = {"max_unreadable": 0.0, "max_retries": 0, "round_timeout": 5.0}


def unreadable_image(folder: Path) -> None:
    (folder / "cat" / f"{MARKER}.png").write_bytes(b"no image")


def foreign_class(folder: Path) -> None:
    write_image(folder / MARKER / "1.png")


def bad_row(folder: Path) -> None:
    (folder / "labels.csv").write_text(f"path,label,split\n1.png,cat,{MARKER}\n")


def bad_bytes(folder: Path) -> None:
    (folder / "labels.csv").write_bytes(f"path,label\n{MARKER}.png,K\xe4se\n".encode())
    (folder / "labels.csv").rename(folder / f"{MARKER}.csv")
    (folder / "cat").rename(folder / "dog" / MARKER)
    (folder / "dog").rename(folder / f"{MARKER} dog")


def no_folder(folder: Path) -> None:
    folder.rename(folder.with_name("away"))


FAILURES: dict[str, Callable[[Path], None]] = {
    "an unreadable image": unreadable_image,
    "a foreign class": foreign_class,
    "a bad row": bad_row,
    "classes renamed": bad_bytes,
    "no folder": no_folder,
}


class ServerSide(logging.Handler):
    """What is logged outside of the clients, and what the clients send."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.at_nodes: list[str] = []
        self._is_node = False

    def emit(self, record: logging.LogRecord) -> None:
        said = self.at_nodes if self._is_node else self.said
        said.append(self.format(record))

    def run_client(self, message: Message, context: Context) -> Message:
        self._is_node = True
        try:
            reply = client_app(message, context)
        finally:
            self._is_node = False
        self.said.append(repr(reply.error if reply.has_error() else reply.content))
        return reply


@contextmanager
def listening() -> Iterator[ServerSide]:
    server = ServerSide()
    loggers = [logging.getLogger(), logging.getLogger("flwr")]
    for logger in loggers:
        logger.addHandler(server)
    try:
        yield server
    finally:
        for logger in loggers:
            logger.removeHandler(server)


def files_below(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "\n".join(path.read_bytes().decode(errors="replace") for path in files)


def make_grid(federation: Federation, mode: str, client: str, data: Path) -> Any:
    """Return a grid on which a client's images lie in a folder of that name."""
    grid = federation.make_grid(
        [each for each in ALL if each != client], **GIVEN, **MODES[mode]
    )
    federation.connect(999, {"client-id": client, "data-path": str(data)})
    return grid


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_run_that_fails_tells_the_server_no_name(
    federation: Federation,
    mode: str,
    failure: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = federation.folder("clinic-a").rename(tmp_path / MARKER)
    FAILURES[failure](data)
    grid = make_grid(federation, mode, "clinic-a", data)
    with listening() as server:
        monkeypatch.setattr(harness, "client_app", server.run_client)
        with pytest.raises(RunError):
            federation.run(grid=grid)
    told = "\n".join(server.said) + files_below(tmp_path / "runs")
    if mode == "plain":  # so that this test could fail; names of files stay there
        assert MARKER in told or failure == "an unreadable image"
    else:
        assert MARKER not in told
        assert MARKER in "\n".join(server.at_nodes)
        assert "client clinic-a failed, see this node's log" in told


KINDS = [
    *("query.hello", "train.statistics", "evaluate.statistics", "query.temperature"),
    *("train", "query.keys", "query.share", "query.masked", "query.unmask"),
]


def requests() -> Iterator[RecordDict]:
    """Yield what is asked in all kinds of requests at once, and what makes no sense."""
    classifier = Classifier(torch.zeros(64, 5), torch.ones(5, dtype=torch.bool))
    config = with_labels(pack_feature_map(FeatureMap(64)), LABELS)
    config.update(dict(pack_temperatures(FeatureMap(64), (0.1,)).items()))
    for moments in (False, True):
        config["moments"] = moments
        asked = secure.ask_keys("attempt", config)
        yield RecordDict({**asked, "arrays": pack_classifier(classifier)})
    yield RecordDict({"config": ConfigRecord(), "arrays": ArrayRecord()})


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", [*FAILURES, "a bad config", "no client-id"])
def test_no_handler_tells_the_server_a_name(
    federation: Federation, mode: str, kind: str, failure: str, tmp_path: Path
) -> None:
    data = federation.folder("clinic-a").rename(tmp_path / MARKER)
    FAILURES.get(failure, foreign_class)(data)
    grid = make_grid(federation, mode, "clinic-a", data)
    context = grid.contexts[999]
    if failure == "a bad config":
        context.run_config["rounds"] = -1
    if failure == "no client-id":
        del context.node_config["client-id"]
    with listening() as server:
        replies = [
            server.run_client(Message(request, 999, kind), context)
            for request in requests()
        ]
    assert MARKER not in "\n".join(server.said)
    for reply in (reply for reply in replies if reply.has_error()):
        assert str(reply.error.reason).endswith("failed, see this node's log")
    # A plain hello opens no image, and keys are made before one is looked at.
    blind = failure == "an unreadable image" and kind == "query.hello"
    assert kind == "query.keys" or all(r.has_error() for r in replies[blind:2])
