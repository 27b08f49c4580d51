"""FLOPs are counted once, and a damaged memory is counted again."""

from pathlib import Path

from fed3r_app.features.backbone import load_backbone
from fed3r_app.features.flops import count_forward_flops, forward_flops
from fed3r_app.features.spec import BackboneSpec


def test_flops_are_counted_once_and_again_where_the_memory_is_damaged(
    tmp_path: Path,
) -> None:
    small, large = (
        load_backbone(BackboneSpec("mobilenet_v2", "random", size)) for size in (32, 64)
    )
    counted = forward_flops(small, tmp_path)
    assert counted == count_forward_flops(small.module, 32)
    (path,) = tmp_path.iterdir()
    for damage in ("", "{", "[]", '{"flops": null}'):
        path.write_text(damage)
        assert forward_flops(small, tmp_path) == counted
    path.write_text('{"flops": 7}')
    assert forward_flops(small, tmp_path) == 7
    assert forward_flops(large, tmp_path) > counted
