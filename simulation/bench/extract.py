"""``extract``: features per second, and a whole run against the bare forward pass."""

from __future__ import annotations

from functools import partial
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
from simulation.bench.flower_runs import FlowerRuns, Setting
from simulation.bench.inputs import describe_inputs, has_images, image_folder
from simulation.bench.measure import NUM_THREADS, announce, threads, timed
from simulation.bench.result import Options, Ratio, Result
from simulation.tables import Table

_EAGER_BATCH = 50
_NUM_CLIENTS, _PER_ROUND = 100, 10
_CPU = torch.device("cpu")


def run(options: Options) -> Result:
    """Compare our extraction with eager batches, and a run with a forward pass."""
    size, weights = (32, "random") if options.quick else (224, "packaged")
    backbone = load_backbone(BackboneSpec("mobilenet_v2", weights, size))
    with TemporaryDirectory() as name, threads():
        chosen = ("digits", "")
        if has_images(options.data):
            chosen = ("imagefolder", str(image_folder(Path(name), options.data)))
        dataset = load_dataset(*chosen)
        announce("extraction, ours and eager")
        number = 50 if options.quick else 400
        extraction, ratios = _compare_extraction(backbone, dataset.train, number)
        tables = [extraction]
        if not options.quick:  # a SuperLink and Ray: not a matter of seconds
            whole, ratio = _compare_whole_run(backbone, dataset, *chosen)
            tables.append(whole)
            ratios.append(ratio)
    return Result(tables, ratios, [describe_inputs(options.data)])


def _compare_extraction(
    backbone: Backbone, images: ImageSet, number: int
) -> tuple[Table, list[Ratio]]:
    """Return images per second of both ways, in turns, and how far they differ."""
    rows = np.arange(len(images))[:: max(len(images) // number, 1)][:number]
    ways = {
        "eager": partial(extract_eagerly, backbone, images, rows),
        "ours": partial(extract_features, backbone, images, rows, device=_CPU),
    }
    for way in ways.values():  # builds the networks
        way.func(*way.args[:2], rows[:8], **way.keywords)
    features, seconds = {}, dict.fromkeys(ways, float("inf"))
    for _ in range(3):
        for name, way in ways.items():
            features[name], took = timed(way)
            seconds[name] = min(seconds[name], took)
    difference = float((features["eager"] - features["ours"]).abs().max())
    table_rows = [(name, len(rows) / seconds[name]) for name in ways]
    size = backbone.preprocess.crop
    wanted = 2.5 if size == 224 else None
    title = f"extraction: MobileNetV2 at {size} px, {NUM_THREADS} threads"
    return Table(title, ("way", "images per s"), table_rows), [
        Ratio("ours / eager batches of 50", seconds["eager"] / seconds["ours"], wanted),
        Ratio("largest difference of a feature", difference, 1e-4, at_most=True),
    ]


def extract_eagerly(
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
    backbone: Backbone, dataset: DataSet, name: str, data_path: str
) -> tuple[Table, Ratio]:
    """Return the time of `flwr run` against forward pass plus an empty run."""
    parts = [part for part in (dataset.train, dataset.test) if part is not None]
    number = sum(map(len, parts))

    def forward() -> None:
        for part in parts:
            extract_features(backbone, part, np.arange(len(part)), device=_CPU)

    announce(f"forward pass of {number:,} images")
    _, bare = timed(forward)
    settings: dict[str, Setting] = {
        "dataset": name,
        "data-path": data_path,
        "partition": "iid",
        "image-size": backbone.preprocess.crop,
        "clients-per-round": _PER_ROUND,
    }
    with FlowerRuns() as runs:
        empty = runs.empty(_NUM_CLIENTS, _PER_ROUND)
        whole = runs.fed3r(_NUM_CLIENTS, settings)
        again = runs.fed3r(_NUM_CLIENTS, settings)
    rows = [
        (f"forward pass of {number:,} images, one process", bare),
        ("flwr run, empty app, same messages", empty),
        ("flwr run, Fed3R", whole),
        ("flwr run, Fed3R, features cached", again),
    ]
    title = f"whole run: {_NUM_CLIENTS} clients, {_PER_ROUND} a round"
    what, share = "Fed3R / (forward + empty run)", whole / (bare + empty)
    ratio = Ratio(what, share, 1.25, at_most=True)
    return Table(title, ("way", "seconds"), rows), ratio
