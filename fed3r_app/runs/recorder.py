"""What a run leaves behind on its way: its costs, metrics and log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from logging import INFO
from typing import Any

from flwr.common.logger import log

from fed3r_app.runs.curves import plot_run
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.provenance import summary_block
from fed3r_app.runs.report import format_bytes, summary_table
from fed3r_app.runs.trackers import Guarded
from fed3r_app.words import plural

Progress = dict[str, int | float]
_BYTES = (
    *("upload_bytes", "download_bytes"),
    *("paper_upload_bytes", "paper_download_bytes"),
)
SUMMARY = "The run has ended"  # and what came of it
# What a line of log says of a round's values, where they are known, and of how many
# clients.
_WORDS: dict[str, Callable[[Any, int], str]] = {
    "clients_counted": lambda n, total: f"{n} of {plural(total, 'client')} counted",
    "clients_trained": lambda n, _: f"{plural(n, 'client')} trained",
    "accuracy": lambda accuracy, _: f"accuracy {accuracy:.2%}",
    "train_loss": lambda loss, _: f"training loss {loss:.4f}",
    "ridge_lambda": lambda lam, _: f"lambda {lam:.3g}",
}


class Recorder:
    """Adds up a run's rounds, bytes, FLOPs and seconds and writes them down.

    ``progress`` is what an earlier part of the run added up; its later metrics are
    dropped.
    """

    def __init__(
        self,
        directory: RunDirectory,
        num_clients: int,
        progress: Progress,
        tracker: Guarded,
    ) -> None:
        self._directory = directory
        self._tracker = tracker
        self._num_clients = num_clients
        self.rounds = int(progress.get("rounds", 0))
        self._bytes = {key: int(progress.get(key, 0)) for key in _BYTES}
        # A mean over the clients of then: the sum stays, however many have come since.
        clients_then = progress.get("clients", num_clients)
        flops_then = float(progress.get("flops_per_client", 0.0))
        self._flops = flops_then * (clients_then / num_clients)
        self._started = time.monotonic() - progress.get("seconds", 0.0)
        directory.drop_metrics_after(self.rounds)

    def add_costs(
        self,
        *,
        up: int = 0,
        down: int = 0,
        paper_up: int = 0,
        paper_down: int = 0,
        flops: float = 0.0,
    ) -> None:
        """Add real bytes, the paper's bytes, and the paper's FLOPs of all clients."""
        added = (up, down, paper_up, paper_down)
        for key, number in zip(_BYTES, added, strict=True):
            self._bytes[key] += number
        self._flops += flops / self._num_clients

    def set_clients(self, num_clients: int) -> None:
        """Take another number of clients: some have come, costs are means over all."""
        self._flops *= self._num_clients / num_clients
        self._num_clients = num_clients

    def end_round(self, values: Mapping[str, object], *, log_it: bool = True) -> None:
        """Write a line of metrics for a round, and a line of log where that is due."""
        self.rounds += 1
        about = {"round": self.rounds, "clients": self._num_clients}
        line = {**about, **values, **self.costs()}
        self._directory.append_metrics(line)
        self._tracker.log(line, self.rounds)
        if not log_it:  # the bar of its phase has moved
            return
        words = [
            text(line[key], self._num_clients)
            for key, text in _WORDS.items()
            if line.get(key) is not None
        ]
        sent = f"{format_bytes(self._bytes['upload_bytes'])} up"
        log(INFO, " | ".join([f"round {self.rounds}", *words, sent]))

    def costs(self) -> Progress:
        """Return all costs so far."""
        return {
            **self._bytes,
            "flops_per_client": self._flops,
            "seconds": round(time.monotonic() - self._started, 3),
        }

    def progress(self) -> Progress:
        """Return what a resumed run starts from."""
        return {"rounds": self.rounds, "clients": self._num_clients, **self.costs()}

    def finish(self, outcome: Mapping[str, object]) -> None:
        """Write the summary and the picture, and show both."""
        summary = {
            **outcome,
            "rounds": self.rounds,
            **self.costs(),
            "provenance": summary_block(self._directory),
        }
        self._directory.write_summary(summary)
        plot_run(self._directory, self._directory.curves_path)
        self._tracker.finish(summary, self._directory.curves_path, self.rounds)
        log(INFO, "%s:\n\n%s\n", SUMMARY, summary_table(summary))
        log(INFO, "Results: %s", self._directory.path)
        log(INFO, "Picture: %s", self._directory.curves_path)
