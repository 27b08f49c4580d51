"""Where iNaturalist 2017 keeps its images, from its annotation files.

`train2017.json` and `val2017.json` have a table `images` of `id` and `file_name`
(`train_val_images/<kingdom>/<species>/<32 hex digits>.jpg`). The published splits
name an image by the last part of its file name; its number `id` is understood too.
"""

import json
from collections.abc import Sequence
from pathlib import Path

_ANNOTATION_FILES = ("train2017.json", "val2017.json")


def find_inaturalist_images(root: Path, image_ids: Sequence[str]) -> list[str]:
    """Return the file of each image of a split file; no image is touched.

    Paths are relative to root, the folder of images and annotation files.
    """
    there = [file for file in _ANNOTATION_FILES if (root / file).is_file()]
    if not there:
        raise FileNotFoundError(
            f"data-path must hold {' or '.join(_ANNOTATION_FILES)} of iNaturalist "
            f"2017, got {root} with neither. They say where the images lie."
        )
    wanted = set(image_ids)
    found: dict[str, str] = {}
    for file in there:
        # The files are large: the second is read only where the first falls short.
        if len(found) < len(wanted):
            found = {**_read_file_names(root / file, wanted), **found}
    lost = [image_id for image_id in image_ids if image_id not in found]
    if lost:
        absent = [file for file in _ANNOTATION_FILES if file not in there]
        hint = f" {absent[0]} is not there: add it." if absent else ""
        raise FileNotFoundError(
            f"Every image_id must be listed in the annotations, got {len(lost)} that "
            f"{' and '.join(there)} in {root} lack; the first is {lost[0]!r}.{hint}"
        )
    return [found[image_id] for image_id in image_ids]


def _read_file_names(path: Path, wanted: set[str]) -> dict[str, str]:
    """Return the file names of the wanted images that an annotation file lists."""
    try:
        images = json.loads(path.read_bytes())["images"]
        by_number = {str(image["id"]): str(image["file_name"]) for image in images}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must be an annotation file of iNaturalist 2017, with a list "
            f"images of id and file_name, got: {error!r}. Is it cut off?"
        ) from error
    # Plain string methods: pathlib takes many seconds for 600,000 names.
    by_stem = {
        name.rpartition("/")[2].partition(".")[0]: name for name in by_number.values()
    }
    files = {**by_stem, **by_number}
    return {image_id: files[image_id] for image_id in wanted & files.keys()}
