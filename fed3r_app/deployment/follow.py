"""A run on a SuperLink, followed from here to its end.

Whatever is killed on the way is named, with the time since which it is missing: the
SuperLink, a node, the ServerApp. The run itself does not need who follows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from fed3r_app.console import logs
from fed3r_app.deployment.nodes import OFFLINE, list_nodes
from fed3r_app.deployment.relay import Relay
from fed3r_app.deployment.superlink import COMPLETED, SuperLink
from fed3r_app.errors import RunError
from fed3r_app.words import first_names, plural, run_again

_STOPPED = "finished:stopped"
_AGAIN_SECONDS = 1.0  # until the next attempt to reach the SuperLink
# Of silence, before it is said who is missing. A ServerApp that waits speaks up every
# minute: later it must have missed that.
_SILENCE_SECONDS, LATER_SECONDS = 15.0, 75.0
_MOST_NAMED = 5


class _End(NamedTuple):
    """The last status of a run, or why there is none."""

    status: str
    reason: str = ""


def run_app(superlink: SuperLink, app: Path, run_config: Sequence[str]) -> None:
    """Run an app with live output; raise RunError unless it completes."""
    superlink.check()
    run = superlink.start(app, run_config)
    try:
        Follower(superlink, run).follow()
    except KeyboardInterrupt:
        again = f"fed3r run {superlink.address} --follow {run}"
        said = f"Run {run} goes on without this command. To see it again: {again}"
        logs.show(logs.Line(time.time(), INFO, said))
        raise


@dataclass(eq=False)
class Follower:
    """Shows the log of a run.

    ``patience`` are the seconds of silence before it is said who is missing.
    """

    superlink: SuperLink
    run: int
    relay: Relay = field(default_factory=Relay)
    patience: float = _SILENCE_SECONDS
    _heard: SimpleQueue[str | _End] = field(default_factory=SimpleQueue)
    _after: float = 0.0  # up to when the log was read, by the SuperLink's clock
    _readers: int = 0  # started so far; all but the last one end
    _last: float = field(default_factory=time.time)  # when something was heard
    _lost: float = 0.0  # since when there is no connection; 0 if there is one
    _loss: float = 0.0  # the one that was said
    _spoke: float = 0.0  # when something was said here

    def follow(self, timeout: float = float("inf")) -> None:
        """Show the log to the end of the run; raise RunError unless it completed."""
        deadline, end = time.monotonic() + timeout, _End("")
        self._start_reader()
        while time.monotonic() < deadline and not (end.status or end.reason):
            try:
                heard = self._heard.get(timeout=_AGAIN_SECONDS)
            except Empty:
                self._look_after_silence()
                continue
            self._last = time.time()
            if isinstance(heard, _End):
                end = heard
            else:
                self.relay.write(heard)
        self._readers += 1  # the last reader ends, too
        self.relay.close()
        if end.status != COMPLETED:
            raise RunError(self._reason(end))

    def _start_reader(self) -> None:
        self._readers += 1
        threading.Thread(target=self._read, args=(self._readers,), daemon=True).start()

    def _read(self, number: int) -> None:
        """Read the log to the end of the run, through any number of connections."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        while number == self._readers:
            try:
                status = self.superlink.status(run_id=self.run)
                self._lost = 0.0
                request = StreamLogsRequest(
                    run_id=self.run, after_timestamp=self._after
                )
                with self.superlink.control() as control:
                    for part in control.StreamLogs(request):
                        if number != self._readers:
                            return
                        self._after = max(self._after, part.latest_timestamp)
                        self._heard.put(part.log_output)
                if status.startswith("finished"):  # before the log was read to its end
                    self._heard.put(_End(status))
                    return
            except RunError as error:
                self._heard.put(_End("", f"{error} Was it started without --database?"))
                return
            except (OSError, ValueError):  # no connection, or one that broke
                self._lost = self._lost or time.time()
            time.sleep(_AGAIN_SECONDS)

    def _look_after_silence(self) -> None:
        """Say who is missing if nothing was heard for long, and when it is back."""
        if self._loss and not self._lost:
            self._say("The SuperLink answers again.", INFO)
            self._loss, self._last = 0.0, time.time()
        is_new_loss = self._lost > self._loss
        patience = _SILENCE_SECONDS if is_new_loss else self.patience
        if time.time() - max(self._last, self._spoke) < patience:
            return
        self._loss, self.patience = self._lost, LATER_SECONDS
        self._say(self._who_is_missing())
        if not self._lost:  # a connection may be dead without a word
            self._start_reader()

    def _say(self, text: str, level: int = WARNING) -> None:
        self._spoke = time.time()
        logs.show(logs.Line(self._spoke, level, text))

    def _who_is_missing(self) -> str:
        since = _clock(self._last)
        try:
            status = self.superlink.status(run_id=self.run)
            nodes = list_nodes(self.superlink)
        except OSError as error:
            return f"{error} Nothing was heard since {since}. The run may go on."
        if status.startswith("pending"):
            return (
                f"No SuperExec has taken the run since {since}. Is one connected to "
                f"{self.superlink.address}?"
            )
        gone = [
            f"{node.name} since {_clock(node.since.timestamp())}"
            for node in nodes
            if node.name and node.status == OFFLINE and node.since
        ]
        online = plural(sum(node.is_online for node in nodes), "node")
        if gone:
            return (
                f"No sign of {first_names(gone, _MOST_NAMED)}. {online} online. The "
                f"ServerApp was last heard at {since}."
            )
        there = f", {online} online" if nodes else ""  # none in a simulation
        return (
            f"Nothing from the ServerApp since {since}. The SuperLink answers{there}. "
            "If the ServerApp is gone, Flower notices within a minute."
        )

    def _reason(self, end: _End) -> str:
        if end.reason or self.relay.error:
            return end.reason or self.relay.error
        if end.status == _STOPPED:
            return f"Run {self.run} was stopped."
        if self.relay.crash:
            return f"Run {self.run} failed: {self.relay.crash} (--verbose says where)."
        said = (
            f"Run {self.run} failed: its ServerApp ended without a word after "
            f"{_clock(self.relay.last)}. Was it killed, or out of memory?"
        )
        if not self.relay.directory:
            return said
        place = Path(self.relay.directory)
        return (
            f"{said} What it has saved is in {place}. To resume it, "
            f"{run_again(place.name)}."
        )


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
