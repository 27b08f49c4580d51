"""Images in folders named after their classes, or listed in a table.

One of three layouts:

- `<class>/…`: all images are for training;
- `train/<class>/…` and, optionally, `test/<class>/…`;
- a table `labels.csv` with the columns path, label and, optionally, split (train or
  test); paths start from the table's folder.

Images may lie any number of folders deeper; other files are passed over, with a line
in the log. The data set `imagefolder` is such a folder, which the clients share;
`local` one for each node.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fed3r_app.data.csv_rows import read_rows
from fed3r_app.data.images import DataSet, FileImages

SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp"),
    *(".tif", ".tiff", ".gif", ".ppm", ".pgm"),
)
TRAIN, TEST = "train", "test"
_TABLE = "labels.csv"
_LOG = logging.getLogger(__name__)
# path relative to the root, class, part
_Row = tuple[str, str, str]


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


@dataclass(frozen=True)
class Listing:
    """Which images there are, in the order of classes and paths; none is opened."""

    root: Path  # where the paths start
    rows: Sequence[_Row]
    folders: tuple[str, ...]  # classes with a folder for training, be it empty

    def classes(self, *parts: str) -> set[str]:
        """Return the classes that have images in some parts."""
        return {label for _, label, part in self.rows if part in parts}

    def data_set(
        self, name: str, classes: Iterable[str], of_kind: type[FileImages]
    ) -> DataSet:
        """Return the images as a data set of some classes, in the order of names."""
        class_names = tuple(sorted(classes))
        index = {label: i for i, label in enumerate(class_names)}
        parts = []
        for part in (TRAIN, TEST):
            chosen = [row for row in self.rows if row[2] == part]
            paths = [path for path, _, _ in chosen]
            labels = [index[label] for _, label, _ in chosen]
            parts.append(of_kind(self.root, paths, labels))
        train, test = parts
        return DataSet(name, class_names, train, test if len(test) else None)


def load_imagefolder(name: str, data_path: str) -> DataSet:
    """Return the images below data-path; a class must have a place in training."""
    named_folder(name, data_path)
    listing = list_images(data_path, may_be_beside=True)
    known = listing.classes(TRAIN).union(listing.folders)
    unknown = sorted(listing.classes(TEST) - known)
    if unknown:
        raise ValueError(
            f"Every class of the test images in {listing.root} must also be in train, "
            f"got {', '.join(unknown)}. Rename it, or add it to train, be it empty."
        )
    return listing.data_set(name, known, FileImages)


def list_images(data_path: str, may_be_beside: bool = False) -> Listing:
    """Return the images below a folder, or in a table; at least one to train on.

    Where there may be other folders beside train and test, they are passed over.
    """
    path = Path(data_path).expanduser()
    table = path / _TABLE if path.is_dir() else path
    if table.is_file() and table.suffix.lower() == ".csv":
        listing = Listing(table.parent, [*_read_table(table)], ())
    elif path.is_dir():
        listing = _Folders(path).listing(may_be_beside)
    else:
        raise FileNotFoundError(
            "data-path must be a folder of images or a table of them (.csv), got "
            f"{data_path!r}, which is not there. A relative path starts from "
            f"{Path.cwd()}."
        )
    if not listing.classes(TRAIN):
        raise FileNotFoundError(
            f"data-path must hold images as <class>/<image>, train/<class>/<image> or "
            f"in {_TABLE}, got {data_path!r} without any (known endings: "
            f"{' '.join(SUFFIXES)}; links to other folders are not followed)."
        )
    for label in listing.classes(TRAIN, TEST):
        _check_name(label)
    in_order = sorted(listing.rows, key=lambda row: (row[1], row[0]))
    return replace(listing, rows=in_order)


def _check_name(label: str) -> None:
    """Raise unless the name of a class is text, which can travel and be written."""
    try:
        label.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"Names of classes must be UTF-8, got {os.fsencode(label)!r}. Was the "
            "folder unpacked from an archive with another encoding? Rename it."
        ) from None


class _Folders:
    """Images in folders named after their classes.

    Links are followed to files within the folder only: others may lead out of it, or
    make a loop. They are named in the log.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._inside = os.path.realpath(root) + os.sep
        self._links: set[str] = set()
        self._others: Counter[str] = Counter()  # files that are no images, by ending

    def listing(self, may_be_beside: bool) -> Listing:
        """Return the images, and the folders of train, be they empty."""
        parts = self._parts(may_be_beside)
        self._others.clear()  # of folders that only may have been classes
        rows = [*self._rows(parts)]
        self._warn_of_others()
        if self._links:
            _LOG.warning(
                "%s: links are followed to files within the folder only; %d others "
                "are passed over, the first is %s.",
                *(self._root, len(self._links), min(self._links)),
            )
        folders = class_folders(self._root / (TRAIN if parts else ""))
        return Listing(self._root, rows, folders)

    def _warn_of_others(self) -> None:
        """Say how many files are no images, and their commonest endings."""
        if self._others:
            by_number = sorted(self._others.items(), key=lambda item: (-item[1], item))
            common = ", ".join(f"{number} {ending}" for ending, number in by_number[:5])
            _warn_once(
                f"{self._root}: {self._others.total()} files are passed over, which "
                f"are no images by their endings: {common}. Known endings: "
                f"{' '.join(SUFFIXES)}."
            )

    def _parts(self, may_be_beside: bool) -> list[str]:
        """Return which of train and test there are; none: the folders are classes.

        A class may be called train, too: then it has no folders in it.
        """
        names = self._names("")
        parts = [part for part in (TRAIN, TEST) if part in names]
        parts = [part for part in parts if class_folders(self._root / part)]
        if parts == [TEST]:
            raise FileNotFoundError(
                "data-path must hold train/<class>/… beside test/<class>/…, got "
                f"{self._root} without it."
            )
        others = [name for name in names if parts and name not in parts]
        # An empty folder is nothing: test/ may be there before its images are.
        beside = [name for name in others if any(self._image_paths(name))]
        if beside and not may_be_beside:
            raise ValueError(
                "data-path must hold <class>/… or train/<class>/… and test/<class>/…, "
                f"got both in {self._root}: {', '.join(beside[:5])} beside "
                f"{' and '.join(parts)}."
            )
        if beside:
            _LOG.warning(
                "%s: %s beside %s are passed over.",
                *(self._root, ", ".join(beside[:5]), " and ".join(parts)),
            )
        return parts

    def _rows(self, parts: Sequence[str]) -> Iterator[_Row]:
        for part in parts or [""]:
            for label in self._names(part):
                for path in self._image_paths(os.path.join(part, label)):
                    yield path, label, part or TRAIN

    def _names(self, below: str) -> tuple[str, ...]:
        """Return the names of the folders in a folder."""
        with os.scandir(self._root / below) as entries:
            self._links.update(e.path for e in entries if e.is_symlink() and e.is_dir())
        return class_folders(self._root / below)

    def _image_paths(self, below: str) -> Iterator[str]:
        """Yield the images below a folder, as paths relative to the root."""
        for folder, folders, files in os.walk(self._root / below):
            below_here = (os.path.join(folder, name) for name in folders)
            self._links.update(path for path in below_here if os.path.islink(path))
            for file in files:
                if file.startswith("."):
                    continue
                if not file.lower().endswith(SUFFIXES):
                    ending = os.path.splitext(file)[1].lower()
                    self._others[ending or "without an ending"] += 1
                    continue
                path = os.path.join(folder, file)
                inside = self._inside
                target = os.path.realpath(path) if os.path.islink(path) else inside
                if target.startswith(inside):
                    yield os.path.relpath(path, self._root)
                else:
                    self._links.add(path)


@cache
def _warn_once(sentence: str) -> None:
    """Log a sentence, once a process: a folder is listed again and again."""
    _LOG.warning(sentence)


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the folders in a folder; hidden ones and links not."""
    with os.scandir(folder) as entries:
        folders = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    return tuple(sorted(name for name in folders if not name.startswith(".")))


def _read_table(table: Path) -> Iterator[_Row]:
    """Yield the images of a table."""
    for line, row in read_rows(table, ("path", "label")):
        path, label = row["path"].strip(), row["label"].strip()
        part = (row.get("split") or TRAIN).strip()
        if not path or not label or part not in (TRAIN, TEST):
            # The sentence may go to the server, and the row names a file.
            _LOG.warning("%s line %d: %s", table, line, list(row.values()))
            raise ValueError(
                f"{table} line {line} must be a path, a label and, where there is a "
                "split, train or test, got something else."
            )
        yield path, label, part
