"""Data sets and how their training rows are split over clients."""

from fed3r_app.data.images import DataSet, GivenFeatures, ImageSet
from fed3r_app.data.loading import DATASETS, PACKAGED, check_dataset, load_dataset
from fed3r_app.data.local_images import LOCAL, load_local
from fed3r_app.data.splits import split_rows

__all__ = [
    "DATASETS",
    "LOCAL",
    "PACKAGED",
    "DataSet",
    "GivenFeatures",
    "ImageSet",
    "check_dataset",
    "load_dataset",
    "load_local",
    "split_rows",
]
