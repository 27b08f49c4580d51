"""The CSV format of the published federations: who has which image of which class.

Columns: `user_id` (training files only), `image_id`, `class`, and in iNaturalist's
files `label`, the class in the source data set. Others are passed over.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

# How a training file marks an image that belongs to no client.
_NO_USER = ("", "NA")


class _Row(NamedTuple):
    """One line; a column that the file lacks is empty."""

    user: str
    image_id: str
    class_number: int
    label: str


@dataclass(frozen=True)
class SplitFile:
    """The rows of a split file, column by column.

    Attributes
    ----------
    users : list of str
        user_id of each row; empty strings in a test file.
    image_ids : list of str
    classes : NDArray of shape (n,), int64
        Class numbers as written.
    class_labels : dict from int to str
        `label` of each class; empty without that column.
    num_without_user : int
        Number of training rows left out because they belong to no client.
    """

    users: list[str]
    image_ids: list[str]
    classes: NDArray[np.int64]
    class_labels: dict[int, str]
    num_without_user: int


def read_split_file(path: Path, with_users: bool) -> SplitFile:
    """Return the content of a split file; with_users: of training, not of test."""
    needed = ["user_id"] * with_users + ["image_id", "class"]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(_read_rows(path, file, needed))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be CSV in UTF-8, got: {error}.") from error
    kept = [row for row in rows if not with_users or row.user not in _NO_USER]
    if not kept:
        raise ValueError(f"{path} must have at least one image, got none.")
    return SplitFile(
        users=[row.user for row in kept],
        image_ids=[row.image_id for row in kept],
        classes=np.array([row.class_number for row in kept], dtype=np.int64),
        class_labels={row.class_number: row.label for row in kept if row.label},
        num_without_user=len(rows) - len(kept),
    )


def _read_rows(path: Path, file: TextIO, needed: list[str]) -> Iterator[_Row]:
    """Yield the rows of a file that must have the needed columns."""
    reader = csv.reader(file)
    header = next(reader, [])
    if not set(needed) <= set(header):
        raise ValueError(
            f"{path} must have the columns {', '.join(needed)} in line 1, "
            f"got {', '.join(header) or 'nothing'}."
        )
    # A column that is not there is read from an empty cell put after the last one.
    names = ("user_id", "image_id", "class", "label")
    user, image, number, label = (
        header.index(name) if name in header else len(header) for name in names
    )
    for cells in reader:
        if not cells:  # a blank line
            continue
        if len(cells) != len(header):
            raise ValueError(
                f"{path} line {reader.line_num} must have {len(header)} columns, "
                f"got {len(cells)}. Is the file cut off?"
            )
        # Nine digits are plenty, and fit into any integer type.
        if not (cells[number].isdecimal() and len(cells[number]) < 10):
            raise ValueError(
                f"{path} line {reader.line_num}: class must be a whole number >= 0, "
                f"got {cells[number]!r}."
            )
        cells.append("")
        yield _Row(cells[user], cells[image], int(cells[number]), cells[label])
