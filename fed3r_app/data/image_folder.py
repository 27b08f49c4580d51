"""Images sorted into one folder per class: the data set `imagefolder`.

Layout: `data-path/train/<class>/…` and, optionally, `data-path/test/<class>/…`.
Images may lie any number of folders deeper; other files are passed over.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from fed3r_app.data.images import DataSet, FileImages

SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp"),
    *(".tif", ".tiff", ".gif", ".ppm", ".pgm"),
)


def named_folder(dataset: str, data_path: str) -> Path:
    """Return data-path, which the data set cannot do without; it may not exist yet."""
    if not data_path:
        raise ValueError(
            f"data-path must name a folder when dataset = {dataset!r}, "
            f"got {data_path!r}. Add --run-config 'data-path=\"…\"'."
        )
    return Path(data_path).expanduser()


def existing_folder(dataset: str, data_path: str) -> Path:
    """Return data-path, which must be a folder that is already there."""
    folder = named_folder(dataset, data_path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data-path must be an existing folder when dataset = {dataset!r}, "
            f"got {data_path!r}. A relative path starts from {Path.cwd()}."
        )
    return folder


def load_imagefolder(name: str, data_path: str) -> DataSet:
    """Return the images below data-path; the classes are the folders of train."""
    root = existing_folder(name, data_path)
    if not (root / "train").is_dir():
        raise FileNotFoundError(
            f"data-path must hold train/<class>/… when dataset = {name!r}, "
            f"got {data_path!r} without a folder train."
        )
    class_names = class_folders(root / "train")
    train, test = _read_part(root, "train", class_names), None
    if (root / "test").is_dir():
        unknown = sorted(set(class_folders(root / "test")) - set(class_names))
        if unknown:
            raise ValueError(
                f"Every class folder of {root / 'test'} must also be in train, "
                f"got {', '.join(unknown)}. Rename it, or add it to train, be it empty."
            )
        test = _read_part(root, "test", class_names)
    return DataSet(name, class_names, train, test)


def _read_part(root: Path, part: str, class_names: tuple[str, ...]) -> FileImages:
    """Return the images of train or test, ordered by class and path."""
    paths: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        found = sorted(image_paths(root, os.path.join(part, class_name)))
        paths.extend(found)
        labels.extend([label] * len(found))
    if not paths:
        raise FileNotFoundError(
            f"{root / part} must hold images as <class>/<image>, got none "
            f"(known endings: {' '.join(SUFFIXES)})."
        )
    return FileImages(root, paths, labels)


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the folders in a folder, hidden ones left out."""
    with os.scandir(folder) as entries:
        folders = [entry.name for entry in entries if entry.is_dir()]
    return tuple(sorted(name for name in folders if not name.startswith(".")))


def image_paths(root: Path, below: str) -> Iterator[str]:
    """Yield the images below a folder, as paths relative to root."""
    for folder, _, files in os.walk(root / below, followlinks=True):
        for file in files:
            if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                yield os.path.relpath(os.path.join(folder, file), root)
