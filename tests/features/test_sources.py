"""Backbones by source: the features are those of the library itself, to 1e-5."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fed3r_app.data.images import FileImages
from fed3r_app.data.reading import Reading, UnreadableImage
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.features.backbone import Backbone, load_backbone
from fed3r_app.features.extraction import cached_features, extract_features
from fed3r_app.features.flops import forward_flops
from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.sources import SOURCES, Source
from fed3r_app.features.spec import BackboneSpec
from tests.features.conftest import SIZES, Save
from tests.harness.saved_networks import HF, TIMM

CPU = torch.device("cpu")
ALL, READING = np.arange(len(SIZES)), Reading()
TAKEN = [*TIMM, *(name for name in HF if name not in ("vit-mae", "efficientnet"))]
CODE = """
from torch import nn
from fed3r_app.features.preprocessing import Preprocess

def make():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 5))
    return network, {"resize": 20, "crop": 16, "mean": [0.5] * 3, "std": [0.5] * 3}

def typed():
    return make()[0], Preprocess(20, 16)

def alone():
    return make()[0]

def misspelt():
    return make()[0], {"resize": 20, "crops": 16}

def cut():
    return make()[0], {"resize": 16, "crop": 20}

def maps():
    return nn.Identity(), {"resize": 16, "crop": 16}
