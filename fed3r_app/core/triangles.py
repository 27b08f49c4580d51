"""Upper triangles as they are stored and sent: row by row, without the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def take_upper(M: Tensor) -> Tensor:
    """Return the entries of an upper triangle or trapezium (r, d), row by row.

    Slices, not indices: those would take four times the memory of the matrix.
    """
    rows = M.numpy()
    parts = [row[start:] for start, row in enumerate(rows)]
    return torch.from_numpy(np.concatenate([rows[:0].ravel(), *parts]))


def put_upper(entries: NDArray[Any], rows: int, columns: int) -> Tensor:
    """Return the matrix (rows, columns), float64, that ``take_upper`` took apart."""
    M = torch.zeros(rows, columns, dtype=torch.float64)
    begin = 0
    for start, row in enumerate(M.numpy()):
        end = begin + columns - start
        row[start:] = entries[begin:end]
        begin = end
    return M


def trapezium_size(rows: int, columns: int) -> int:
    """Return the number of entries of an upper trapezium."""
    return rows * columns - rows * (rows - 1) // 2
