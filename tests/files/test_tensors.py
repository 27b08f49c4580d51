"""Tensors in a file: as they were, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fed3r_app.files.tensors import read_tensors, write_tensors


@pytest.fixture
def path(tmp_path: Path) -> Any:
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_tensors_of_any_kind_come_back(path: Path, dtype: Any, shape: Any) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    write_tensors(path, "test", {"x": tensor}, {"names": ["ä"]})
    tensors, about = read_tensors(path, "test")
    assert tensors["x"].dtype == dtype
    assert torch.equal(tensors["x"], tensor)
    assert about == {"names": ["ä"]}


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"PK\3\4 a zip file" * 10])
def test_a_foreign_file_is_refused(path: Path, content: Any) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="Is the file cut off or damaged"):
        read_tensors(path, "test")


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(OSError, match=r"x\.safetensors can't be read: No such"):
        read_tensors(path, "test")


def test_a_folder_in_the_place_of_the_file_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError, match=r"x\.safetensors can't be read"):
        read_tensors(path, "test")
