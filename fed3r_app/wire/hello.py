"""The first exchange: what a client says of itself, as records, and back.

Class names travel with it: a client's own in its hello, those of the whole run in the
requests, as does how images are read. Packing needs no torch: a real node says hello in
a process that does nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fed3r_app.core.names import LARGEST_SIDE
from fed3r_app.wire import RecordError
from fed3r_app.wire.parity import Parity, add_parity, read_parity
from fed3r_app.wire.validation import (
    MOST_CLIENTS,
    check_name,
    check_names,
    read_array,
    read_number,
    read_whole,
    shown,
)
from fed3r_app.words import plural

if TYPE_CHECKING:
    from fed3r_app.core import FeatureMoments

LABELS = "labels"
_RECIPE, _IMAGE_SIZE = "recipe", "image-size"
_SAMPLES, _TEST_IMAGES = "num-samples", "num-test-images"
_EXAMPLES = "num-examples"  # those of the samples that could be read
_VERSIONS = ("code-version", "installed-version")
_ROUNDING = 1e-6  # of two sums of as many terms as there are images
# Far more than any.
_MOST_RECIPES = 1000


@dataclass(frozen=True)
class Hello:
    """What a client says of itself."""

    client_id: str  # names the client across runs
    num_partitions: int  # how many clients it believes there are; 0 if it can't know
    moments: FeatureMoments | None = None  # of its features, where asked for
    # Its classes, where its images are its own; where the run config names all, just
    # those that are not among them.
    class_names: tuple[str, ...] = ()
    num_test_images: int = 0  # that it holds besides, for evaluations
    parity: Parity | None = None  # beside the moments, which need the backbone
    # To train on, readable or not; None where numbers of images may not leave it.
    num_samples: int | None = None
    # Of a real node: of the code that answers, and of what is installed there.
    code_version: str = ""
    installed_version: str = ""


def pack_hello(hello: Hello) -> RecordDict:
    """Return the records of a hello."""
    config = ConfigRecord(
        {"client-id": hello.client_id, "num-partitions": hello.num_partitions}
    )
    content = RecordDict({"config": config})
    if hello.class_names:
        config[LABELS] = list(hello.class_names)
    if hello.num_test_images:
        config[_TEST_IMAGES] = hello.num_test_images
    if hello.num_samples is not None:
        config[_SAMPLES] = hello.num_samples
    for key, value in zip(_VERSIONS, _versions(hello), strict=True):
        if value:
            config[key] = value
    if hello.moments is not None:
        config[_EXAMPLES] = hello.moments.n
        config["squared-norms"] = hello.moments.squared_norms
        content["arrays"] = ArrayRecord({"sum": Array(hello.moments.total.numpy())})
    add_parity(config, hello.parity)
    return content


def read_hello(content: RecordDict, dim: int | None = None) -> Hello:
    """Return the hello in a reply's records, or raise RecordError.

    ``dim`` is how many features moments are of, where that is known.
    """
    config = content.config_records.get("config", ConfigRecord())
    samples = read_whole(config, _SAMPLES) if _SAMPLES in config else None
    hello = Hello(
        check_name("client-id", config.get("client-id")),
        read_whole(config, "num-partitions", MOST_CLIENTS),
        _read_moments(content, config, dim),
        read_labels(config) or (),
        read_whole(config, _TEST_IMAGES, default=0),
        read_parity(config),
        samples,
        *(_read_version(config, key) for key in _VERSIONS),
    )
    if samples is not None:
        _check_samples(hello, samples)
    return hello


def _versions(hello: Hello) -> tuple[str, str]:
    return hello.code_version, hello.installed_version


def _read_version(config: ConfigRecord, key: str) -> str:
    """Return a version, "" for none: earlier ones did not say."""
    value = config.get(key, "")
    if not isinstance(value, str) or not re.fullmatch(r"[0-9A-Za-z.+!_-]{0,40}", value):
        raise RecordError(f"{key} must be a version such as 0.2.0, got {shown(value)}.")
    return value


def _check_samples(hello: Hello, samples: int) -> None:
    """Raise RecordError unless what is said of the images goes with their number."""
    if hello.moments is not None and hello.moments.n > samples:
        raise RecordError(
            f"num-examples must be <= num-samples = {samples}, got {hello.moments.n}."
        )
    images = samples + hello.num_test_images
    if len(hello.class_names) > images:
        raise RecordError(
            f"{LABELS} must be the classes of {plural(images, 'image')}, got "
            f"{len(hello.class_names)}."
        )


def _read_moments(
    content: RecordDict, config: ConfigRecord, dim: int | None
) -> FeatureMoments | None:
    if "arrays" not in content.array_records:
        return None
    import numpy as np
    import torch

    from fed3r_app.core import FeatureMoments

    total = read_array(content.array_records["arrays"], "sum")
    shape = total.shape if dim is None else (dim,)
    if total.ndim != 1 or total.shape != shape or total.dtype != np.float64:
        raise RecordError(
            f"sum must be float64 of shape {shape}, got {total.dtype} of shape "
            f"{total.shape}."
        )
    squared, n = read_number(config, "squared-norms"), read_whole(config, _EXAMPLES)
    # By Cauchy and Schwarz; NaN and infinity fail, too.
    with np.errstate(over="ignore", invalid="ignore"):
        possible = float(np.square(total).sum()) <= n * squared * (1 + _ROUNDING)
    if not possible:
        raise RecordError(
            f"sum must be that of {n} features whose squared norms add up to "
            f"{shown(squared)}."
        )
    return FeatureMoments(n, torch.from_numpy(total), squared)


def with_reading(config: ConfigRecord, recipe: int, image_size: int) -> ConfigRecord:
    """Return a request's config with how images are read, and their size."""
    reading = {_RECIPE: recipe, _IMAGE_SIZE: image_size}
    return ConfigRecord({**dict(config.items()), **reading})


def read_reading(config: ConfigRecord) -> tuple[int, int] | None:
    """Return recipe and image size in a request's config, where they are there."""
    if _RECIPE not in config:
        return None
    recipe = read_whole(config, _RECIPE, _MOST_RECIPES)
    return recipe, read_whole(config, _IMAGE_SIZE, LARGEST_SIDE)


def with_labels(config: ConfigRecord, labels: Sequence[str]) -> ConfigRecord:
    """Return a request's config with the label space in it; () for none."""
    added = {LABELS: list(labels)} if labels else {}
    return ConfigRecord({**dict(config.items()), **added})


def read_labels(config: ConfigRecord) -> tuple[str, ...] | None:
    """Return the class names in a config, or None where there are none."""
    return check_names(LABELS, config[LABELS]) if LABELS in config else None
