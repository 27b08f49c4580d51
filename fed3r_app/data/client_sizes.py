"""How many images each client has: from a CSV, or drawn.

The CSV has the columns `client` and `num_images`; its rows `test` and `missing` are
not clients.
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

_COLUMNS = ("client", "num_images")
_NOT_CLIENTS = ("test", "missing")
# Spread of the logarithm of the sizes; the published federations have 0.9 to 1.3.
_LOG_SPREAD = 1.1


def read_client_sizes(path: Path) -> dict[str, int]:
    """Return the number of images of each client, in the order of the file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(_read_rows(path, file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be CSV in UTF-8, got: {error}.") from error
    sizes = {name: size for name, size in rows if name not in _NOT_CLIENTS}
    if len(sizes) < sum(name not in _NOT_CLIENTS for name, _ in rows):
        raise ValueError(f"{path} must name each client once, got one twice.")
    if not sum(sizes.values()):
        raise ValueError(f"{path} must have at least one client with images, got none.")
    return sizes


def draw_client_sizes(num_clients: int, mean: float, seed: int) -> NDArray[np.int64]:
    """Return log-normal sizes (K,), all >= 1, whose expectation is about the mean."""
    draw = np.random.default_rng(seed).lognormal(0.0, _LOG_SPREAD, num_clients)
    scaled = draw * mean / math.exp(_LOG_SPREAD**2 / 2)
    return np.maximum(scaled.round(), 1).astype(np.int64)


def _read_rows(path: Path, file: TextIO) -> Iterator[tuple[str, int]]:
    """Yield the client and the number of each row."""
    reader = csv.DictReader(file)
    if not set(_COLUMNS) <= set(reader.fieldnames or ()):
        raise ValueError(
            f"{path} must have the columns {', '.join(_COLUMNS)} in line 1, got "
            f"{', '.join(reader.fieldnames or ()) or 'nothing'}."
        )
    for row in reader:
        name, size = row["client"], row["num_images"] or ""
        # Nine digits are plenty, and fit into any integer type.
        if not (size.isdecimal() and len(size) < 10):
            raise ValueError(
                f"{path} line {reader.line_num}: num_images must be a whole number "
                f">= 0, got {size!r}."
            )
        yield name, int(size)
