"""From an experiment's base, points and axes to the runs of its grid."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fed3r_app.config import Config, check_setting
from fed3r_app.data import PACKAGED
from simulation.runner.yaml_file import (
    ExperimentError,
    Scalar,
    YamlValue,
    refuse_repetition,
    unknown,
)

CLIENTS, SEED = "clients", "seed"
# What the runner decides.
_OURS = ("output-dir", "run-name", "resume")
Settings = dict[str, YamlValue]


@dataclass(frozen=True)
class Run:
    """One cell of the grid.

    Parameters
    ----------
    labels : mapping
        Its place on each axis, as a person reads it.
    clients : int
        K, the number of simulated clients.
    per_round : int
        Clients a round; 0 is all at once.
    config : mapping
        The whole run config but for where it is written to.
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
class Grid:
    """Base, points and axes of an experiment, checked.

    Parameters
    ----------
    defaults : mapping
        The run config of the app.
    base : mapping
        Settings of all runs.
    points : mapping
        Named settings.
    axes : mapping
        Values of each axis: of a run-config key, or names of points.
    data_path : str
        Replaces data-path, unless it is "".
    """

    defaults: Mapping[str, Scalar]
    base: Settings
    points: Mapping[str, Settings]
    axes: Mapping[str, list[YamlValue]]
    data_path: str = ""

    def check(self) -> None:
        """Refuse keys that are not known and values that can't be."""
        for settings in (self.base, *self.points.values()):
            for key, entry in settings.items():
                _check_value(key, entry, self.defaults)
        for name, values in self.axes.items():
            refuse_repetition(values)
            for value in values:
                if self._is_key(name):
                    _check_value(name, value, self.defaults)
                elif str(value.scalar()) not in self.points:
                    raise value.error(self._no_point(name, str(value.scalar())))

    def runs(self) -> list[Run]:
        """Return all cells, the last axis fastest."""
        cells = itertools.product(*self.axes.values())
        runs = [self.run(dict(zip(self.axes, cell, strict=True))) for cell in cells]
        seen: dict[tuple[object, ...], Run] = {}
        for run in runs:
            if run.identity in seen:
                axes = next(iter(self.axes.values()))[0]
                raise axes.error(
                    f"two runs must not be the same, got {seen[run.identity].title!r} "
                    f"and {run.title!r}."
                )
            seen[run.identity] = run
        return runs

    def run(self, cell: Mapping[str, YamlValue]) -> Run:
        """Return the run of one value on each axis."""
        settings, labels = dict(self.base), {}
        for name, value in cell.items():
            text = str(value.scalar())
            if self._is_key(name):
                settings[name] = value
                labels[name] = f"{name} {text}"
            else:
                settings |= self.points[text]
                labels[name] = text
        return self._checked(labels, settings)

    def _checked(self, labels: Mapping[str, str], settings: Settings) -> Run:
        """Return a run whose settings go together and whose data is there."""
        values = {key: expanded(entry) for key, entry in settings.items()}
        clients = values.pop(CLIENTS, None)
        where = next(iter(settings.values()))
        if type(clients) is not int:
            raise where.error(f"base.{CLIENTS} must say how many clients there are.")
        config = {**self.defaults, **values}
        if self.data_path and needs_data_path(str(config["dataset"])):
            config["data-path"] = os.path.abspath(os.path.expanduser(self.data_path))
        try:
            checked = Config.from_run_config(config)
        except ValueError as error:
            # Where the first key stands that the sentence names.
            words = re.findall(r"[\w-]+", str(error))
            places = [settings[word] for word in words if word in settings]
            title = ", ".join(labels.values())
            sentence = f"{error} (Run {title!r}.)"
            raise (places or [where])[0].error(sentence) from None
        config = checked.to_run_config()
        _check_data_path(config, settings.get("dataset", where))
        for key in _OURS:
            del config[key]
        return Run(labels, clients, checked.per_round, config)

    def _is_key(self, axis: str) -> bool:
        return axis in self.defaults or axis == CLIENTS

    def _no_point(self, axis: str, value: str) -> str:
        """Return the sentence on a value that names no point."""
        keys = (*self.defaults, CLIENTS)
        if not self.points:
            return f"The axis {unknown(axis, keys)}"
        names = ", ".join(self.points)
        return (
            f"axes.{axis} must list names of points ({names}), since it is not a "
            f"run-config key; got {value!r}."
        )


def expanded(entry: YamlValue) -> Scalar:
    """Return a value with the environment variables ${NAME} of a text filled in."""
    value = entry.scalar()
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if not os.environ.get(name):
            raise entry.error(
                f"{entry.key} needs the environment variable {name}, which is not set."
            )
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", fill, value)


def _check_value(key: str, entry: YamlValue, defaults: Mapping[str, Scalar]) -> None:
    """Refuse a key that is not known here, or a value that it can't have."""
    if key == CLIENTS:
        entry.whole()
        return
    allowed = [name for name in defaults if name not in _OURS]
    if key in _OURS:
        raise entry.error(f"{key} is set by the runner and must not be in the file.")
    if key not in allowed:
        raise entry.error(unknown(key, (*allowed, CLIENTS)))
    try:
        check_setting(key, entry.scalar())
    except ExperimentError:
        raise
    except ValueError as error:
        raise entry.error(str(error)) from None


def _check_data_path(config: Mapping[str, Scalar], where: YamlValue) -> None:
    """Refuse a data set whose folder is not there."""
    dataset, path = str(config["dataset"]), str(config["data-path"])
    if not needs_data_path(dataset):
        return
    if not path:
        raise where.error(
            f"data-path must name the folder of dataset = {dataset!r}, got ''. Give "
            "--data-path DIR, or base.data-path in the file."
        )
    if not os.path.isdir(os.path.expanduser(path)):
        raise where.error(
            f"data-path must be an existing folder, got {path!r}. Make an empty one "
            "first if the data is to be downloaded there."
        )


def needs_data_path(dataset: str) -> bool:
    """Return whether a data set is read from files that the user has."""
    return dataset not in PACKAGED and not dataset.startswith("synthetic")
