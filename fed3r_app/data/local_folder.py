"""The images of a node of its own: a folder that no other node sees.

For its layouts see ``image_folder``.
"""

from fed3r_app.data.image_folder import TEST, TRAIN, list_images
from fed3r_app.data.images import DataSet, OwnImages

LOCAL = "local"


def load_local(data_path: str) -> DataSet:
    """Return a node's own images; the classes are those it has, sorted by name."""
    listing = list_images(data_path)
    return listing.data_set(LOCAL, listing.classes(TRAIN, TEST), OwnImages)
