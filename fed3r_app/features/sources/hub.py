"""Files of the Hugging Face Hub, and folders with the same files on this machine.

The Hub's own cache is asked first where the Hub can't be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Safetensors are preferred; the others are read without running code in them.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def download(
    backbone: str, repository: str, patterns: Sequence[str], needed: str, copy: str
) -> Path:
    """Return a folder with the files of a repository whose names fit the patterns.

    ``needed`` says which these are, and ``copy`` what `weights` may be instead.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # of httpx, of the Hub's own kinds, of the system
        reason = str(error).split("\n")[0].removeprefix("Got: ").rstrip(".")
        raise OSError(
            f"backbone = {backbone!r} must be able to download {needed} of {repository}"
            f" from the Hugging Face Hub, got: {reason}. Without a network, copy "
            f"{needed} here from a machine that has one, and set weights to {copy}."
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the weights in a folder, the one to open first."""
    for name in WEIGHT_FILES:
        stem, suffix = name.rsplit(".", 1)
        found = [folder / name] if (folder / name).is_file() else []
        # Large ones are in parts: NAME-00001-of-00002.
        if found := found or sorted(folder.glob(f"{stem}-*-of-*.{suffix}")):
            return found
    raise FileNotFoundError(
        f"weights must be a folder with {' or '.join(WEIGHT_FILES)}, got {folder} "
        "without."
    )
