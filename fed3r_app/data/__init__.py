"""Data sets as images with labels, and how their rows are split over clients.

Lists files, decodes images and holds a part of them out; resizing and normalising
belong to ``features``. May ask ``files``, ``console`` and ``errors``.
"""

from fed3r_app.data.images import DataSet, GivenFeatures, ImageSet
from fed3r_app.data.local_folder import LOCAL, load_local
from fed3r_app.data.partition import split_rows
from fed3r_app.data.registry import (
    DATASETS,
    PACKAGED,
    check_dataset,
    dataset_traits,
    load_dataset,
)

__all__ = [
    "DATASETS",
    "LOCAL",
    "PACKAGED",
    "DataSet",
    "GivenFeatures",
    "ImageSet",
    "check_dataset",
    "dataset_traits",
    "load_dataset",
    "load_local",
    "split_rows",
]
