"""Data sets and how their training rows are split over clients."""

from fed3r_app.data.images import DataSet, ImageSet
from fed3r_app.data.loading import DATASETS, PACKAGED, load_dataset
from fed3r_app.data.splits import split_rows

__all__ = [
    "DATASETS",
    "PACKAGED",
    "DataSet",
    "ImageSet",
    "load_dataset",
    "split_rows",
]