"""


def load(name: str, weights: object = "auto", size: int = 0) -> Backbone:
    load_backbone.cache_clear()
    return load_backbone(BackboneSpec(name, str(weights), size))


def extract(backbone: Backbone, images: FileImages) -> Tensor:
    return extract_features(backbone, images, ALL, device=CPU)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module of the user's own; return what writes it and imports it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str = CODE) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)

    write("own_network")
    return write


@pytest.mark.parametrize("name", TAKEN)
def test_features_are_those_of_the_library_itself(
    saved: Save, pictures: FileImages, name: str
) -> None:
    network = saved(name)
    ours = extract(load(network.backbone, network.folder), pictures)
    images = (pictures.image(int(row), READING) for row in ALL)
    theirs = torch.stack([network.features(image) for image in images])
    assert theirs.std(dim=0).mean() > 1e-2  # the pictures do show
    # DINOv3's processor resizes without rounding to 8 bits, as no other one does.
    atol = 2e-2 if name == "dinov3" else 1e-5
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "test_resnet", "clip", "vit"])
def test_another_image_size_scales_resize_and_positions(
    saved: Save, pictures: FileImages, name: str
) -> None:
    network = saved(name)
    own = load(network.backbone, network.folder)
    larger = load(network.backbone, network.folder, 2 * own.preprocess.crop)
    assert larger.preprocess == own.preprocess.at(64)
    assert larger.preprocess.resize == 2 * own.preprocess.resize
    assert extract(larger, pictures).shape == (len(ALL), own.dim)


def test_a_file_of_timm_is_loaded_with_or_without_classifier(
    saved: Save, pictures: FileImages, tmp_path: Path
) -> None:
    network = saved("test_resnet")
    state = load_file(network.folder / "model.safetensors")
    torch.save(state, tmp_path / "with.pt")
    bare = {key: value for key, value in state.items() if not key.startswith("fc.")}
    save_file(bare, tmp_path / "without.safetensors")
    features = [
        extract(load(network.backbone, tmp_path / file, 32), pictures)
        for file in ("with.pt", "without.safetensors")
    ]
    assert torch.equal(*features)
    assert len(bare) < len(state)


def test_random_weights_of_timm_are_the_same_in_every_process() -> None:
    first, second = (load("timm:test_vit", "random").module for _ in range(2))
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert first is not second and all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("name", ["test_resnet", "dinov2"])
def test_the_digest_is_of_the_weights_and_of_what_goes_with_them(
    saved: Save, tmp_path: Path, name: str
) -> None:
    network = saved(name)
    copy = Path(shutil.copytree(network.folder, tmp_path / "elsewhere"))
    (copy / "README.md").write_text("Not a part of the network.")
    digest = load(network.backbone, network.folder).digest
    assert load(network.backbone, copy).digest == digest
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"more": 1}))
    other = load(network.backbone, copy).digest
    state = load_file(copy / "model.safetensors")
    changed = {key: value + 1 for key, value in state.items()}
    save_file(changed, copy / "model.safetensors", {"format": "pt"})
    assert len({digest, other, load(network.backbone, copy).digest}) == 3


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("test_resnet", r"must be those of backbone = 'timm:test_resnet', got .*conv1"),
        (
            "dinov2",
            r"must have all of backbone = 'hf:someone/dinov2', got .*embeddings",
        ),
    ],
)
def test_weights_that_lack_an_entry_are_refused(
    saved: Save, tmp_path: Path, name: str, sentence: str
) -> None:
    network = saved(name)
    copy = Path(shutil.copytree(network.folder, tmp_path / "copy"))
    state = load_file(copy / "model.safetensors")
    del state[next(k for k in state if re.match(r"(conv1|embeddings\.p).*weight", k))]
    save_file(state, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=sentence):
        _ = load(network.backbone, copy).module


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("vit-mae", "must make the same features of the same image each time"),
        ("efficientnet", "got a step that is unknown here.*name it with python:"),
    ],
)
def test_what_can_not_be_taken_is_refused(
    saved: Save, name: str, sentence: str
) -> None:
    network = saved(name)
    with pytest.raises(ValueError, match=sentence):
        _ = load(network.backbone, network.folder).module


def test_code_in_a_folder_is_never_run(saved: Save, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved("dinov2").folder, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config |= {
        "model_type": "theirs",
        "auto_map": {"AutoConfig": "code.C", "AutoModel": "code.M"},
    }
    (copy / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "it-was-run"
    (copy / "code.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(ValueError, match="'hf:a/b' must be a model that transformers"):
        _ = load("hf:a/b", copy).module
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "weights", "sentence"),
    [
        ("tim:resnet18", "auto", r"sources torchvision, timm, .* mean 'timm'"),
        ("timm:", "auto", "backbone must be a name of torchvision, or SOURCE:NAME"),
        ("timm:resnet5", "auto", "must name a model of timm .* mean 'timm:resnet5"),
        ("timm:test_vit", "no/file", r"or an existing file, got 'no/file'"),
        ("timm:test_vit", "auto", r"download model\.safetensors of timm/test_vit.*, got"
         r".* copy model\.safetensors here .* set weights to that file"),
        ("hf:facebook/dinov2-small", "auto", r"must be able to download config\.json, "
         r".* and model\.safetensors of facebook/dino.* weights to their folder"),
        ("hf:facebook/dinov2-small", "no/folder", "or a folder with .*'no/folder'"),
        ("hf:../elsewhere", "auto", "must be hf:OWNER/NAME"),
        ("hf:/elsewhere", "auto", "must be hf:OWNER/NAME"),
        ("python:own_network", "auto", "must be python:MODULE:FUNCTION"),
        ("python:own_network:gone", "auto", "own_network.py has no function gone"),
        ("python:no_module:make", "auto", "must find its module.* into PYTHONPATH"),
        ("python:own_network:alone", "auto", "and a Preprocess, .* got Sequential"),
        ("python:own_network:misspelt", "auto", "unexpected keyword argument 'crops'"),
        ("python:own_network:cut", "auto", "crop must be > 0 and at most resize = 16"),
        ("python:own_network:maps", "auto", r"of shape \(n, d\), got \(1, 3, 16"),
        ("pixels+none", "auto", "must go with samples that are features"),
        ("resnet18+vgg11", "packaged+random+random", "one for each of the 2 backbones"),
    ],
)  # fmt: skip
def test_refusals(code: Any, name: str, weights: str, sentence: str) -> None:
    with pytest.raises((ValueError, OSError), match=sentence):
        _ = load(name, weights, 16 if "pixels" in name else 0).dim


def test_a_library_that_is_not_installed_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SOURCES, "timm", Source("timm_models", "not_there", "timm"))
    command = r"pip install 'fed3r-flower\[timm\]'"
    with pytest.raises(ValueError, match=rf"the package not_there, .* it: {command}"):
        load("timm:resnet18")


def test_a_function_returns_the_network_and_its_preprocessing(
    code: Any, pictures: FileImages, tmp_path: Path
) -> None:
    backbone = load("python:own_network:make")
    half = (0.5, 0.5, 0.5)
    assert backbone.preprocess == Preprocess(20, 16, mean=half, std=half)
    assert load("python:own_network:typed").preprocess == Preprocess(20, 16)
    assert extract(backbone, pictures).shape == (len(ALL), 5)
    assert load("python:own_network:make").digest == backbone.digest
    state = {key: value + 1 for key, value in backbone.module.state_dict().items()}
    torch.save(state, tmp_path / "weights.pt")
    other = load("python:own_network:make", tmp_path / "weights.pt")
    assert other.digest != backbone.digest
    assert torch.equal(other.module.get_parameter("2.bias"), state["2.bias"])
    code("own_network", CODE + "\n# another text may be another network\n")
    assert load("python:own_network:make").digest != backbone.digest


def test_joined_features_stand_side_by_side(
    code: Any, pictures: FileImages, tmp_path: Path
) -> None:
    names = ("python:own_network:make", "pixels", "mobilenet_v2")
    joined = load("+".join(names), "auto", 32)
    parts = [load(name, "auto", 32) for name in names]
    expected = torch.cat([extract(part, pictures) for part in parts], dim=1)
    assert joined.dim == sum(part.dim for part in parts) == 5 + 1024 + 1280
    assert torch.equal(extract(joined, pictures), expected)
    for _ in range(2):  # the second time from the caches of the parts
        cached = cached_features(joined, pictures, ALL, tmp_path, device=CPU)
        assert torch.equal(cached, expected)
    flops = [forward_flops(part, tmp_path) for part in parts]
    assert forward_flops(joined, tmp_path) == sum(flops)
    assert joined.feature_range is None
    assert load("pixels+mobilenet_v2", "auto", 32).feature_range == (0.0, 6.0)
    digests = {each.digest for each in (joined, *parts)}
    assert len(digests | {load("+".join(names[::-1]), "auto", 32).digest}) == 5


def test_weights_of_joined_backbones_are_joined_too(saved: Save) -> None:
    one, other = saved("test_resnet"), saved("dinov2")
    joined = load(
        f"{one.backbone}+{other.backbone}+mobilenet_v2",
        f"{one.folder}+{other.folder}+packaged",
    )
    alone = load(one.backbone, one.folder), load(other.backbone, other.folder)
    assert [part.digest for part in joined.parts[:2]] == [b.digest for b in alone]


def test_an_image_that_goes_while_joined_features_are_made_is_left_out() -> None:
    class Going(FileImages):
        times = 0

        def image(self, index: int, reading: Reading = READING) -> Image.Image:
            Going.times += index == 1
            if index == 1 and Going.times == 2:
                raise UnreadableImage("1.png must be a readable image, got: gone.")
            return Image.new("RGB", (8, 8), (40 * index, 0, 0))

    images = Going(Path(), ["0.png", "1.png", "2.png"], [0, 0, 0])
    backbone, unreadable = load("pixels+pixels", "auto", 8), UnreadableImages(0.5)
    rows = np.arange(3)
    features = extract_features(
        backbone, images, rows, device=CPU, unreadable=unreadable
    )
    assert unreadable.readable(rows).tolist() == [True, False, True]
    assert features.shape == (2, 128) and features[0].max() == 0
    Going.times = 0
    with pytest.raises(UnreadableImage):
        extract_features(backbone, images, rows, device=CPU)


def test_auto_is_packaged_for_the_default_network_and_changes_no_key() -> None:
    auto, packaged = load("mobilenet_v2"), load("mobilenet_v2", "packaged")
    assert auto.spec.fingerprint() == packaged.spec.fingerprint()
    assert (
        auto.recipe
        == packaged.recipe
        == (
            "Preprocess(resize=224, crop=224, interpolation='bilinear', mode='RGB', "
            "mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)) after "
            "Reading(version=2, intensity='range')"
        )
    )
    assert auto.file_name == "mobilenet_v2"
    named = load("torchvision:mobilenet_v2"), load("mobilenet_v2", "torchvision")
    assert named[0].digest == named[1].digest != auto.digest
    assert named[0].preprocess == named[1].preprocess
    assert load("resnet18").digest == load("resnet18", "torchvision").digest


def test_what_differs_from_earlier_recipes_is_in_the_text() -> None:
    plain = Preprocess(8, 8)
    others = [
        Preprocess(8, 8, squash=True),
        Preprocess(8, 8, floor=True),
        Preprocess(8, 8, enlarge="nearest"),
    ]
    assert len({each.description for each in [plain, *others]}) == 4


def test_crops_of_squashed_images_have_their_shape() -> None:
    image = Image.new("RGB", (200, 50))
    image.paste((255, 255, 255), (0, 0, 200, 10))
    random = np.random.default_rng(0)
    for _ in range(50):
        pixels = Preprocess(16, 16, squash=True).random_pixels(image, random)
        assert pixels.shape == (16, 16, 3)
        # A row of the image is a row of the picture: 80 to 100 % of its height.
        assert (pixels[:, :, 0].astype(int).std(axis=1) < 1).all()


def test_a_network_without_batch_norm_is_not_traced() -> None:
    from fed3r_app.features.inference_copy import fuse_batch_norm

    module = nn.Sequential(nn.Linear(2, 2))
    assert fuse_batch_norm(module) is module
