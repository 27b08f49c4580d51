"""How many images each client has: from a CSV, or drawn.

The CSV has the columns `client` and `num_images`; its rows `test` and `missing` are
not clients.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fed3r_app.data.csv_rows import read_rows, whole_number

_NOT_CLIENTS = ("test", "missing")
# Spread of the logarithm of the sizes; the published federations have 0.9 to 1.3.
_LOG_SPREAD = 1.1


def read_client_sizes(path: Path) -> dict[str, int]:
    """Return the number of images of each client, in the order of the file."""
    sizes: dict[str, int] = {}
    for line, row in read_rows(path, ("client", "num_images")):
        name = row["client"]
        size = whole_number(path, line, "num_images", row["num_images"])
        if name in sizes:
            raise ValueError(f"{path} must name each client once, got {name!r} twice.")
        if name not in _NOT_CLIENTS:
            sizes[name] = size
    if not sum(sizes.values()):
        raise ValueError(f"{path} must have at least one client with images, got none.")
    return sizes


def draw_client_sizes(num_clients: int, mean: float, seed: int) -> NDArray[np.int64]:
    """Return log-normal sizes (K,), all >= 1, whose expectation is about the mean."""
    draw = np.random.default_rng(seed).lognormal(0.0, _LOG_SPREAD, num_clients)
    scaled = draw * mean / math.exp(_LOG_SPREAD**2 / 2)
    return np.maximum(scaled.round(), 1).astype(np.int64)
