"""Where tensors live and features are kept on this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch


def resolve_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device must be auto, cpu, cuda or cuda:N with float64, got {name!r}: "
            f"{reason}"
        ) from None
    return device


def cache_dir() -> Path:
    """Return the folder of cached features: $FED3R_CACHE_DIR, else the user's cache.

    Features tell of the images: a folder that is not there yet is made for its owner
    alone. One that is there stays as it is.
    """
    configured = os.environ.get("FED3R_CACHE_DIR")
    folder = Path(configured) if configured else Path.home() / ".cache" / "fed3r"
    with suppress(OSError):  # whoever writes there says what is wrong with it
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
