"""The files of one run: where they lie, and how they are written and read.

No torch here: `fed3r show` reads a run without loading it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from fed3r_app.data.reading import RECIPE_VERSION
from fed3r_app.files import (
    append_line,
    file_lock,
    line_of,
    parse_object,
    plain,
    read_lines,
    replace_by_link,
    write_atomically,
)
from fed3r_app.runs.formats import (
    FORMAT,
    V0_1,
    check_format,
    header,
    split_header,
    upgrade_config,
    upgrade_recipe,
)

LATEST = "latest"
OUTPUT_VARIABLE = "FED3R_OUTPUT_DIR"


def output_directory(output_dir: str = "") -> Path:
    """Return the absolute folder of all runs.

    It is output-dir, else the environment variable FED3R_OUTPUT_DIR, else `results`
    under the current directory.
    """
    chosen = output_dir or os.environ.get(OUTPUT_VARIABLE) or "results"
    return Path(os.path.abspath(Path(chosen).expanduser()))


class _File:
    """The path of a file in the folder of a run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDirectory, owner: type[RunDirectory]) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run, which need not be there before a file is wanted."""

    path: Path

    config_path = _File("config.json")  # the run config as it was read
    metrics_path = _File("metrics.jsonl")  # one JSON line a round
    summary_path = _File("summary.json")  # the outcome, once the run is through
    confusion_path = _File("confusion.json")  # test images by class and prediction
    curves_path = _File("curves.png")  # the picture of the metrics
    model_path = _File("model.safetensors")
    statistics_path = _File("statistics.safetensors")  # those so far
    # The ones before those, for the case that the disk damages the last.
    earlier_statistics_path = _File("statistics.earlier.safetensors")
    ledger_path = _File("ledger.jsonl")  # who sent what when, and what became of it
    sketches_path = _File("sketches.jsonl")  # by which contributions are known again
    clients_path = _File("clients.json")  # who takes part, by name
    contributions_path = _File("contributions")  # a folder of those that were kept
    checkpoint_path = _File("checkpoint.safetensors")  # the fine-tuning's last round
    provenance_path = _File("provenance.jsonl")  # with what each part was computed
    lock_path = _File(".lock")  # held by the process that is at work

    @classmethod
    def open(cls, output_dir: str, run_name: str, resume: bool) -> RunDirectory:
        """Return the absolute directory of a run, made where needed.

        Parameters
        ----------
        output_dir : str
            See `output_directory`; `latest` in it is linked to the run.
        run_name : str
            Plain name of the folder; "" for a name made of the time.
        resume : bool
            Resume a run that is there, instead of refusing to touch it.
        """
        cls.check(output_dir, run_name, resume)
        parent = output_directory(output_dir)
        path = _make_folder(parent, run_name)
        replace_by_link(
            parent / LATEST,
            lambda link: link.symlink_to(path.name, target_is_directory=True),
        )
        return cls(path)

    @classmethod
    @contextmanager
    def reserved(cls, output_dir: str, run_name: str) -> Iterator[RunDirectory]:
        """Give the folder that a run is about to begin in, which nobody else gets.

        It is removed afterwards if the run has left nothing there.
        """
        run = cls(_make_folder(output_directory(output_dir), run_name))
        try:
            yield run
        finally:
            with suppress(OSError):  # it is not empty
                run.path.rmdir()

    @staticmethod
    def check(output_dir: str, run_name: str, resume: bool) -> None:
        """Raise what `open` would raise of these names; nothing is made."""
        _check_run_name(run_name, resume)
        if run_name:
            path = output_directory(output_dir) / run_name
            RunDirectory(path)._check_content(resume)

    def write_config(self, config: Mapping[str, object]) -> None:
        """Write config.json, with the version of how this run reads images."""
        _write_json(self.config_path, {"recipe": RECIPE_VERSION, **config})

    def read_config(self) -> dict[str, str | int | float | bool]:
        """Return config.json."""
        self._check_is_run()
        return upgrade_config(self.config_path, _read_json(self.config_path))

    def change_config(self, **changes: str) -> None:
        """Write config.json with other settings; images are read as before."""
        config = self.read_config()
        if config | changes != config:
            recipe = self.read_recipe()
            self.write_config(config | changes | {"recipe": recipe})

    def read_recipe(self) -> int:
        """Return how the run reads images: as it did when it began."""
        return upgrade_recipe(_read_json(self.config_path))

    def read_version(self) -> str:
        """Return the version of fed3r that config.json shows by its format, or ""."""
        values = _read_json(self.config_path)
        return "" if check_format(self.config_path, values) > V0_1 else "0.1"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the run meanwhile."""
        self._check_is_run()
        refusal = (
            f"{self.path} must not be in use, got a process that is at work there. "
            "Wait until it has ended, or end it."
        )
        with file_lock(self.lock_path, refusal):
            # What a process left that was killed in the middle of writing.
            for path in self.path.glob(f".*.{'[0-9a-f]' * 32}"):
                path.unlink(missing_ok=True)
            yield

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Write summary.json."""
        _write_json(self.summary_path, summary)

    def read_summary(self) -> dict[str, object]:
        """Return summary.json."""
        try:
            summary = _read_json(self.summary_path)
        except (FileNotFoundError, NotADirectoryError) as error:
            why = "Is this the folder of a run?"
            if self._has_files():
                why = (
                    f"Did the run fail, or is it still going? See {self.metrics_path}."
                )
            raise FileNotFoundError(
                f"{self.path} must hold a finished run, got no "
                f"{self.summary_path.name} there. {why}"
            ) from error
        check_format(self.summary_path, summary)
        summary.pop("format", None)
        return summary

    def write_clients(
        self, clients: Iterable[str], versions: Mapping[str, str] | None = None
    ) -> None:
        """Write clients.json: who takes part, whether it has replied or not.

        ``versions`` are those of fed3r that are installed at some of them.
        """
        known = {**self.read_versions(), **(versions or {})}
        about = {"format": FORMAT, "clients": sorted(clients), "versions": known}
        write_atomically(self.clients_path, line_of(about).encode())

    def read_versions(self) -> dict[str, str]:
        """Return which version of fed3r is installed at clients, as far as is known."""
        values = _read_json(self.clients_path) if self.clients_path.is_file() else {}
        versions = values.get("versions")
        return {**versions} if isinstance(versions, dict) else {}

    def read_clients(self) -> list[str]:
        """Return who takes part, as far as the run has come to know."""
        if not self.clients_path.is_file():
            return []
        values = _read_json(self.clients_path)
        check_format(self.clients_path, values)
        names = values.get("clients")
        return [str(name) for name in names] if isinstance(names, list) else []

    def write_confusion(
        self, classes: Sequence[str], counts: Sequence[tuple[int, int, int]]
    ) -> None:
        """Write confusion.json; remove that of an earlier model if there are no counts.

        Parameters
        ----------
        classes : sequence of str
            The names of all classes.
        counts : sequence of (class, predicted class, test images)
            Only pairs with images: a matrix of thousands of classes is mostly empty.
        """
        if not counts:
            self.confusion_path.unlink(missing_ok=True)
            return
        values = {"format": FORMAT, "classes": list(classes), "counts": list(counts)}
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        write_atomically(self.confusion_path, text.encode() + b"\n")

    def read_confusion(self) -> tuple[list[str], list[tuple[int, int, int]]]:
        """Return the names of the classes and the counts of confusion.json."""
        path = self.confusion_path
        values: dict[str, Any] = _read_json(path)
        check_format(path, values)
        try:
            classes = [str(name) for name in values["classes"]]
            counts = [
                (int(i), int(j), int(number)) for i, j, number in values["counts"]
            ]
            for i, j, _ in counts:
                classes[i], classes[j]  # both are there
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must hold classes and counts. Is the file damaged?"
            ) from error
        return classes, counts

    def append_metrics(self, values: Mapping[str, object]) -> None:
        """Add a line to metrics.jsonl; it is in the file when this returns."""
        append_line(self.metrics_path, values, header("metrics"))

    def read_metrics(self) -> list[dict[str, object]]:
        """Return the lines of metrics.jsonl, without a last one that was cut off."""
        return split_header(self.metrics_path, read_lines(self.metrics_path))[1]

    def drop_metrics_after(self, last_round: int) -> None:
        """Keep the metrics up to a round: those of a run that is resumed from there."""
        first, lines = split_header(self.metrics_path, read_lines(self.metrics_path))
        kept = [v for v in lines if cast(float, v.get("round", 0)) <= last_round]
        text = "".join(map(line_of, first + kept))
        write_atomically(self.metrics_path, text.encode())

    def _check_is_run(self) -> None:
        """Raise unless a run has begun in the folder."""
        if not self.config_path.is_file():
            raise FileNotFoundError(
                f"{self.path} must be the folder of a run, got no "
                f"{self.config_path.name} there."
            )

    def _check_content(self, resume: bool) -> None:
        """Raise unless the folder has what is expected: a run that began, or none."""
        name = f"run-name = {self.path.name!r}"
        if resume and not self.config_path.is_file():
            raise ValueError(
                f"{name}: {self.path} must hold a run when resume = true, got no "
                f"{self.config_path.name} there. Set resume = false to begin a run."
            )
        if not resume and self._has_files():
            raise ValueError(
                f"{name}: {self.path} already holds a run. Choose another run-name "
                "or set resume = true."
            )

    def _has_files(self) -> bool:
        """Return whether there is any file of a run."""
        models = (self.model_path, self.checkpoint_path, self.statistics_path)
        results = (self.summary_path, self.curves_path, *models)
        begun = (self.config_path, self.metrics_path, self.ledger_path)
        return any(path.exists() for path in (*begun, *results))


def _check_run_name(run_name: str, resume: bool) -> None:
    if resume and not run_name:
        raise ValueError(
            "run-name must name the run to resume when resume = true, got ''."
        )
    is_plain = re.fullmatch(r"\w[^/\\]*", run_name) and run_name.isprintable()
    if run_name == LATEST or (run_name and not is_plain):
        raise ValueError(
            "run-name must be a plain folder name that begins with a letter or digit "
            f"and is not {LATEST!r}, got {run_name!r}."
        )


def _make_folder(parent: Path, run_name: str) -> Path:
    """Return the folder of that name, or a new one named after the time."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = parent / run_name if run_name else _new_folder(parent)
        path.mkdir(exist_ok=True)
        # A folder that was there before may still be closed to us.
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise OSError(
            f"output-dir must be a folder that can be written to, got {parent} "
            f"({error.strerror})."
        ) from error
    return path


def _new_folder(parent: Path) -> Path:
    """Return a new folder named after the time."""
    stamp, number = datetime.now().strftime("%Y-%m-%d_%H-%M-%S"), 1
    while True:
        path = parent / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            path.mkdir()
            return path
        except FileExistsError:  # a run begun in the same second
            number += 1


def _read_json(path: Path) -> dict[str, object]:
    return parse_object(path.read_text("utf-8", errors="replace"), str(path))


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    values = {"format": FORMAT, **values}
    text = json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")
