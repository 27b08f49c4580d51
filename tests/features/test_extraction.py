"""Features: as fast as may be, equal to the plain network's, never made twice."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fed3r_app.data.images import DIGEST_BYTES, FileImages, ImageSet, OwnImages
from fed3r_app.data.reading import Reading
from fed3r_app.data.unreadable import UnreadableImages
from fed3r_app.features import extraction as features_module
from fed3r_app.features.backbone import Backbone, load_backbone
from fed3r_app.features.extraction import (
    cached_features,
    extract_features,
    readable_rows,
)
from fed3r_app.features.inference_copy import fast_copy, fuse_batch_norm
from fed3r_app.features.preprocessing import Preprocess
from fed3r_app.features.spec import BackboneSpec
from tests.harness.pixels import write_image

CPU = torch.device("cpu")
Cached = Callable[..., Tensor]


class NoiseImages(ImageSet):
    """Images of noise that count how often each is read."""

    def __init__(self, num: int, identity: str = "noise") -> None:
        super().__init__(np.zeros(num), num)
        self.name = identity
        self.reads = np.zeros(num, dtype=np.int64)

    def _digest(self) -> str:
        return self.name

    def digest(self, index: int) -> bytes:
        return index.to_bytes(DIGEST_BYTES, "big")

    def image(self, index: int, reading: Reading | None = None) -> Image.Image:
        self.reads[index] += 1
        rng = np.random.default_rng(index)
        return Image.fromarray(rng.integers(0, 256, (40, 36, 3), dtype=np.uint8))


class SmallNetwork(nn.Module):
    """Conv and batch norm as models have them, and a convolution that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5)
        self.shared, self.shared_norm = nn.Conv2d(5, 5, 1), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = self.shared(x) + self.shared_norm(self.shared(x))
        return x.mean((2, 3))


def small_network() -> nn.Module:
    torch.manual_seed(0)
    network = SmallNetwork()
    for norm in (network.norm, network.shared_norm):
        nn.init.uniform_(norm.get_buffer("running_mean"), -1, 1)
        nn.init.uniform_(norm.get_buffer("running_var"), 0.5, 2)
    return network


def small_backbone(name: str = "small", digest: str = "0", **changes: Any) -> Backbone:
    given: dict[str, Any] = {"preprocess": Preprocess(16, 16), "build": small_network}
    return Backbone(BackboneSpec(name, "test", digest=digest), **given | changes)


def mobilenet(size: int = 32) -> Backbone:
    return load_backbone(BackboneSpec("mobilenet_v2", "packaged", size))


def extract(backbone: Backbone, images: ImageSet, rows: Any, **options: Any) -> Tensor:
    return extract_features(backbone, images, np.array(rows), device=CPU, **options)


@pytest.fixture
def cached(tmp_path: Path) -> Cached:
    """Return what `cached_features` gives with a cache of the test's own."""

    def features(backbone: Backbone, images: ImageSet, rows: Any, **given: Any) -> Any:
        options: dict[str, Any] = {"device": CPU, "cache_dir": tmp_path} | given
        return cached_features(backbone, images, np.array(rows), **options)

    return features


def plain_features(backbone: Backbone, images: NoiseImages, rows: list[int]) -> Tensor:
    """Return what the network itself makes of each image alone."""
    pre = backbone.preprocess
    singles = [
        backbone.module(pre.normalize([pre.pixels(images.image(row))], CPU))
        for row in rows
    ]
    return torch.cat(singles)


def test_a_network_is_let_go_of_when_there_is_another() -> None:
    backbone, images = small_backbone(), NoiseImages(1)
    extract(backbone, images, [0])
    gone = weakref.ref(backbone.module)
    del backbone
    extract(small_backbone(), images, [0])
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "backbone",
    [
        small_backbone(),
        mobilenet(),
        mobilenet(96),
        load_backbone(BackboneSpec("densenet121", "random", 32)),
    ],
    ids=lambda backbone: f"{backbone.name}-{backbone.preprocess.crop}",
)
def test_features_equal_the_plain_networks(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features_module, "_CPU_BATCH", 2)
    images, rows = NoiseImages(6), [4, 0, 5, 1, 1]
    before = {k: v.clone() for k, v in backbone.module.state_dict().items()}
    ours = extract(backbone, images, rows)
    expected = plain_features(backbone, images, rows)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)
    assert not ours.is_inference() and ours.dtype == torch.float32
    after = backbone.module.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in after)


