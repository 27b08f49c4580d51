"""How the feature map travels: its numbers, never its matrices."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import cache
from typing import get_type_hints

from flwr.app import ConfigRecord

from fed3r_app.core import FeatureMap
from fed3r_app.wire.layout import RecordError


def pack_feature_map(feature_map: FeatureMap) -> ConfigRecord:
    """Return the config record of a feature map."""
    return ConfigRecord(
        {name.replace("_", "-"): value for name, value in asdict(feature_map).items()}
    )


def read_feature_map(config: ConfigRecord) -> FeatureMap:
    """Return the feature map that a config record describes."""
    try:
        values = {
            field.name: config[field.name.replace("_", "-")]
            for field in fields(FeatureMap)
        }
    except KeyError as error:
        raise RecordError(f"A feature map must have the key {error}.") from None
    kinds = _kinds()
    for name, value in values.items():
        if type(value) is not kinds[name] or value < 0:  # type: ignore[operator]
            raise RecordError(
                f"{name} of a feature map must be {kinds[name].__name__} >= 0, got "
                f"{value!r}."
            )
    return FeatureMap(**values)  # type: ignore[arg-type]


@cache
def _kinds() -> dict[str, type]:
    """Return the type of each number, looked up once and not for every message."""
    return get_type_hints(FeatureMap)
