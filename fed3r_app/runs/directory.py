"""The files of one run: where they lie, and how they are written and read.

No torch here: `fed3r show` reads a run without loading it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import cast

from fed3r_app.files import (
    append_line,
    file_lock,
    line_of,
    parse_object,
    plain,
    read_lines,
    write_atomically,
)
from fed3r_app.runs.formats import (
    FORMAT,
    check_format,
    header,
    split_header,
    upgrade_config,
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


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run.

    Parameters
    ----------
    path : Path
        Absolute where it comes from `open`; not looked at before a file is wanted.
    """

    path: Path

    @classmethod
    def open(cls, output_dir: str, run_name: str, resume: bool) -> RunDirectory:
        """Return the directory of a run, made where needed and linked as `latest`.

        Parameters
        ----------
        output_dir : str
            See `output_directory`.
        run_name : str
            Plain name of the folder; "" for a name made of the time.
        resume : bool
            Go on with a run that is there, instead of refusing to touch it.
        """
        _check_run_name(run_name, resume)
        parent = output_directory(output_dir)
        if run_name:
            cls(parent / run_name)._check_content(resume)
        try:
            path = _make_folder(parent, run_name)
            # A folder that was there before may still be closed to us.
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise OSError(
                f"output-dir must be a folder that can be written to, got {parent} "
                f"({error.strerror})."
            ) from error
        _link_latest(path)
        return cls(path)

    @property
    def config_path(self) -> Path:
        """The run config as it was read."""
        return self.path / "config.json"

    @property
    def metrics_path(self) -> Path:
        """One JSON line a round."""
        return self.path / "metrics.jsonl"

    @property
    def summary_path(self) -> Path:
        """The outcome; it is there once the run is through."""
        return self.path / "summary.json"

    @property
    def curves_path(self) -> Path:
        """The picture of the metrics."""
        return self.path / "curves.png"

    @property
    def model_path(self) -> Path:
        """The classifier and what its features are made with."""
        return self.path / "model.safetensors"

    @property
    def statistics_path(self) -> Path:
        """The statistics so far."""
        return self.path / "statistics.safetensors"

    @property
    def earlier_statistics_path(self) -> Path:
        """The statistics before those, for the case that the disk damages the last."""
        return self.path / "statistics.earlier.safetensors"

    @property
    def ledger_path(self) -> Path:
        """Who sent what when, and what became of it; one JSON line each."""
        return self.path / "ledger.jsonl"

    @property
    def contributions_path(self) -> Path:
        """Folder of the contributions that were kept."""
        return self.path / "contributions"

    @property
    def checkpoint_path(self) -> Path:
        """The fine-tuning after its last round."""
        return self.path / "checkpoint.safetensors"

    def write_config(self, config: Mapping[str, object]) -> None:
        """Write config.json."""
        _write_json(self.config_path, config)

    def read_config(self) -> dict[str, str | int | float | bool]:
        """Return config.json."""
        self._check_is_run()
        text = self.config_path.read_text("utf-8", errors="replace")
        config = parse_object(text)
        if config is None:
            raise ValueError(
                f"{self.config_path} must be a JSON object, got something else. Is the "
                "file damaged?"
            )
        return upgrade_config(self.config_path, config)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the run meanwhile."""
        self._check_is_run()
        refusal = (
            f"{self.path} must not be in use, got a process that is at work there. "
            "Wait until it has ended, or end it."
        )
        with file_lock(self.path / ".lock", refusal):
            self._drop_torn_files()
            yield

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Write summary.json."""
        _write_json(self.summary_path, summary)

    def read_summary(self) -> dict[str, object]:
        """Return summary.json."""
        try:
            text = self.summary_path.read_text("utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(
                f"{self.path} must hold a finished run, got no "
                f"{self.summary_path.name} there. {self._why_unfinished()}"
            ) from error
        summary = parse_object(text)
        if summary is None:
            raise ValueError(
                f"{self.summary_path} must be a JSON object, got something else. "
                "Is the file damaged?"
            )
        check_format(self.summary_path, summary)
        summary.pop("format", None)
        return summary

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
        if not resume and any(path.exists() for path in self._files()):
            raise ValueError(
                f"{name}: {self.path} already holds a run. Choose another run-name "
                "or set resume = true."
            )

    def _drop_torn_files(self) -> None:
        """Remove what a process left that was killed in the middle of writing."""
        for path in self.path.glob(f".*.{'[0-9a-f]' * 32}"):
            path.unlink(missing_ok=True)

    def _files(self) -> tuple[Path, ...]:
        models = (self.model_path, self.checkpoint_path)
        results = (self.summary_path, self.curves_path, self.statistics_path, *models)
        return (self.config_path, self.metrics_path, self.ledger_path, *results)

    def _why_unfinished(self) -> str:
        """Return a sentence on what the absence of a summary may mean."""
        if not any(path.exists() for path in self._files()):
            return "Is this the folder of a run?"
        return f"Did the run fail, or is it still going? See {self.metrics_path}."


def _check_run_name(run_name: str, resume: bool) -> None:
    if resume and not run_name:
        raise ValueError(
            "run-name must name the run to resume when resume = true, got ''."
        )
    if run_name == LATEST or (run_name and not re.fullmatch(r"\w[^/\\\0]*", run_name)):
        raise ValueError(
            "run-name must be a plain folder name that begins with a letter or digit "
            f"and is not {LATEST!r}, got {run_name!r}."
        )


def _make_folder(parent: Path, run_name: str) -> Path:
    """Return the folder of that name, or a new one named after the time."""
    parent.mkdir(parents=True, exist_ok=True)
    if run_name:
        (parent / run_name).mkdir(exist_ok=True)
        return parent / run_name
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    names = chain([stamp], (f"{stamp}_{number}" for number in count(2)))
    # Runs begun in the same second: each takes the first name that is free.
    return next(parent / name for name in names if _make_new(parent / name))


def _make_new(path: Path) -> bool:
    """Make a folder, and return whether it was not there before."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def _link_latest(path: Path) -> None:
    """Let `latest` beside the run point to it; a system without links does without."""
    temporary = path.parent / f".{LATEST}-{uuid.uuid4().hex}"
    try:
        temporary.symlink_to(path.name, target_is_directory=True)
        os.replace(temporary, path.parent / LATEST)
    except OSError:
        temporary.unlink(missing_ok=True)


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    values = {"format": FORMAT, **values}
    text = json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")
