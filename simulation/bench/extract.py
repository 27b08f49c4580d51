"""``extract``: features per second, and a whole run against the bare forward pass."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fed3r_app.data import DataSet, ImageSet, load_dataset
from fed3r_app.features.backbone import Backbone, load_backbone
from fed3r_app.features.extraction import extract_features
from fed3r_app.features.spec import BackboneSpec
from simulation.bench.flower_runs import EMPTY_APP, OUR_APP, Settings, flower_runs
from simulation.bench.inputs import IMAGES, describe_inputs, find, image_folder
from simulation.bench.measure import NUM_THREADS, announce, timed
from simulation.bench.result import Result

_EAGER_BATCH = 50
_NUM_CLIENTS, _PER_ROUND = 100, 10
_CPU = torch.device("cpu")


def run(result: Result) -> None:
    """Compare our extraction with eager batches, and a run with a forward pass."""
    size, weights = (32, "random") if result.quick else (224, "packaged")
    backbone = load_backbone(BackboneSpec("mobilenet_v2", weights, size))
    with TemporaryDirectory() as name:
        chosen = ("digits", "")
        if images := find(result.data, IMAGES):
            chosen = ("imagefolder", str(image_folder(Path(name), images)))
        dataset = load_dataset(*chosen)
        _compare_extraction(result, backbone, dataset.train)
        if not result.quick:  # a SuperLink and Ray: not a matter of seconds
            _compare_whole_run(result, backbone, dataset, *chosen)
    result.notes.append(describe_inputs(result.data))


def _compare_extraction(result: Result, backbone: Backbone, images: ImageSet) -> None:
    """Add images per second of both ways, in turns, and how far they differ."""
    announce("extraction, ours and eager")
    number = 50 if result.quick else 400
    rows = np.arange(len(images))[:: max(len(images) // number, 1)][:number]
    ways = {"eager": _extract_eagerly, "ours": _extract}
    features, seconds = {}, dict.fromkeys(ways, float("inf"))
    for way in ways.values():  # builds the networks
        way(backbone, images, rows[:8])
    for _ in range(3):
        for name, way in ways.items():
            features[name], took = timed(way, backbone, images, rows)
            seconds[name] = min(seconds[name], took)
    size = backbone.preprocess.crop
    title = f"extraction: MobileNetV2 at {size} px, {NUM_THREADS} threads"
    rates = [(name, len(rows) / seconds[name]) for name in ways]
    result.table(title, ("way", "images per s"), rates)
    speedup, wanted = seconds["eager"] / seconds["ours"], 2.5 if size == 224 else None
    result.ratio("ours / eager batches of 50", speedup, wanted)
    difference = float((features["eager"] - features["ours"]).abs().max())
    result.ratio("largest difference of a feature", difference, 1e-4, at_most=True)


def _extract(backbone: Backbone, images: ImageSet, rows: NDArray[np.int64]) -> Tensor:
    return extract_features(backbone, images, rows, device=_CPU)


def _extract_eagerly(
    backbone: Backbone, images: ImageSet, rows: NDArray[np.int64]
) -> Tensor:
    """Return features (m, d) the plain way: the network as it is, batches of 50."""
    parts = []
    for start in range(0, len(rows), _EAGER_BATCH):
        batch = rows[start : start + _EAGER_BATCH]
        pixels = [backbone.preprocess.pixels(images.image(int(row))) for row in batch]
        with torch.inference_mode():
            inputs = backbone.preprocess.normalize(pixels, _CPU).contiguous()
            parts.append(backbone.module(inputs))
    return torch.cat(parts)


def _compare_whole_run(
    result: Result, backbone: Backbone, dataset: DataSet, name: str, data_path: str
) -> None:
    """Add the time of `flwr run` against forward pass plus an empty run."""
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    forward = f"forward pass of {sum(map(len, parts)):,} images"
    announce(forward)
    bare = sum(
        timed(_extract, backbone, part, np.arange(len(part)))[1] for part in parts
    )
    asked = {"num-clients": _NUM_CLIENTS, "clients-per-round": _PER_ROUND}
    settings: Settings = {
        "dataset": name,
        "data-path": data_path,
        "partition": "iid",
        "image-size": backbone.preprocess.crop,
        "clients-per-round": _PER_ROUND,
    }
    with flower_runs() as time_run:
        empty = time_run(EMPTY_APP, _NUM_CLIENTS, asked)
        whole, again = (time_run(OUR_APP, _NUM_CLIENTS, settings) for _ in range(2))
    rows = [
        (f"{forward}, one process", bare),
        ("flwr run, empty app, same messages", empty),
        ("flwr run, Fed3R", whole),
        ("flwr run, Fed3R, features cached", again),
    ]
    title = f"whole run: {_NUM_CLIENTS} clients, {_PER_ROUND} a round"
    result.table(title, ("way", "seconds"), rows)
    share = whole / (bare + empty)
    result.ratio("Fed3R / (forward + empty run)", share, 1.25, at_most=True)
