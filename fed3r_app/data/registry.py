"""The data sets by name."""

from collections.abc import Callable
from functools import lru_cache

from fed3r_app.data.cifar import load_cifar
from fed3r_app.data.image_folder import load_imagefolder
from fed3r_app.data.images import DataSet
from fed3r_app.data.local_folder import LOCAL, load_local
from fed3r_app.data.packaged import load_digits, load_digits_small, load_grocery
from fed3r_app.data.published import FEDERATION_NAMES, load_published
from fed3r_app.data.synthetic import NAME as SYNTHETIC
from fed3r_app.data.synthetic import check_synthetic, load_synthetic

# name, data-path -> data set
_LOADERS: dict[str, Callable[[str, str], DataSet]] = {
    "digits": lambda _name, _data_path: load_digits(),
    "digits-small": lambda _name, _data_path: load_digits_small(),
    "grocery": lambda _name, _data_path: load_grocery(),
    "cifar10": load_cifar,
    "cifar100": load_cifar,
    "imagefolder": load_imagefolder,
    **dict.fromkeys(FEDERATION_NAMES, load_published),
    LOCAL: lambda _name, data_path: load_local(data_path),
    SYNTHETIC: load_synthetic,
}


DATASETS = tuple(_LOADERS)
# Those that read nothing below data-path.
PACKAGED = ("digits", "digits-small", "grocery")


def check_dataset(name: str) -> None:
    """Raise unless there is a data set of that name; nothing is read."""
    kind, colon, _ = name.partition(":")
    if kind not in _LOADERS or (colon and kind != SYNTHETIC):
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {name!r}.")
    if kind == SYNTHETIC:
        check_synthetic(name)


def load_dataset(name: str, data_path: str) -> DataSet:
    """Return a data set; the same object when asked again for the same arguments.

    Parameters
    ----------
    name : str
        `dataset` of the run config: one of DATASETS, or `synthetic:key=value,…`.
    data_path : str
        `data-path` of the run config; unused by those of PACKAGED.
    """
    return _load_once(name, data_path)


# The simulated clients of one process ask again and again.
@lru_cache(maxsize=4)
def _load_once(name: str, data_path: str) -> DataSet:
    """Return a data set that is kept for the next call."""
    check_dataset(name)
    return _LOADERS[name.partition(":")[0]](name, data_path)