def test_batch_norms_are_folded_where_they_can_be() -> None:
    network = small_network().eval()
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    expected = network(x)
    fused = fast_copy(network, CPU, torch.float32)
    kinds = [type(part) for part in fused.modules()]
    assert kinds.count(nn.BatchNorm2d) == 1  # the one after the shared convolution
    torch.testing.assert_close(fused(x), expected, rtol=1e-5, atol=1e-5)
    assert isinstance(network.get_submodule("norm"), nn.BatchNorm2d)
    mobile = fast_copy(mobilenet().module, CPU, torch.float32)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in mobile.modules())


def test_what_cannot_be_traced_is_used_as_it_is() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    module = Branching()
    assert fuse_batch_norm(module) is module


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_batch_size_and_order_do_not_show_and_progress_counts_images(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, backbone = NoiseImages(10), small_backbone()
    every = extract(backbone, images, range(10))
    rows = np.random.default_rng(0).permutation(10)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(features_module, "_CPU_BATCH", batch_size)
    some = extract(backbone, images, rows, progress=lambda *done: seen.append(done))
    torch.testing.assert_close(some, every[torch.from_numpy(rows)])
    ends = [*range(batch_size, 10, batch_size), 10]
    assert seen == [(done, 10) for done in ends]


def test_no_rows_give_no_features(cached: Cached) -> None:
    none = np.array([], dtype=np.int64)
    for make in (extract, cached):
        assert make(small_backbone(), NoiseImages(3), none).shape == (0, 5)


def test_bfloat16_is_close_and_not_the_same() -> None:
    exact, rough = (
        extract(mobilenet(), NoiseImages(4), range(4), dtype=dtype)
        for dtype in ("float32", "bfloat16")
    )
    assert rough.dtype == torch.float32 and not torch.equal(rough, exact)
    assert (torch.cosine_similarity(rough, exact) > 0.98).all()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_gpu_uses_all_bits_of_float32_and_elsewhere_as_many_as_before(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    seen: list[bool] = []

    def looking(*args: Any) -> nn.Module:
        network = fast_copy(*args)
        network.register_forward_pre_hook(
            lambda *_: seen.extend((cudnn.allow_tf32, matmul.allow_tf32))
        )
        return network

    monkeypatch.setattr(features_module, "fast_copy", looking)
    earlier = cudnn.allow_tf32, matmul.allow_tf32
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = allowed
        extract(small_backbone(), NoiseImages(1), [0])
        assert seen == [False, False]
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (allowed, allowed)
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = earlier


def test_bad_arguments_are_named() -> None:
    images, backbone = NoiseImages(3), small_backbone()
    with pytest.raises(ValueError, match=r"dtype must be one of .* got 'float16'"):
        extract(backbone, images, [0], dtype="float16")
    for rows in ([3], [-1]):
        with pytest.raises(ValueError, match="rows must be between 0 and 2, got"):
            extract(backbone, images, rows)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the batches that any network has run on since."""
    sizes: list[int] = []

    def counting(*args: Any) -> nn.Module:
        network = fast_copy(*args)
        network.register_forward_pre_hook(lambda _, x: sizes.append(len(x[0])))
        return network

    monkeypatch.setattr(features_module, "fast_copy", counting)
    features_module._network.cache_clear()
    return sizes


def test_cached_features_need_no_network_and_are_the_same_bits(cached: Cached) -> None:
    def never() -> nn.Module:
        raise AssertionError("the network was built")

    images, rows = NoiseImages(9), [8, 2, 2, 5]
    first = cached(small_backbone(), images, range(9))
    again = cached(small_backbone(build=never, known_dim=5), images, rows)
    assert images.reads.tolist() == [1] * 9
    assert torch.equal(again, first[rows])


def test_only_what_is_missing_is_extracted(cached: Cached, runs: list[int]) -> None:
    images, backbone = NoiseImages(8), small_backbone()
    seen: list[tuple[int, int]] = []
    for rows in ([1, 3], [3, 7, 1, 7, 0], [7, 0]):
        got = cached(backbone, images, rows, progress=lambda *done: seen.append(done))
        expected = plain_features(backbone, NoiseImages(8), rows)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert images.reads.tolist() == [1, 1, 0, 1, 0, 0, 0, 1]
    assert seen == [(2, 2), (2, 2)] and sum(runs) == 4


def test_settings_do_not_share_features(
    cached: Cached, tmp_path: Path, runs: list[int]
) -> None:
    settings = [
        (small_backbone(), "float32", "a"),
        (small_backbone(), "bfloat16", "a"),
        (small_backbone(), "float32", "b"),
        (small_backbone(digest="1"), "float32", "a"),
        (small_backbone(preprocess=Preprocess(18, 16)), "float32", "a"),
        (small_backbone(preprocess=Preprocess(18, 18)), "float32", "a"),
        (small_backbone("other"), "float32", "a"),
    ]
    for backbone, dtype, identity in settings:
        cached(backbone, NoiseImages(2, identity), range(2), dtype=dtype)
    assert sum(runs) == 2 * len(settings)
    assert len(list(tmp_path.iterdir())) == len(settings)


def test_damage_is_repaired(cached: Cached, tmp_path: Path) -> None:
    images, backbone, rows = NoiseImages(5), small_backbone(), range(5)
    first = cached(backbone, images, rows)
    (path,) = tmp_path.glob("*/features.bin")
    path.write_bytes(path.read_bytes()[:50])
    again = cached(backbone, images, rows)
    torch.testing.assert_close(again, first)
    assert images.reads.tolist() == [1, 1, 2, 2, 2]  # two records are whole
    assert torch.equal(cached(backbone, images, rows), again)


def test_an_interrupted_extraction_resumes_where_it_stopped(cached: Cached) -> None:
    images, backbone, left = NoiseImages(80), small_backbone(), []

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(backbone, images, range(80), progress=interrupt)
    cached(backbone, images, range(80), progress=lambda _, total: left.append(total))
    assert left[0] == 80 - 32


def test_an_unwritable_cache_does_not_stop_the_run(
    cached: Cached, tmp_path: Path
) -> None:
    images, backbone = NoiseImages(3), small_backbone()
    (tmp_path / "file").touch()
    got = cached(backbone, images, range(3), cache_dir=tmp_path / "file")
    assert torch.equal(got, extract(backbone, images, range(3)))


@pytest.mark.parametrize("kind", [FileImages, OwnImages])
def test_what_could_be_read_is_not_tried_again_unless_it_has_changed(
    tmp_path: Path, kind: type[FileImages]
) -> None:
    for i in range(3):
        write_image(tmp_path / f"{i}.png", value=i)
    (tmp_path / "1.png").write_bytes(b"no image")
    tried: list[int] = []

    def readable(intensity: str = "range") -> list[int]:
        images = kind(tmp_path, [f"{i}.png" for i in range(3)], [0, 0, 0])
        reading = Reading(intensity=intensity)
        tried.clear()

        def read(row: int) -> None:
            tried.append(row)
            images.image(row, reading)

        rows = readable_rows(
            small_backbone(preprocess=Preprocess(16, 16, reading=reading)),
            *(images, np.arange(3), tmp_path / "cache"),
            dtype="float32",
            read=read,
            unreadable=UnreadableImages(1.0),
        )
        return [int(row) for row in rows]

    assert (readable(), sorted(tried)) == ([0, 2], [0, 1, 2])
    assert (readable(), tried) == ([0, 2], [1])
    write_image(tmp_path / "1.png")
    (tmp_path / "2.png").write_bytes(b"no image either")
    assert (readable(), sorted(tried)) == ([0, 1], [1, 2])
    assert (readable("1-99"), sorted(tried)) == ([0, 1], [0, 1, 2])
