"""From an experiment's base, points and axes to the runs of its grid."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fed3r_app.config import DEFAULTS, Config, check_setting
from fed3r_app.data import dataset_traits
from fed3r_app.files.yaml_file import Scalar, YamlValue, unknown
from fed3r_app.server.preflight import check_data_path

CLIENTS, SEED = "clients", "seed"
_RUNNER_KEYS = ("output-dir", "run-name", "resume")
_KEYS = {*DEFAULTS, CLIENTS}
Settings = dict[str, YamlValue]


@dataclass(frozen=True)
class ExperimentRun:
    """One cell of the grid: its place on each axis, as a person reads it, and settings.

    There are K ``clients``, ``per_round`` of them in a round (0: all at once); the run
    config is whole but for where the run is written to.
    """

    labels: Mapping[str, str]
    clients: int
    per_round: int
    config: Mapping[str, Scalar]

    @property
    def title(self) -> str:
        """The labels in one line."""
        return ", ".join(self.labels.values())

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """What makes two runs the same."""
        return (self.clients, *sorted(self.config.items()))


@dataclass(frozen=True)
class RunGrid:
    """Settings of all runs, named settings, and axes of either; checked when made.

    ``data_path`` replaces the run config's, unless it is "".
    """

    base: Settings
    points: Mapping[str, Settings]
    axes: Mapping[str, list[YamlValue]]
    data_path: str = ""

    def __post_init__(self) -> None:
        for settings in (self.base, *self.points.values()):
            for key, value in settings.items():
                _check_value(key, value)
        for name, values in self.axes.items():
            for value in values:
                self._check_axis(name, value)

    def _check_axis(self, name: str, value: YamlValue) -> None:
        if name in _KEYS:
            _check_value(name, value)
        elif not self.points:
            raise value.error(f"The axis {unknown(name, _KEYS)}")
        elif (text := str(value.scalar())) not in self.points:
            raise value.error(
                f"axes.{name} must list names of points ({', '.join(self.points)}), "
                f"since it is not a run-config key; got {text!r}."
            )

    def runs(self) -> list[ExperimentRun]:
        """Return all cells, the last axis fastest."""
        seen: dict[tuple[object, ...], ExperimentRun] = {}
        for cell in itertools.product(*self.axes.values()) if self.axes else ():
            run = self.run(dict(zip(self.axes, cell, strict=True)))
            same = seen.setdefault(run.identity, run)
            if same is not run:
                raise next(iter(self.axes.values()))[0].error(
                    f"two runs must not be the same, got {same.title!r} and "
                    f"{run.title!r}."
                )
        return list(seen.values())

    def run(self, cell: Mapping[str, YamlValue]) -> ExperimentRun:
        """Return the run of one value on each axis, whose settings go together."""
        settings, labels = dict(self.base), {}
        for name, value in cell.items():
            text = str(value.scalar())
            if name in _KEYS:
                settings[name], labels[name] = value, f"{name} {text}"
            else:
                settings, labels[name] = settings | self.points[text], text
        values = {key: _filled_in(value) for key, value in settings.items()}
        clients = values.pop(CLIENTS, None)
        where = next(iter(settings.values()))
        if type(clients) is not int:
            raise where.error(f"base.{CLIENTS} must say how many clients there are.")
        config = {**DEFAULTS, **values}
        if self.data_path and needs_data_path(config["dataset"]):
            config["data-path"] = os.path.abspath(os.path.expanduser(self.data_path))
        try:
            checked = Config.from_run_config(config)
            check_data_path(checked)
        except ValueError as error:
            # Where the first key stands that the message names.
            words = re.findall(r"[\w-]+", str(error))
            places = [settings[word] for word in words if word in settings]
            message = f"{error} (Run {', '.join(labels.values())!r}.)"
            raise (places or [where])[0].error(message) from None
        config = checked.to_run_config()
        for key in _RUNNER_KEYS:
            del config[key]
        return ExperimentRun(labels, clients, checked.per_round, config)


def _check_value(key: str, value: YamlValue) -> None:
    """Refuse a key that is not known here, or a value that it can't have."""
    if key in _RUNNER_KEYS:
        raise value.error(f"{key} is set by the runner and must not be in the file.")
    if key not in _KEYS:
        raise value.error(unknown(key, _KEYS.difference(_RUNNER_KEYS)))
    setting = value.whole() if key == CLIENTS else value.scalar()
    if key != CLIENTS:
        try:
            check_setting(key, setting)
        except ValueError as error:
            raise value.error(str(error)) from None


def _filled_in(value: YamlValue) -> Scalar:
    """Return a value with the environment variables ${NAME} of a text filled in."""

    def content(match: re.Match[str]) -> str:
        if found := os.environ.get(match[1]):
            return found
        raise value.error(
            f"{value.key} needs the environment variable {match[1]}, which is not set."
        )

    text = value.scalar()
    return re.sub(r"\$\{(\w+)\}", content, text) if isinstance(text, str) else text


def needs_data_path(dataset: Scalar) -> bool:
    """Return whether a data set is read from files that the user has."""
    return dataset_traits(str(dataset)).needs_path
