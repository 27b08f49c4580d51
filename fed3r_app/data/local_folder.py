"""The images of a node of its own: a folder that no other node sees.

One of three layouts:

- `<class>/…`: all images are for training;
- `train/<class>/…` and, optionally, `test/<class>/…`;
- a table `labels.csv` with the columns path, label and, optionally, split (train or
  test); paths start from the table's folder.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fed3r_app.data.csv_rows import read_rows
from fed3r_app.data.image_folder import SUFFIXES, class_folders, image_paths
from fed3r_app.data.images import DataSet, OwnImages

LOCAL = "local"
TABLE = "labels.csv"
_TRAIN, _TEST = "train", "test"
# path relative to the root, class, part
_Row = tuple[str, str, str]


def load_local(data_path: str) -> DataSet:
    """Return a node's own images; the classes are those it has, sorted by name."""
    path = Path(data_path).expanduser()
    if path.is_dir():
        table = path / TABLE
        rows = _read_table(table) if table.is_file() else _read_folders(path)
        root = path
    elif path.is_file() and path.suffix.lower() == ".csv":
        rows, root = _read_table(path), path.parent
    else:
        raise FileNotFoundError(
            "data-path must be a folder of images or a table of them (.csv), got "
            f"{data_path!r}, which is not there."
        )
    found = sorted(rows, key=lambda row: (row[1], row[0]))
    class_names = tuple(sorted({label for _, label, _ in found}))
    train, test = (_part(root, found, part, class_names) for part in (_TRAIN, _TEST))
    if not len(train):
        raise FileNotFoundError(
            f"data-path must hold images as <class>/<image>, train/<class>/<image> or "
            f"in {TABLE}, got {data_path!r} without any (known endings: "
            f"{' '.join(SUFFIXES)})."
        )
    return DataSet(LOCAL, class_names, train, test if len(test) else None)


def _part(
    root: Path, rows: Sequence[_Row], part: str, class_names: tuple[str, ...]
) -> OwnImages:
    index = {name: i for i, name in enumerate(class_names)}
    chosen = [row for row in rows if row[2] == part]
    paths = [path for path, _, _ in chosen]
    return OwnImages(root, paths, [index[label] for _, label, _ in chosen])


def _read_folders(root: Path) -> Iterator[_Row]:
    """Yield the images in folders named after their classes."""
    parts = [part for part in (_TRAIN, _TEST) if _holds_folders(root / part)]
    if parts == [_TEST]:
        raise FileNotFoundError(
            f"data-path must hold train/<class>/… beside test/<class>/…, got {root} "
            "without it."
        )
    beside = [name for name in class_folders(root) if parts and name not in parts]
    if beside:
        raise ValueError(
            f"data-path must hold <class>/… or train/<class>/… and test/<class>/…, got "
            f"both in {root}: {', '.join(beside[:5])} beside {' and '.join(parts)}."
        )
    for part in parts or [""]:
        for label in class_folders(root / part):
            for path in image_paths(root, str(Path(part) / label)):
                yield path, label, part or _TRAIN


def _holds_folders(folder: Path) -> bool:
    """Return whether a folder has folders in it: a class may be called train, too."""
    return folder.is_dir() and bool(class_folders(folder))


def _read_table(table: Path) -> Iterator[_Row]:
    """Yield the images of a table."""
    for line, row in read_rows(table, ("path", "label")):
        path, label = row["path"].strip(), row["label"].strip()
        part = (row.get("split") or _TRAIN).strip()
        if not path or not label or part not in (_TRAIN, _TEST):
            raise ValueError(
                f"{table} line {line} must be a path, a label and, where there is a "
                f"split, train or test, got {list(row.values())}."
            )
        yield path, label, part
