"""The CSV format of the published federations: who has which image of which class.

Columns: `user_id` (training files only), `image_id`, `class`, and in iNaturalist's
files `label`, the class in the source data set. Others are passed over.
"""

from dataclasses import dataclass, field
from pathlib import Path

from fed3r_app.data.csv_rows import read_rows, whole_number

# How a training file marks an image that belongs to no client.
_NO_USER = ("", "NA")


@dataclass
class SplitFile:
    """The rows of a split file, column by column."""

    users: list[str] = field(default_factory=list)  # empty strings in a test file
    image_ids: list[str] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)  # numbers as written
    class_labels: dict[int, str] = field(default_factory=dict)  # `label` of a class
    num_without_user: int = 0  # training rows left out: they belong to no client


def read_split_file(path: Path, with_users: bool) -> SplitFile:
    """Return the content of a split file; with_users: of training, not of test."""
    needed = ["user_id"] * with_users + ["image_id", "class"]
    split = SplitFile()
    for line, row in read_rows(path, needed, complete=True):
        number = whole_number(path, line, "class", row["class"])
        if with_users and row["user_id"] in _NO_USER:
            split.num_without_user += 1
            continue
        split.users.append(row.get("user_id", ""))
        split.image_ids.append(row["image_id"])
        split.classes.append(number)
        if row.get("label"):
            split.class_labels[number] = row["label"]
    if not split.image_ids:
        raise ValueError(f"{path} must have at least one image, got none.")
    return split
