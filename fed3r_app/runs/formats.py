"""The version of every file of a run, and how files of earlier versions are read.

============================  ====================================================
file                          where its version is
============================  ====================================================
config.json, summary.json     "format", a key; without it: 0.1
metrics.jsonl, ledger.jsonl   first line, {"format": 2, "kind": …}; without it: 0.1
*.safetensors                 end of "kind" in the metadata
============================  ====================================================

An earlier version is upgraded when it is read, so that the run stays what it was; a
later one is refused. A changed format gets the next number and an entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fed3r_app.config.versions import CONFIG_V0_1
from fed3r_app.data.reading import V0_1_READING

FORMAT = 2
STATISTICS = "statistics of Fed3R, version 3"
CHECKPOINT = "checkpoint of Fed3R's fine-tuning, version 2"
MODEL = "model of Fed3R, version 2"
CONTRIBUTION = "contribution of a client to Fed3R, version 1"
V0_1 = 1
_CONFIGS = {V0_1: CONFIG_V0_1}
# Keys of the settings that a resumed run must share, and that 0.1 did not write.
_SETTINGS_V0_1 = {"recipe": V0_1_READING, "test-share": 0.0}
_TRAINING_V0_1 = ("clip-norm", "local-prior", "refit-every")


def header(kind: str) -> dict[str, object]:
    """Return the first line of a file of JSON lines."""
    return {"format": FORMAT, "kind": kind}


def split_header(
    path: Path, lines: list[dict[str, object]]
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return the header of a file of JSON lines, if it has one, and the lines."""
    if not lines or lines[0].keys() != header("").keys():
        return [], lines
    check_format(path, lines[0])
    return lines[:1], lines[1:]


def check_format(path: Path, values: Mapping[str, object]) -> int:
    """Return the version of a file's content; raise if it is a later one."""
    version = values.get("format", V0_1)
    if not isinstance(version, int) or not V0_1 <= version <= FORMAT:
        raise ValueError(
            f"{path} must have format {FORMAT} or an earlier one, got {version!r}. It "
            "was written by a newer version of fed3r: update this one."
        )
    return version


def upgrade_config(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config as the version that wrote it understood it."""
    earlier = _CONFIGS.get(check_format(path, values), {})
    about_file = ("format", "recipe")
    return {**earlier, **{k: v for k, v in values.items() if k not in about_file}}


def upgrade_recipe(values: Mapping[str, Any]) -> int:
    """Return how the run of a config.json reads images."""
    return int(values.get("recipe", V0_1_READING))


def upgrade_settings(about: dict[str, Any]) -> dict[str, Any]:
    """Return what 0.1 says about statistics, with all settings."""
    return about | {"settings": _SETTINGS_V0_1 | about["settings"]}


def upgrade_checkpoint(about: dict[str, Any]) -> dict[str, Any]:
    """Return what 0.1 says about a checkpoint, with all settings."""
    training = {key: CONFIG_V0_1[key] for key in _TRAINING_V0_1}
    return upgrade_settings(about | {"settings": training | about["settings"]})


def upgrade_model(about: dict[str, Any]) -> dict[str, Any]:
    """Return what 0.1 says about a model, with its backbone as one value."""
    backbone = {
        "name": about["backbone"],
        "weights": about.pop("weights"),
        "image_size": about.pop("image_size"),
        "recipe": V0_1_READING,
        "digest": about.pop("weights_digest"),
    }
    return about | {"backbone": backbone}
