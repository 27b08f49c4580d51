"""What can be known of a run before anything is started: its settings, data and names.

Whoever starts runs asks here first: ``fed3r simulate``, ``fed3r run`` and experiments.
An error is one sentence. torch is imported last, once all else is right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fed3r_app.config import OF_ONE_RUN, RETIRED, SECAGG, Config, Value, check_setting
from fed3r_app.config.text import is_settings_file, parse_settings, read_settings
from fed3r_app.data import dataset_traits, load_dataset
from fed3r_app.data.partition import check_split
from fed3r_app.features.spec import WEIGHTS, BackboneSpec
from fed3r_app.privacy import SMALLEST_GROUP
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.formats import upgrade_config
from fed3r_app.runs.trackers import check_tracker

_MOST_BY_DEFAULT = 10


def given_settings(
    words: Sequence[str],
    run_config: Sequence[str] = (),
    file: Path | None = None,
    fixed: Mapping[str, Value] | None = None,
) -> dict[str, Value]:
    """Return the settings in the words of a command line, over those of a file.

    Keys, values and what goes together have been checked.

    Parameters
    ----------
    words : sequence of str
        ``key=value``, as `config.text` reads them.
    run_config : sequence of str
        What ``flwr run`` has as --run-config: more of them, or the name of a file.
    file : Path or None
        A file of settings, or the config.json of a run to repeat.
    fixed : Mapping or None
        What the command itself sets.
    """
    files = [Path(word) for word in run_config if is_settings_file(word)]
    files += [file] if file else []
    if len(files) > 1:
        shown = " and ".join(map(str, files))
        raise ValueError(f"--config must be given once, got {shown}.")
    settings = dict(fixed or {})
    for each in files:
        settings |= _file_settings(each)
    more = [word for word in run_config if not is_settings_file(word)]
    settings |= parse_settings([*words, *more])
    Config.from_run_config(settings)
    return settings


def check_simulation(config: Config, clients: int | None = None) -> int:
    """Return the number of clients of a simulation; raise if there can't be one.

    By default there are the data set's natural clients where they are the split, one
    for each class where that is, and ten otherwise.
    """
    if config.is_local:
        raise ValueError(
            "dataset must be one that simulated clients can share, got "
            f"{config.dataset!r}, which is for real nodes. Images of your own are "
            "'imagefolder'."
        )
    check_tracker(config.tracker)
    RunDirectory.check(config.output_dir, config.run_name, config.resume)
    check_data_path(config)
    data = load_dataset(config.dataset, config.data_path, config.test_share)
    if clients is None:
        clients = _MOST_BY_DEFAULT
        if config.partition == "natural" and data.clients is not None:
            clients = len(data.clients)
        elif config.partition == "by-class":
            clients = len(data.class_names)
    check_split(data, config.partition, clients, config.alpha)
    _check_number(config, clients)
    _check_backbone(config, data.feature_dim)
    return clients


def new_spec(config: Config) -> BackboneSpec:
    """Return the backbone of a run that begins."""
    name, weights, size = config.backbone, config.weights, config.input_size
    return BackboneSpec(name, weights, size, intensity=config.intensity)


def check_data_path(config: Config) -> None:
    """Refuse a data set whose folder is not there."""
    if not dataset_traits(config.dataset).needs_path:
        return
    if not config.data_path:
        raise ValueError(
            f"data-path must name the folder of dataset = {config.dataset!r}, got ''."
        )
    if not os.path.isdir(os.path.expanduser(config.data_path)):
        raise ValueError(
            f"data-path must be an existing folder, got {config.data_path!r}. A "
            f"relative path starts from {Path.cwd()}. Make an empty folder if the data "
            "is to be downloaded there."
        )


def _file_settings(file: Path) -> dict[str, Value]:
    """Return the settings in a file; of a run's config.json, what can be repeated."""
    settings: Mapping[str, Value] = read_settings(file)
    try:
        if settings.keys() >= set(OF_ONE_RUN):
            settings = upgrade_config(file, settings)
            settings = {k: v for k, v in settings.items() if k not in OF_ONE_RUN}
        for key, value in settings.items():
            if key not in RETIRED:
                check_setting(key, value)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return dict(settings)


def _check_number(config: Config, clients: int) -> None:
    """Refuse settings that ask for more clients than there are."""
    for key, number in (
        ("wait-for", config.wait_for),
        ("min-clients", config.min_clients),
    ):
        if number > clients:
            raise ValueError(
                f"{key} must be <= {clients}, the number of clients, got {number}."
            )
    if config.privacy == SECAGG and clients < SMALLEST_GROUP:
        raise ValueError(
            f"The number of clients must be >= {SMALLEST_GROUP} with privacy = "
            f"{SECAGG!r}, got {clients}."
        )


def _check_backbone(config: Config, feature_dim: int | None) -> None:
    """Refuse a device, a network or weights that are not there, or no weights."""
    from fed3r_app.features.backbone import load_backbone, resolve_device

    resolve_device(config.device)
    if config.resume:  # it is as the run's beginning says
        return
    backbone = load_backbone(new_spec(config), feature_dim)
    for part in backbone.parts:
        is_plain = ":" not in part.name and part.spec.weights in WEIGHTS
        if part.has_weights and not is_plain:
            _ = part.module  # a file may hold anything, and so may a function return
