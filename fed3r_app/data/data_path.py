"""The checks on `data-path` that the data sets kept in files share."""

from pathlib import Path


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
