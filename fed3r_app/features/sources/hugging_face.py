"""Image models of Hugging Face's transformers, by the name of their repository.

===============================  ===================================================
model                            features
===============================  ===================================================
CLIP, SigLIP and others with an  the image tower's pooled output, before the
image and a text tower           projection into the space of texts
DINOv2, DINOv3, BEiT, ResNet,    the model's own pooled output
ConvNeXt, Swin, …
ViT, DeiT, whose pooling is a    the class token
layer for another purpose
others                           the class token if there is one, else the mean over
                                 tokens or places
===============================  ===================================================

No code of a repository is ever run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.sources.hub import WEIGHT_FILES, download, weight_files
from fed3r_app.features.sources.network import (
    EXACT,
    ROUNDED,
    Network,
    check_preprocess,
    untranslatable,
)
from fed3r_app.features.weights import file_digest, text_digest

if TYPE_CHECKING:
    from fed3r_app.features.spec import BackboneSpec

_CONFIGS = ("config.json", "preprocessor_config.json", "processor_config.json")
_SHARDS = ("model-*-of-*.safetensors", "model.safetensors.index.json")
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*|\w[\w.-]*")
_LARGE_CONVNEXT = 384
_CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def load(spec: BackboneSpec, name: str) -> Network:
    """Return the image model of a repository.

    The weights are "auto" (from the Hub) or a folder with the repository's files, as
    ``save_pretrained`` writes them.
    """
    folder = _folder(spec, name)
    files = [*(folder / each for each in _CONFIGS), *weight_files(folder)]
    digest = " ".join(file_digest(file) for file in files if file.is_file())
    own = _preprocess(spec.name, folder)
    return Network(
        text_digest(digest),
        own.at(spec.image_size),
        partial(_build, spec.name, folder, spec.image_size not in (0, own.crop)),
    )


def _folder(spec: BackboneSpec, name: str) -> Path:
    """Return the folder with the files of a model."""
    needed = f"{_CONFIGS[0]}, {_CONFIGS[1]} and {WEIGHT_FILES[0]}"
    if spec.weights == "auto":
        if not _REPOSITORY.fullmatch(name):
            raise ValueError(
                f"backbone must be hf:OWNER/NAME, got {spec.name!r}. A folder is named "
                "by weights."
            )
        get = partial(download, spec.name, name, needed=needed, copy="their folder")
        folder = get([*_CONFIGS, WEIGHT_FILES[0], *_SHARDS])
        if not any(folder.glob("*.safetensors")):
            folder = get([*_CONFIGS, WEIGHT_FILES[1]])
        return folder
    folder = Path(spec.weights).expanduser()
    if not (folder / _CONFIGS[0]).is_file():
        raise FileNotFoundError(
            f'weights must be "auto" or a folder with {needed} when backbone = '
            f"{spec.name!r}, got {spec.weights!r}."
        )
    return folder.resolve()


def _preprocess(backbone: str, folder: Path) -> Preprocess:
    """Return the preparation of an image that the processor of a folder makes."""
    with _quietly():
        from transformers import AutoImageProcessor

        try:
            # Not every model has one that resizes with Pillow, to the last bit as here.
            processor = AutoImageProcessor.from_pretrained(
                folder, backend="pil", **_LOCAL
            )
        except (OSError, ValueError) as error:
            raise ValueError(
                f"backbone = {backbone!r} must have an image processor that is known "
                f"to transformers, got {str(error).splitlines()[0]}"
            ) from error

    def pipeline(image: Image.Image) -> Tensor:
        values: Tensor = processor(image, return_tensors="pt")["pixel_values"][0]
        return values

    preprocess = _translate(backbone, processor)
    most = EXACT if processor.backend == "pil" else ROUNDED
    check_preprocess(backbone, preprocess, pipeline, most)
    return preprocess


def _translate(backbone: str, processor: Any) -> Preprocess:
    """Return the preprocessing that a processor's settings describe."""

    def get(name: str, default: Any = None) -> Any:
        return getattr(processor, name, default)

    def side(key: str) -> Any:
        """Return the side of a square in the settings; None where there is none."""
        size = dict(get(key) or {})
        height, width = size.get("height"), size.get("width")
        return height if height == width else None

    short = dict(get("size") or {}).get("shortest_edge")
    resize, share = short or side("size"), get("crop_pct")
    if not get("do_resize") or not resize:
        raise untranslatable(backbone, f"size = {dict(get('size') or {})}")
    squash = not short
    crop = side("crop_size") if get("do_center_crop") else None
    if share and short:  # of ConvNeXt and ResNet: large ones are squashed
        crop, squash = short, short >= _LARGE_CONVNEXT
        resize = short if squash else int(short / share)
    crop = crop or (resize if squash else None)
    if not crop or crop > resize:
        raise untranslatable(backbone, f"a crop of {crop} after a resize to {resize}")
    scale = 255 * (get("rescale_factor") if get("do_rescale") else 1)
    mean = get("image_mean") if get("do_normalize") else [0.0] * 3
    std = get("image_std") if get("do_normalize") else [1.0] * 3
    interpolation = Image.Resampling(get("resample", 2)).name.lower()
    return Preprocess(
        resize=resize,
        crop=crop,
        interpolation=interpolation,
        # (scale p - mean) / std, where p is from 0 to 1
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        squash=squash,
        floor=True,
        enlarge=interpolation,
    )


def _build(backbone: str, folder: Path, resized: bool) -> nn.Module:
    """Return the image tower of the model in a folder."""
    with _quietly():
        from transformers import AutoModel

        try:
            model, loaded = AutoModel.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, **_LOCAL
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"backbone = {backbone!r} must be a model that transformers can load "
                f"without code of others, got {folder}: {str(error).splitlines()[0]}"
            ) from error
    tower = ImageTower(model, resized)
    missing = sorted(
        key
        for key in loaded["missing_keys"]
        if key.removeprefix("vision_model.") in tower.model.state_dict()
    )
    if missing:
        raise ValueError(
            f"weights must have all of backbone = {backbone!r}, got {folder} without "
            f"{', '.join(missing[:3])}."
        )
    return tower


class ImageTower(nn.Module):
    """A model of transformers as a function of images (n, 3, s, s): features (n, d)."""

    def __init__(self, model: nn.Module, resized: bool = False) -> None:
        super().__init__()
        self.model = getattr(model, "vision_model", model)
        if hasattr(getattr(self.model, "pooler", None), "dense"):
            self.model.pooler = None  # made for another task, and often untrained
        names = [name.rpartition(".")[2] for name, _ in self.model.named_parameters()]
        self._has_class_token = any(name in _CLASS_TOKENS for name in names)
        known = inspect.signature(self.model.forward).parameters
        option = "interpolate_pos_encoding"
        self._options = {option: True} if resized and option in known else {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        output = self.model(pixel_values=x, **self._options)
        pooled = getattr(output, "pooler_output", None)
        if isinstance(pooled, Tensor):
            return pooled.flatten(1)
        hidden: Tensor = output.last_hidden_state
        if hidden.ndim == 4:  # (n, d, height, width)
            return hidden.mean((2, 3))
        return hidden[:, 0] if self._has_class_token else hidden.mean(1)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers' bars and reports out of the log; errors are raised."""
    from transformers.utils import logging

    earlier = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(earlier[0])
        if earlier[1]:
            logging.enable_progress_bar()
