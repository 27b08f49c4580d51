"""FLOPs are counted once, and a damaged memory is counted again."""

from pathlib import Path

from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.flops import count_forward_flops, forward_flops
from fed3r_app.features.spec import BackboneSpec


def test_flops_are_counted_once_and_then_remembered(tmp_path: Path) -> None:
    backbone = load_backbone(BackboneSpec("mobilenet_v2", "random", 32))
    counted = forward_flops(backbone, tmp_path)
    assert counted == count_forward_flops(backbone.module, 32)
    (path,) = tmp_path.iterdir()
    path.write_text('{"flops": 7}')
    assert forward_flops(backbone, tmp_path) == 7


def test_a_damaged_memory_is_counted_again(tmp_path: Path) -> None:
    backbone = load_backbone(BackboneSpec("mobilenet_v2", "random", 32))
    counted = forward_flops(backbone, tmp_path)
    (path,) = tmp_path.iterdir()
    for damage in ("", "{", "[]", '{"flops": null}'):
        path.write_text(damage)
        assert forward_flops(backbone, tmp_path) == counted


def test_another_size_is_another_number(tmp_path: Path) -> None:
    small = forward_flops(
        load_backbone(BackboneSpec("mobilenet_v2", "random", 32)), tmp_path
    )
    assert (
        forward_flops(
            load_backbone(BackboneSpec("mobilenet_v2", "random", 64)), tmp_path
        )
        > small
    )
