"""The data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from fed3r_app.data.cifar import load_cifar, load_cifar100_small
from fed3r_app.data.hold_out import hold_out
from fed3r_app.data.image_folder import load_imagefolder
from fed3r_app.data.images import DataSet
from fed3r_app.data.local_folder import LOCAL, load_local
from fed3r_app.data.packaged import load_digits, load_grocery
from fed3r_app.data.published import FEDERATION_NAMES, load_published
from fed3r_app.data.synthetic import NAME as SYNTHETIC
from fed3r_app.data.synthetic import load_synthetic, read_recipe
from fed3r_app.files.row_cache import cache_dir


@dataclass(frozen=True)
class Traits:
    """What is known of a data set by its name."""

    load: Callable[[str, str], DataSet]  # from name and data-path
    needs_path: bool = True  # read from files that the user has below data-path
    may_mirror: bool = True  # a mirrored image is still of its class
    # Known to be so: ``augment = "auto"`` mirrors. Left and right matter in an X-ray.
    augments: bool = False
    gives_features: bool = False  # the samples are features, not images
    of_nodes: bool = False  # the images are the nodes' own
    has_clients: bool = False  # natural ones, for ``partition = "natural"``
    may_hold_out: bool = False  # there may be no test set: `test-share` makes one
    # What ``image-size = "auto"`` is; 0: the size that the weights were trained at.
    image_size: int = 0


_TRAITS: dict[str, Traits] = {
    **dict.fromkeys(
        ("digits", "digits-small"),
        Traits(
            lambda name, _path: load_digits(name),
            needs_path=False,
            may_mirror=False,
            image_size=96,
        ),
    ),
    "grocery": Traits(
        lambda _name, _path: load_grocery(), needs_path=False, augments=True
    ),
    "cifar10": Traits(load_cifar, augments=True),
    "cifar100": Traits(load_cifar, augments=True),
    "cifar100-small": Traits(load_cifar100_small, augments=True),
    "imagefolder": Traits(load_imagefolder, may_hold_out=True),
    **dict.fromkeys(
        FEDERATION_NAMES, Traits(load_published, augments=True, has_clients=True)
    ),
    LOCAL: Traits(
        lambda _name, data_path: load_local(data_path),
        of_nodes=True,
        has_clients=True,
        may_hold_out=True,
    ),
    SYNTHETIC: Traits(
        load_synthetic, needs_path=False, gives_features=True, has_clients=True
    ),
}


DATASETS = tuple(_TRAITS)
# Images that come with a package.
PACKAGED = tuple(
    name
    for name, traits in _TRAITS.items()
    if not traits.needs_path and not traits.gives_features
)


def dataset_traits(name: str) -> Traits:
    """Return what is known of a data set; nothing is read."""
    kind, colon, _ = name.partition(":")
    if kind not in _TRAITS or (colon and kind != SYNTHETIC):
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {name!r}.")
    return _TRAITS[kind]


def check_dataset(name: str) -> None:
    """Raise unless there is a data set of that name; nothing is read."""
    if dataset_traits(name).gives_features:
        read_recipe(name)


def load_dataset(name: str, data_path: str, test_share: float = 0.0) -> DataSet:
    """Return the data set of `dataset`, `data-path` and `test-share` in the run config.

    The same object when asked again for the same: it is kept.
    """
    return _load_once(name, data_path, test_share)


# The simulated clients of one process ask again and again.
@lru_cache(maxsize=4)
def _load_once(name: str, data_path: str, test_share: float) -> DataSet:
    check_dataset(name)
    dataset = dataset_traits(name).load(name, data_path)
    return hold_out(dataset, test_share, cache_dir(), f"dataset = {name!r}")
